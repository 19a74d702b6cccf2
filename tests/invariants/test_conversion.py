"""Invariants F2 and F38 for checkpoints of transformers: mBART and its relatives."""

import random

import pytest
import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.conversion.checkpoint import from_hugging_face, to_hugging_face
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.training.weights import carry_over
from tests.tensors import assert_near, differing
from tests.tiny_models import MBART_STYLE, SIZES, VOCAB, tiny_translator

TWO_VOCABULARIES = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 33}
CASES = {
    "mbart": ("mbart", {}),
    "mbart_relu_unscaled": ("mbart", {"activation_function": "relu", "scale_embedding": False}),
    "mbart_untied": ("mbart", {"tie_word_embeddings": False}),
    "marian": ("marian", {}),
    "marian_gelu": ("marian", {"activation_function": "gelu", "scale_embedding": False}),
    "marian_two_vocabularies": ("marian", TWO_VOCABULARIES),
    "marian_decoder_untied": ("marian", {**TWO_VOCABULARIES, "tie_word_embeddings": False}),
    "marian_shared_untied": ("marian", {"tie_word_embeddings": False}),
    "mbart_50": ("mbart", {"decoder_start_token_id": 2}),
    "bart": ("bart", {}),
    "bart_untied_scaled": ("bart", {"tie_word_embeddings": False, "scale_embedding": True}),
    "m2m_100": ("m2m_100", {}),
    "nllb_untied": ("m2m_100", {"tie_word_embeddings": False, "activation_function": "gelu"}),
    "pegasus": ("pegasus", {}),
    "pegasus_untied": ("pegasus", {"tie_word_embeddings": False}),
}
FORCED = {"mbart_50": (6,), "bart": (0,), "m2m_100": (7,)}
"""The first token of a target: a language, or the begin of a text."""
LIMIT = 20
PLAIN = GenerationConfig(beam=1, max_length_ratio=0, max_length_offset=LIMIT)


def reference_of(name, **settings):
    architecture, options = CASES[name]
    return tiny_translator(architecture, **options, **settings)


def random_batch(reference, count=4, seed=0, longest=8):
    """Mixed lengths, so there is padding on both sides; the first target token is the decoder's start."""
    draw = random.Random(seed)
    start, end = reference.config.decoder_start_token_id, reference.config.eos_token_id
    sources = [[*(draw.randrange(8, 28) for _ in range(draw.randint(1, longest))), end] for _ in range(count)]
    targets = [
        [start, *(draw.randrange(8, 28) for _ in range(draw.randint(1, longest)))] for _ in range(count)
    ]
    pad = reference.config.pad_token_id
    source, target = Tokens.from_lists(sources, pad), Tokens.from_lists(targets, pad)
    return Batch([source], target, target.ids)


@torch.no_grad()
def their_logits(reference, batch):
    source, target = batch.sources[0], batch.target_input
    return reference(
        input_ids=source.ids,
        attention_mask=source.valid.long(),
        decoder_input_ids=target.ids,
        decoder_attention_mask=target.valid.long(),
    ).logits


@torch.no_grad()
def assert_alike(model, reference, batch, atol=1e-5):
    """Compare logits of real tokens."""
    valid = batch.target_input.valid
    logits, expected = model.logits(model(batch))[valid], their_logits(reference, batch)[valid]
    assert_near(logits, expected, atol)


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(name):
    """Invariant F2: fp32 logits within 1e-4 (measured: below 1e-6), in mixed lengths and alone."""
    reference = reference_of(name)
    model, _ = from_hugging_face(reference)
    batch = random_batch(reference)
    assert their_logits(reference, batch).std() > 0.5
    assert_alike(model, reference, batch)
    assert_alike(model, reference, random_batch(reference, count=1, seed=3))


@pytest.mark.parametrize("name", CASES)
def test_round_trip_is_equal_to_the_bit(name, tmp_path):
    """Invariant F38: read, written, and read by transformers and by us: every weight is what it was."""
    reference = reference_of(name)
    reference.save_pretrained(tmp_path / "theirs")
    model, info = from_hugging_face(tmp_path / "theirs")
    assert info.config["model_type"] == reference.config.model_type
    to_hugging_face(model, tmp_path / "ours", PLAIN)
    again, report = type(reference).from_pretrained(
        tmp_path / "ours", dtype=torch.float32, output_loading_info=True
    )
    assert not any(report.values())
    batch = random_batch(reference)
    assert torch.equal(their_logits(reference, batch), their_logits(again, batch))
    twice, _ = from_hugging_face(again)
    assert not differing(model, twice)


@torch.no_grad()
def their_output(reference, batch, **settings):
    source, end = batch.sources[0], reference.generation_config.eos_token_id
    rows = reference.generate(input_ids=source.ids, attention_mask=source.valid.long(), **settings)[
        :, 1:
    ].tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


def our_output(model, batch, config):
    return [hypotheses[0].ids for hypotheses in beam_search(model, batch.sources, config=config)]


def learn_to_copy(model, prompt, end, pad):
    """Some steps on short sequences: enough for outputs that differ and end by themselves."""
    draw = random.Random(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 0.5 if parameter.ndim > 1 else 1  # large random weights learn slowly
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    model.train()
    for step in range(160):
        # At a constant rate the last steps decide if some model ends all its outputs.
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / 160)
        texts = [[draw.randrange(8, 28) for _ in range(draw.randint(1, 3))] for _ in range(32)]
        source = Tokens.from_lists([[*text, end] for text in texts], pad)
        target = Tokens.from_lists([[*prompt, *text] for text in texts], pad)
        output = Tokens.from_lists([[*prompt[1:], *text, end] for text in texts], pad).ids
        hidden = model(Batch([source], target, output))[target.valid]
        loss = torch.nn.functional.cross_entropy(model.logits(hidden), output[target.valid])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("mbart", marks=pytest.mark.slow),
        "marian",
        pytest.param("marian_two_vocabularies", marks=pytest.mark.slow),
        "mbart_50",
        "bart",
        "m2m_100",
        "pegasus",
    ],
)
def test_models_trained_on_generate_the_same(name, tmp_path):
    """Converted, trained and exported, with greedy and beam search as the files say."""
    original = reference_of(name)
    model, _ = from_hugging_face(original)
    forced = FORCED.get(name, ())
    start, end = original.config.decoder_start_token_id, original.config.eos_token_id
    learn_to_copy(model, (start, *forced), end, original.config.pad_token_id)
    ids = {"start_id": start, "end_id": end, "forced_ids": forced}
    for beam in (1, 4):
        config = GenerationConfig(
            beam=beam, length_penalty="average", max_length_ratio=0, max_length_offset=LIMIT, **ids
        )
        notes = to_hugging_face(model, tmp_path / str(beam), config)
        assert len(notes) == (beam > 1)  # what a forced end costs
        exported = type(original).from_pretrained(tmp_path / str(beam))
        batch = random_batch(exported, count=40, longest=3)
        expected = their_output(exported, batch)
        assert all(row[: len(forced)] == [*forced] for row in expected)
        expected = [row[len(forced) :] for row in expected]
        assert len({*map(tuple, expected)}) > 20
        assert max(map(len, expected)) < LIMIT
        assert our_output(model, batch, config) == expected
    assert_alike(model, exported, batch, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"norm": "post", "position_layout": "interleaved", "tying": "none", "activation": "silu"},
        {"position_layout": "marian", "tying": "all", "has_output_bias": True},
        {**MBART_STYLE},
        {**MBART_STYLE, "tying": "none", "has_output_bias": True, "activation": "relu"},
        {**MBART_STYLE, "norm": "post"},
        {"norm": "pre", "tying": "all", "position_layout": "fairseq", "pad_id": 1},
        {"norm": "pre", "tying": "none", "position_layout": "marian", "has_output_bias": True},
        {"norm": "pre", "tying": "all", "position_layout": "halves"},
    ],
)
def test_models_trained_here_can_be_loaded_by_transformers(settings, tmp_path):
    """A plain model that never was a checkpoint has the same logits and greedy output there."""
    import transformers

    torch.manual_seed(0)
    model = Seq2Seq(TransformerConfig(**SIZES, max_positions=32, **settings), VOCAB, VOCAB).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    config = PLAIN
    notes = to_hugging_face(model, tmp_path, config)
    has_sinusoids, layout = model.config.source_positions == "sinusoidal", model.config.position_layout
    is_marian = has_sinusoids and model.config.norm == "post"
    assert len(notes) == (is_marian and layout != "marian")
    exported = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    batch = random_batch(exported, count=8)
    assert_alike(model, exported, batch)
    assert our_output(model, batch, config) == their_output(exported, batch)
    again, _ = from_hugging_face(tmp_path)
    assert again.config == model.config.model_copy(
        update={"position_layout": layout if has_sinusoids else "halves"}
    )
    assert not differing(model, again)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_checkpoints_load_in_fp32(dtype, tmp_path):
    """Whatever type the file has, ours is fp32 with exactly the file's values."""
    reference = tiny_translator("mbart").to(dtype)
    reference.save_pretrained(tmp_path)
    model, _ = from_hugging_face(tmp_path)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.source_embedding.table.weight, reference.model.shared.weight.float())
    from_object, _ = from_hugging_face(reference)
    assert not differing(model, from_object)


def test_sharded_checkpoints(tmp_path):
    """Weights in several files are one checkpoint."""
    reference = tiny_translator("marian")
    reference.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model, _ = from_hugging_face(tmp_path)
    batch = random_batch(reference)
    assert_alike(model, reference, batch)


def test_multi_source_models_begin_as_mbart():
    """F2 and F10: TRICE adds its fine encoder to a converted mBART; with K = 1 it is that mBART."""
    reference = tiny_translator("mbart")
    plain, _ = from_hugging_face(reference)
    settings = {"num_sources": 2, "cross_attention": "separated", "fine_encoder": {"num_layers": 1}}
    model = Seq2Seq(TransformerConfig(**plain.config.model_dump() | settings), VOCAB, VOCAB)
    report = carry_over(model, plain.state_dict(), fresh=[r"^fine_encoder\."])
    assert report.dropped == []
    assert report.initialised == [name for name in sorted(model.state_dict()) if "fine_encoder" in name]
    without = Seq2Seq(
        TransformerConfig(**model.config.model_dump() | {"fine_encoder": {"num_layers": 0}}), VOCAB, VOCAB
    ).eval()
    carry_over(without, plain.state_dict())
    batch = random_batch(reference)
    assert_alike(without, reference, batch)
