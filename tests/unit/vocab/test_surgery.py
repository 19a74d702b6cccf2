"""Surgery on checkpoints of transformers: permutation, ties, ids, bias, sides, reload, generation."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
)

from nlgraft.basics.errors import DataError, PaddingError
from nlgraft.nn.checkpoint_files import checkpoint_problems
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.surgery.exchange import (
    count_embedding_parameters,
    exchange_vocabulary,
    find_vocabulary_tensors,
    input_table,
)
from nlgraft.vocab.surgery.token_ids import id_settings
from nlgraft.vocab.tokenizers.tokenizer_json import read_tokenizer_json
from nlgraft.vocab_tool.apply import write_model
from nlgraft.vocab_tool.checkpoints import (
    INDEX,
    SINGLE,
    StoredCheckpoint,
    embedding_rows,
    load_checkpoint,
)
from nlgraft.vocab_tool.checks import _outputs, check_permutation
from tests.tensors import differing, ties
from tests.tiny_architectures import (
    EVERY,
    MODELS,
    MORE_MODELS,
    NEW_TOKENS,
    OLD_TOKENS,
    SMALL,
    V,
    bert2bert,
    decoder,
    gemma3_with_vision,
    gpt2,
    has_one_size,
    marian,
    noisy,
    size_of,
    tokenizer,
    toy_plan,
)
from tests.tiny_checkpoints import edit


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
    assert changed.config.vocab_size == len(NEW_TOKENS)
    for config in (changed.config, changed.generation_config):
        assert (config.pad_token_id, config.eos_token_id, config.bos_token_id) == (12, 14, 0)
        assert (config.decoder_start_token_id, config.forced_eos_token_id) == (12, 14)
    assert changed.generation_config.bad_words_ids == [[12]]


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


def generate(model, ids, **options):
    """The likeliest eight tokens behind some."""
    prompt = torch.tensor([ids])
    options |= {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8, "do_sample": False}
    return model.generate(prompt, **options)


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
    assert generate(loaded, [3, 4, 5]).max() < len(NEW_TOKENS)


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
    if name != "gpt2":
        ids = torch.tensor([[1, 2, 3]])
        extra = {"decoder_input_ids": ids} if name == "marian" else {}
        probabilities = changed(ids, **extra).logits.softmax(-1)
        assert probabilities[..., gaps].max() == 0.0
    if name != "bert":
        changed.save_pretrained(tmp_path)
        loaded = load_checkpoint(tmp_path)
        with torch.no_grad():  # what is likeliest by far must not come
            loaded.get_output_embeddings().weight[5:25] *= 50
        assert not set(generate(loaded, [1, 2, 3])[0].tolist()) & set(gaps)


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
    for sides, encoder_pad, pad, end in (("decoder", 0, 12, 14), ("encoder", 12, 0, 1)):
        config = exchange_vocabulary(bert2bert(), toy_plan(V), sides=sides).config
        assert (config.encoder.pad_token_id, config.decoder.pad_token_id) == (encoder_pad, pad)
        assert (config.pad_token_id, config.eos_token_id) == (pad, end)


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


# Checkpoints whose weights stay in their files.


def plan_for(model):
    """A plan in which padding moves, but for models that forbid it."""
    if not has_one_size(model) or model.config.model_type not in ("mpnet", "m2m_100"):
        return toy_plan(size_of(model, "decoder"))
    tokens = ([name for name in names if name != "[PAD]"] for names in (OLD_TOKENS, NEW_TOKENS))
    return build_plan(*(tokenizer([t[0], "[PAD]", *t[1:]]) for t in tokens), "random")


def stored(model, directory, **options):
    model.save_pretrained(directory / "old", **options)
    return StoredCheckpoint.open(directory / "old")


def exchanged(checkpoint, plan, directory, **options):
    directory.mkdir()
    write_model(checkpoint, exchange_vocabulary(checkpoint.model, plan, **options), directory)
    return load_checkpoint(directory)


def assert_same(expected, actual):
    assert not differing(expected, actual)
    assert ties(expected) == ties(actual)
    for part in ("config", "generation_config"):
        here, there = (getattr(model, part, None) for model in (expected, actual))
        if here is not None:
            assert id_settings(here) == id_settings(there)
            assert getattr(here, "vocab_size", None) == getattr(there, "vocab_size", None)


@pytest.mark.parametrize("name", EVERY)
def test_files_hold_what_the_exchange_in_memory_makes(name, tmp_path):
    """Every family, in several files: weights, ties, ids, sizes, the sum of the index."""
    model = noisy(name)
    plan = plan_for(model)
    sides = "both" if has_one_size(model) else "decoder"
    checkpoint = stored(model, tmp_path, max_shard_size="3KB")
    assert len({*checkpoint.files.values()}) > 1
    written = exchanged(checkpoint, plan, tmp_path / "new", sides=sides)
    assert_same(exchange_vocabulary(model, plan, sides=sides), written)
    assert ties(written) == ties(model)
    assert check_permutation(written).is_good
    index = json.loads((tmp_path / "new" / INDEX).read_text())
    weights = {file: load_file(tmp_path / "new" / file) for file in {*index["weight_map"].values()}}
    assert {name: file for file, part in weights.items() for name in part} == index["weight_map"]
    sizes = [tensor.nbytes for part in weights.values() for tensor in part.values()]
    assert index["metadata"]["total_size"] == sum(sizes)
    assert index["metadata"]["total_parameters"] == written.num_parameters()


@pytest.mark.filterwarnings("ignore:.*one vocabulary size for both sides")
@pytest.mark.parametrize(
    ("name", "sides"),
    [(name, "decoder") for name in ("marian", "mbart", "t5", "bert2bert")]
    + [("marian", "encoder"), ("bert2bert", "encoder")],
)
def test_one_side_in_files(name, sides, tmp_path):
    """A shared table becomes two, also where the configuration ties them (T5); again, from the new files."""
    model = noisy(name)
    again = build_plan(tokenizer(NEW_TOKENS), tokenizer(NEW_TOKENS[::-1]), "random")
    checkpoint, kept = stored(model, tmp_path), "encoder" if sides == "decoder" else "decoder"
    for step, plan in enumerate([toy_plan(V)] + [again] * (sides == "decoder" and name != "bert2bert")):
        written = exchanged(checkpoint, plan, tmp_path / f"new{step}", sides=sides)
        assert torch.equal(input_table(written, kept), input_table(model, kept))
        model = exchange_vocabulary(model, plan, sides=sides)
        model.save_pretrained(tmp_path / f"expected{step}")
        model = load_checkpoint(tmp_path / f"expected{step}")
        assert_same(model, written)
        checkpoint = StoredCheckpoint.open(tmp_path / f"new{step}")


def test_only_files_with_tables_are_written_anew(tmp_path):
    checkpoint = stored(noisy("llama_untied"), tmp_path, max_shard_size="1KB")
    exchanged(checkpoint, toy_plan(V), tmp_path / "new")
    tables = {"model.embed_tokens.weight", "lm_head.weight"}
    assert tables <= set(checkpoint.files)
    for file in {*checkpoint.files.values()}:
        old, new = (tmp_path / each / file for each in ("old", "new"))
        has_table = any(checkpoint.files[name] == file for name in tables)
        assert (old.read_bytes() != new.read_bytes()) is has_table
        assert not new.is_symlink()
        assert new.stat().st_nlink == 1
    index = json.loads((tmp_path / "new" / INDEX).read_text())
    assert index["weight_map"] == checkpoint.files


@pytest.mark.parametrize("name", EVERY)
def test_a_model_whose_weights_stay_in_files_computes_what_the_loaded_one_does(name, tmp_path):
    """Every family, in several files, to the bit; half precision is read as single."""
    model = noisy(name).to(torch.bfloat16)
    checkpoint = stored(model, tmp_path, max_shard_size="3KB")
    loaded = type(model).from_pretrained(tmp_path / "old", dtype=torch.float32).eval()
    assert not checkpoint.missing
    assert input_table(checkpoint.model, "decoder").dtype is torch.bfloat16
    assert torch.equal(_outputs(loaded, None), _outputs(checkpoint.model, None))
    assert ties(loaded) == ties(checkpoint.model)


def test_weights_of_another_shape_are_refused(tmp_path):
    checkpoint = stored(noisy("llama_tied"), tmp_path)
    edit(tmp_path / "old" / "config.json", vocab_size=V + 1)
    with pytest.raises(DataError, match=rf"has shape \({V}, \d+\), but the model needs \({V + 1}, "):
        StoredCheckpoint.open(checkpoint.directory)


@pytest.mark.parametrize("name", ["llama_tied", "gemma3_untied", "bert", "marian"])
def test_rows_without_a_token_fill_up_to_a_multiple(name, tmp_path):
    """Old rows beyond the tokenizer never count; 16 tokens and 16 rows more: zero, and never generated."""
    model = noisy(name)
    plan = toy_plan(V - 4)
    with torch.no_grad():
        model.get_input_embeddings().weight[V - 4 :] = 1e6
    written = exchanged(stored(model, tmp_path), plan, tmp_path / "new", multiple=32)
    exact = exchange_vocabulary(model, plan)
    rows = written.get_input_embeddings().weight
    assert len(rows) == 32
    assert torch.equal(rows[: len(plan)], exact.get_input_embeddings().weight)
    assert not rows[len(plan) :].any()
    assert rows.abs().max() < 10
    assert written.config.get_text_config().vocab_size == 32
    assert check_permutation(written).is_good
    if written.can_generate():
        with torch.no_grad():  # the likeliest by far must not come
            written.get_output_embeddings().weight[len(plan) :] = 50
        assert generate(written, [1, 2, 3], pad_token_id=0).max() < len(plan)


def test_ids_of_parts_and_lists_follow_their_tokens(tmp_path):
    """Gemma 3 keeps the ids of text in a part of its configuration; several tokens may end a sequence."""
    torch.manual_seed(0)
    written = exchanged(stored(gemma3_with_vision(), tmp_path), toy_plan(V), tmp_path / "new")
    text, whole = written.config.text_config, written.config
    assert (text.vocab_size, text.pad_token_id, text.eos_token_id, text.bos_token_id) == (16, 12, 14, 0)
    # tokens w2, w3, w4
    assert (whole.boi_token_index, whole.eoi_token_index, whole.image_token_index) == (3, 4, 5)
    written = exchanged(stored(decoder("llama"), tmp_path / "list"), toy_plan(V), tmp_path / "llama")
    assert written.config.eos_token_id == written.generation_config.eos_token_id == [14, 2]  # </s> and w1


def test_a_stored_table_without_values_in_memory_is_read_alone(tmp_path):
    model = noisy("gemma2_tied").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    rows = embedding_rows(str(tmp_path))
    assert rows.dtype == np.float32
    assert np.array_equal(rows, model.get_input_embeddings().weight.detach().float().numpy())


def test_precision_is_that_of_each_tensor(tmp_path):
    model = noisy("llama_untied").to(torch.bfloat16)
    stored(model, tmp_path)
    weights = load_file(tmp_path / "old" / SINGLE)
    weights["lm_head.weight"] = weights["lm_head.weight"].float()
    save_file(weights, tmp_path / "old" / SINGLE, metadata={"format": "pt"})
    exchanged(StoredCheckpoint.open(tmp_path / "old"), toy_plan(V), tmp_path / "new")
    new = load_file(tmp_path / "new" / SINGLE)
    assert {name: tensor.dtype for name, tensor in new.items()} == {n: t.dtype for n, t in weights.items()}


def test_weights_that_cannot_be_changed_are_refused(tmp_path):
    """Each with its file, its tensor and what to do."""
    stored(gpt2(), tmp_path)
    file = tmp_path / "old" / SINGLE
    weights = load_file(file)
    table = "transformer.wte.weight"
    save_file(weights | {table: weights[table].to(torch.int8)}, file)
    with pytest.raises(DataError, match="quantised table, of which no rows"):
        exchange_vocabulary(StoredCheckpoint.open(tmp_path / "old").model, toy_plan(V))
    del weights[table]
    save_file(weights, file)
    with pytest.raises(DataError, match=r"no weights for 'lm_head\.weight' of GPT2LMHeadModel"):
        StoredCheckpoint.open(tmp_path / "old").refuse_missing_tables()
    file.write_bytes(b"broken")
    with pytest.raises(DataError, match="cannot be read"):
        StoredCheckpoint.open(tmp_path / "old")
    file.unlink()
    with pytest.raises(DataError, match="no weights in safetensors"):
        StoredCheckpoint.open(tmp_path / "old")
    (tmp_path / "old" / INDEX).write_text("{}")
    with pytest.raises(DataError, match="not an index"):
        StoredCheckpoint.open(tmp_path / "old")


@pytest.mark.parametrize("reader", [StoredCheckpoint.open, load_checkpoint])
def test_weights_that_no_architecture_claims_are_not_dropped(reader, tmp_path):
    """A configuration that names no class would load as the body alone, its head lost without a word."""
    noisy("bert").save_pretrained(tmp_path)
    edit(tmp_path / "config.json", architectures=None)
    with pytest.raises(DataError, match="names no architecture, and BertModel has no 'cls"):
        reader(tmp_path)


@pytest.mark.parametrize("name", ["../../side.safetensors", "{tmp}/side.safetensors", "a/../../side", 7])
def test_an_index_may_name_no_file_outside_its_directory(tmp_path, name):
    """Else the exchange writes there: `vocab apply` keeps the names of the files."""
    checkpoint = stored(noisy("llama_untied"), tmp_path, max_shard_size="1KB")
    name = name.format(tmp=tmp_path) if isinstance(name, str) else name
    (tmp_path / "side.safetensors").write_bytes(b"somebody's")
    index = dict(checkpoint.index) | {"weight_map": dict.fromkeys(checkpoint.files, name)}
    (tmp_path / "old" / INDEX).write_text(json.dumps(index))
    for reader in (StoredCheckpoint.open, load_checkpoint):
        with pytest.raises(DataError, match=f"{name}.* is no file of this directory"):
            reader(tmp_path / "old")
    assert "is no file of this directory" in checkpoint_problems(str(tmp_path / "old"), "encoder")[0]
    assert (tmp_path / "side.safetensors").read_bytes() == b"somebody's"
