"""Surgery on checkpoints of transformers: permutation, ties, ids, bias, sides, reload, generation."""

from copy import deepcopy

import pytest
import torch
import transformers
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
)

from nlgraft.basics.errors import DataError, PaddingError
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.surgery.exchange import (
    count_embedding_parameters,
    exchange_vocabulary,
    find_vocabulary_tensors,
)
from nlgraft.vocab.tokenizers.tokenizer_json import read_tokenizer_json
from nlgraft.vocab_tool.checkpoints import load_checkpoint
from nlgraft.vocab_tool.checks import check_permutation
from tests.tensors import differing
from tests.tiny_architectures import (
    MODELS,
    MORE_MODELS,
    NEW_TOKENS,
    OLD_TOKENS,
    SMALL,
    V,
    bert2bert,
    gpt2,
    marian,
    size_of,
    tokenizer,
    toy_plan,
)


@pytest.mark.parametrize("name", ["mpnet", "m2m100"])
def test_a_padding_id_that_must_stay_is_asked_for(name):
    torch.manual_seed(0)
    old = tokenizer(["w0", "[PAD]", *(f"w{i}" for i in range(1, V - 1))])
    with pytest.raises(PaddingError, match="also have its padding at id 1"):
        exchange_vocabulary(MORE_MODELS[name](), build_plan(old, tokenizer(["[PAD]", "w1"]), "mean"))
    kept = exchange_vocabulary(MORE_MODELS[name](), build_plan(old, tokenizer(["w1", "[PAD]"]), "mean"))
    assert kept.config.pad_token_id == 1


def test_a_model_that_hides_its_tables_is_refused():
    config = transformers.FSMTConfig(
        langs=["en", "de"],
        src_vocab_size=V,
        tgt_vocab_size=V,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
    )
    with pytest.raises(DataError, match="provides no get_input_embeddings"):
        find_vocabulary_tensors(transformers.FSMTForConditionalGeneration(config))


def test_ids_follow_their_tokens():
    """Invariant V42: sizes and ids of the configuration and of the generation configuration."""
    torch.manual_seed(0)
    model = MODELS["mbart"]()
    model.generation_config.bad_words_ids = [[0], [29]]
    changed = exchange_vocabulary(model, toy_plan(V))
    config, generation = changed.config, changed.generation_config
    assert config.vocab_size == len(NEW_TOKENS)
    assert (config.pad_token_id, config.eos_token_id, config.bos_token_id) == (12, 14, 0)
    assert (config.decoder_start_token_id, config.forced_eos_token_id) == (12, 14)
    assert (generation.pad_token_id, generation.eos_token_id, generation.bos_token_id) == (12, 14, 0)
    assert (generation.decoder_start_token_id, generation.forced_eos_token_id) == (12, 14)
    assert generation.bad_words_ids == [[12]]


def test_one_side_of_a_shared_table():
    """Invariant V41: 10 rows and 6 of width 4 are 40 + 24 parameters; both sides shared are 24."""
    torch.manual_seed(0)
    options = {"d_model": 4, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    model = marian(vocab_size=10, decoder_vocab_size=10, **options)
    old = tokenizer([f"w{i}" for i in range(10)])
    plan = build_plan(old, tokenizer(["w3", "w0", "w1", "w5", "w9", "w2"]), "avg")
    model.config.bos_token_id = model.generation_config.bos_token_id = 3
    changed = exchange_vocabulary(model, plan, sides="decoder")
    assert count_embedding_parameters(model) == 40
    assert count_embedding_parameters(changed) == 64
    assert torch.equal(changed.get_encoder().get_input_embeddings().weight, model.model.shared.weight)
    assert changed.lm_head.weight.data_ptr() == changed.get_decoder().get_input_embeddings().weight.data_ptr()
    assert count_embedding_parameters(exchange_vocabulary(model, plan)) == 24


@pytest.mark.parametrize("name", ["mbart", "t5"])
def test_one_size_for_two_vocabularies_is_padded_and_said(name, tmp_path):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with pytest.warns(UserWarning, match="one vocabulary size for both sides"):
        changed = exchange_vocabulary(model, toy_plan(V), sides="decoder")
    changed.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path)
    encoder, decoder = (
        getattr(loaded, f"get_{side}")().get_input_embeddings().weight for side in ("encoder", "decoder")
    )
    assert torch.equal(encoder, model.get_encoder().get_input_embeddings().weight)
    assert torch.equal(decoder[: len(NEW_TOKENS)], loaded.lm_head.weight[: len(NEW_TOKENS)])
    assert not decoder[len(NEW_TOKENS) :].any()
    assert check_permutation(changed).is_good
    assert check_permutation(loaded).is_good
    ids = torch.tensor([[3, 4, 5]])
    made = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    assert made.max() < len(NEW_TOKENS)


@pytest.mark.parametrize("name", ["gpt2", "marian", "bert"])
def test_ids_without_a_token_are_out_of_reach(name, tmp_path):
    """Invariant V46: a bias puts them out of the softmax; without one, generation never gives them."""
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    vocabulary = {token: i if i < 5 else i + 20 for i, token in enumerate(NEW_TOKENS)}
    new = read_tokenizer_json({"model": {"type": "WordPiece", "vocab": vocabulary}})
    gaps = list(range(5, 25))
    assert new.gaps == gaps
    changed = exchange_vocabulary(model, build_plan(tokenizer(OLD_TOKENS), new, "random"))
    assert size_of(changed, "decoder") == max(vocabulary.values()) + 1
    ids = torch.tensor([[1, 2, 3]])
    if name != "gpt2":
        extra = {"decoder_input_ids": ids} if name == "marian" else {}
        probabilities = changed(ids, **extra).logits.softmax(-1)
        assert probabilities[..., gaps].max() == 0.0
    if name != "bert":
        changed.save_pretrained(tmp_path)
        loaded = load_checkpoint(tmp_path)
        with torch.no_grad():  # what is likeliest by far must not come
            loaded.get_output_embeddings().weight[5:25] *= 50
        made = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        assert not set(made[0].tolist()) & set(gaps)


def test_brain_floats_accumulate_in_single():
    """Invariant V47: the mean of 1,000 rows in bf16, against double precision, within 1e-2 of its norm."""
    torch.manual_seed(0)
    old_tokens = [f"w{i}" for i in range(1000)]
    model = gpt2(vocab_size=1000, n_embd=32).to(torch.bfloat16)
    with torch.no_grad():
        model.transformer.wte.weight.normal_(mean=1.0)
    exact = model.transformer.wte.weight.double().mean(0)
    plan = build_plan(tokenizer(old_tokens), tokenizer(["w0", "ß"]), "mean")
    changed = exchange_vocabulary(model, plan)
    assert {parameter.dtype for parameter in changed.parameters()} == {torch.bfloat16}
    row = changed.transformer.wte.weight[1].double()
    assert (row - exact).abs().max() < 1e-2 * exact.norm()


def test_one_token_in_two_roles_becomes_two():
    """GPT-2 begins and ends with one token; where the new vocabulary has two, each setting gets its own."""
    torch.manual_seed(0)
    shared = read_tokenizer_json(
        {"model": {"type": "WordPiece", "vocab": {"w0": 0, "<|endoftext|>": 1, "w1": 2}}},
        specials={"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"},
    )
    two = tokenizer(["w1", "</s>", "w0", "<s>"])
    config = exchange_vocabulary(gpt2(vocab_size=3), build_plan(shared, two, "mean")).config
    assert (config.bos_token_id, config.eos_token_id) == (3, 1)
    back = exchange_vocabulary(
        gpt2(vocab_size=4, bos_token_id=3, eos_token_id=1), build_plan(two, shared, "mean")
    )
    assert (back.config.bos_token_id, back.config.eos_token_id) == (1, 1)
    assert (back.generation_config.bos_token_id, back.generation_config.eos_token_id) == (1, 1)


def test_ids_of_the_other_side_stay():
    torch.manual_seed(0)
    decoder = exchange_vocabulary(bert2bert(), toy_plan(V), sides="decoder")
    assert (decoder.config.encoder.pad_token_id, decoder.config.decoder.pad_token_id) == (0, 12)
    assert (decoder.config.pad_token_id, decoder.config.eos_token_id) == (12, 14)
    encoder = exchange_vocabulary(bert2bert(), toy_plan(V), sides="encoder")
    assert (encoder.config.encoder.pad_token_id, encoder.config.decoder.pad_token_id) == (12, 0)
    assert (encoder.config.pad_token_id, encoder.config.eos_token_id) == (0, 1)


def test_a_padding_id_for_two_sides_must_be_a_row_of_both():
    """Marian's padding comes last: a smaller vocabulary for one side alone has no such row."""
    options = {"pad_token_id": V - 1, "decoder_start_token_id": V - 1}
    old = tokenizer([*OLD_TOKENS[1:], "[PAD]"])
    with pytest.raises(DataError, match="29, beyond the 16 rows of one side"):
        exchange_vocabulary(
            marian(**options), build_plan(old, tokenizer(NEW_TOKENS), "mean"), sides="encoder"
        )


def test_the_old_model_stays_as_it_was():
    torch.manual_seed(0)
    model = gpt2()
    before = deepcopy(model.state_dict())
    state = torch.get_rng_state()
    exchange_vocabulary(model, toy_plan(V))
    assert torch.equal(state, torch.get_rng_state())
    assert not differing(before, model)
    assert model.config.vocab_size == V


def test_one_sided_models_have_no_sides():
    with pytest.raises(DataError, match="one vocabulary"):
        exchange_vocabulary(gpt2(), toy_plan(V), sides="decoder")


@pytest.mark.parametrize(("old_pad", "tokens"), [(1, NEW_TOKENS), (20, ["x", "[PAD]", "w2"])])
def test_positions_that_count_from_the_padding_id_move_with_it(old_pad, tokens):
    """RoBERTa: a sentence gets the same states whatever id its padding has."""
    torch.manual_seed(0)
    config = RobertaConfig(vocab_size=V, max_position_embeddings=40, **SMALL, pad_token_id=old_pad)
    model = RobertaForMaskedLM(config).eval()
    old = [f"w{i}" for i in range(V)]
    old[old_pad] = "[PAD]"
    changed = exchange_vocabulary(model, build_plan(tokenizer(old), tokenizer(tokens), "mean"))
    assert changed.config.pad_token_id == tokens.index("[PAD]")
    before = model.roberta(torch.tensor([[2, 2, 2]]))[0]
    after = changed.roberta(torch.tensor([[tokens.index("w2")] * 3]))[0]
    assert torch.allclose(before, after, atol=1e-6)


def test_tensors_are_found_by_what_the_model_says():
    """A width or a number of positions that equals the vocabulary size is not taken for it."""
    tensors = find_vocabulary_tensors(gpt2(vocab_size=8, n_positions=8))
    assert tensors.decoder == tensors.output == {"transformer.wte.weight", "lm_head.weight"}
    assert tensors.encoder == tensors.bias == frozenset()
