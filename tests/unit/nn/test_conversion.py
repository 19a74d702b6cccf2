"""Checkpoints of mBART and Marian: settings in both directions, and what is refused."""

import pytest
import torch

from nlgraft.basics.errors import ContractError
from nlgraft.nn.architectures import choose_architecture
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.conversion.checkpoint import (
    from_hugging_face,
    to_hugging_face,
    write_generation,
)
from nlgraft.nn.conversion.renames import Place, check_places
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from tests.tiny_models import MBART_STYLE, tiny_translator

SIZES = {"d_model": 16, "num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "ffn_dim": 24}


def test_misfits_are_all_named():
    misfits = [Place("a", ("x",)), Place("a", ("y",)), Place("b", ("x",))]
    with pytest.raises(ContractError) as error:
        check_places(misfits, ["a", "c"], ["x", "z"])
    message = str(error.value)
    for part in (
        "our parameter 'c' is left over",
        "our parameter 'b' is missing",
        "our parameter 'a' is used twice",
        "tensor 'z' is left over",
        "tensor 'y' is missing",
        "tensor 'x' is used twice",
    ):
        assert part in message


def test_settings_are_read():
    model, info = from_hugging_face(tiny_translator("mbart", dropout=0.3))
    assert (model.config.dropout, model.config.max_positions, model.config.pad_id) == (0.3, 32, 1)
    assert info.architecture == "mbart"
    assert not model.training


def test_random_numbers_are_left_alone():
    translator = tiny_translator("marian")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    from_hugging_face(translator)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"encoder_attention_heads": 4}, "encoder_attention_heads 4 and decoder_attention_heads 2"),
        ({"decoder_ffn_dim": 20}, "encoder_ffn_dim 24 and decoder_ffn_dim 20"),
        ({"activation_function": "gelu_new"}, "'gelu_new': Did you mean 'gelu'"),
    ],
)
def test_what_we_have_no_counterpart_for_is_refused(settings, message):
    with pytest.raises(ContractError, match=message):
        from_hugging_face(tiny_translator("mbart", **settings))


def test_other_architectures_are_refused(tmp_path):
    import transformers

    translator = tiny_translator("mbart")
    with pytest.raises(ContractError, match="MBartModel cannot generate"):
        from_hugging_face(translator.model)
    bert = transformers.BertConfig(
        hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8, vocab_size=20
    )
    t5 = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=20)
    t5.save_pretrained(tmp_path)
    with pytest.raises(ContractError, match=r"model type 't5', which has relative positions.*RMS norms"):
        from_hugging_face(tmp_path)
    bert.save_pretrained(tmp_path)
    with pytest.raises(ContractError, match=r"model type 'bert'.*Allowed: mbart, .*, m2m_100, pegasus"):
        from_hugging_face(tmp_path)
    with pytest.raises(ContractError, match=r"no readable config\.json"):
        from_hugging_face(tmp_path / "nothing")


def test_incomplete_and_overfull_files_are_refused(tmp_path):
    """transformers would fill what is missing with random numbers."""
    from safetensors.torch import load_file, save_file

    tiny_translator("mbart").save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    fewer = {n: t for n, t in tensors.items() if n != "model.encoder.layers.0.fc1.bias"}
    save_file({**fewer, "model.decoder.extra": torch.zeros(2)}, file, metadata={"format": "pt"})
    with pytest.raises(
        ContractError, match=r"missing .*encoder.layers.0.fc1.bias; unexpected .*decoder.extra"
    ):
        from_hugging_face(tmp_path)
    save_file({**tensors, "model.encoder.version": torch.ones(1)}, file, metadata={"format": "pt"})
    from_hugging_face(tmp_path)


def test_half_tied_tables_are_refused():
    translator = tiny_translator("mbart", tie_word_embeddings=False)
    translator.model.encoder.embed_tokens.weight = translator.model.decoder.embed_tokens.weight
    with pytest.raises(ContractError, match=r"ties model\.encoder\.embed_tokens\.weight to only one"):
        from_hugging_face(translator)


def test_position_tables_that_are_no_sinusoids_are_refused():
    translator = tiny_translator("marian")
    translator.model.encoder.embed_positions.weight.data += 0.1
    with pytest.raises(ContractError, match="none of the known sinusoids"):
        from_hugging_face(translator)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"norm": "pre", "source_positions": "learned"}, "mbart: has.*marian: norm is 'pre'.*pegasus: s"),
        ({"has_source_scale": False}, "has_source_scale and has_target_scale differ"),
        ({**MBART_STYLE, "tying": "decoder"}, "tying is 'decoder', must be 'all' or 'none'"),
        ({"num_sources": 2, "segments": "halves"}, "segments is set"),
        ({"num_sources": 2, "fine_encoder": {"num_layers": 1}}, "fine_encoder.num_layers is set"),
    ],
)
def test_models_that_transformers_cannot_hold_are_refused(settings, message):
    with pytest.raises(ContractError, match=message):
        choose_architecture(TransformerConfig(**SIZES, **settings))


def test_several_sources_are_noted(tmp_path):
    config = TransformerConfig(**SIZES, num_sources=2, position_layout="marian")
    notes = to_hugging_face(Seq2Seq(config, 20, 20), tmp_path, GenerationConfig(beam=1))
    assert any("transformers has one source" in note for note in notes)


def test_a_prompt_is_given_and_not_searched():
    """Tokens before the search are read as in training, and leave room for fewer in the position table."""
    translator = tiny_translator("mbart", decoder_start_token_id=2)
    model, _ = from_hugging_face(translator)
    config = GenerationConfig(beam=1, forced_ids=(6,), max_length_offset=90)
    source = Tokens.from_lists([[9, 8, 2], [6, 2]], 1)
    best_ids = [best[0].ids for best in beam_search(model, [source], config=config)]
    target = Tokens.from_lists([[2, 6, *ids] for ids in best_ids], 1)
    with torch.no_grad():
        chosen = model.logits(model(Batch([source], target, target.ids))).argmax(-1)
    for row, ids in zip(chosen[:, 1:].tolist(), best_ids, strict=True):
        assert row[: len(ids)] == ids
        assert len(ids) <= 32 - 2


def test_generation_is_written():
    config = GenerationConfig(
        beam=4, length_penalty="average", alpha=0.8, max_length_ratio=0, max_length_offset=10, min_length=2
    )
    fields, notes = write_generation(config, pad_id=0, max_positions=64)
    assert len(notes) == 1
    assert "forces" in notes[0]
    assert (fields["max_new_tokens"], fields["min_new_tokens"], fields["bad_words_ids"]) == (11, 2, [[0]])
    _, notes = write_generation(GenerationConfig(), pad_id=0, max_positions=64)
    assert [note.split()[0] for note in notes] == ["max_length_ratio", "the", "length_penalty"]
