"""Systems of the shared pieces alone, on a few constructed sentences."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.numpy import load_file

from nlgraft.basics.errors import DataError
from nlgraft.commands.progress import LineReporter
from nlgraft.evaluation.sufficient import aggregate
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.pipeline.stage import NullReporter, StageGraph
from nlgraft.pipeline.trial import execute_stage
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages import text_graph
from nlgraft.stages.config_parts import ScoreConfig
from nlgraft.stages.metrics import NATS_PER_CHAR, OUTPUT, SAVED, TEXT, TRAINING
from nlgraft.stages.run.seq2seq_stages import batches, check_positions, model_inputs
from nlgraft.stages.run.text_stages import open_tokenizer, read_encoded, vocab_sizes
from nlgraft.stages.seq2seq_graph import (
    CarrySettings,
    DecodingSettings,
    TrainInputs,
    TrainSettings,
    TranslateInputs,
    TranslateSettings,
    extract_scores,
)
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import TokenizerConfig
from nlgraft.training.models import fresh_model, read_model
from nlgraft.training.train_config import LearnedParameters, Side, SmoothedTrainConfig, View
from nlgraft.training.views import Encoded, Seq2SeqData
from tests.small_studies import TINY
from tests.tensors import differing
from tests.unit.stages.runs import finish

TRAIN = SmoothedTrainConfig(max_steps=4, batch_tokens=400, warmup_steps=1, peak_lr=0.01, eval_every_steps=2)
DECODE = GenerationConfig(beam=2, max_length_offset=3)


def model(**settings):
    return TransformerConfig(**TINY | settings)


def texts(task="multi_source", num_sources=2, size=200, max_tokens=60, **tokenizer):
    config = ConlangConfig(corpus="conlang", task=task, train=60, dev=8, test=6)
    corpus = text_graph.corpus("task", config)
    learned = TokenizerConfig(vocab_size=size, **tokenizer)
    tokenizers = text_graph.tokenizers("task", learned, {"task": corpus}, num_sources)
    return text_graph.encode("task", corpus, tokenizers, max_tokens=max_tokens)


def scored(trained, text, view=None, splits=("dev", "test"), **score):
    decoding = DecodingSettings(decode=DECODE, view=view or View())
    return StageGraph(pieces.scores(trained, text, splits, decoding, ScoreConfig(**score)))


BOTH = View(sources=(Side(stream="source 0"), Side(stream="source 1")))


def two_sources(store, splits=("dev", "test"), max_tokens=60):
    """A training on both sources: its text, its record, and the function that finds its artifacts."""
    text = texts(is_shared=False, max_tokens=max_tokens)
    settings = TrainSettings(train=TRAIN, model=model(num_sources=2), view=BOTH)
    trained = pieces.train("trained", text, settings, seed=1)
    return text, *finish(store, scored(trained, text, BOTH, splits))


def test_two_sources_from_pieces(store):
    text, record, at = two_sources(store)
    assert set(record.metrics) <= {*TEXT, *OUTPUT, *SAVED, *TRAINING, *NATS_PER_CHAR}
    assert {"test/bleu", "test/reference_length", "test/hypothesis_length", "dev/nats_per_char"} <= set(
        record.metrics
    )
    assert len(load_file(at("scores") / "segments-test.safetensors")["bleu"]) == 6
    sizes = vocab_sizes(at("task_encoded"))
    assert set(sizes) == {"source 0", "source 1", "target"}
    assert text.tokenizers["source 0"] == text.tokenizers["source 1"] != text.tokenizers["target"]
    corpus = read_corpus(at("task_corpus") / "train")
    assert len(corpus.sources) == 2
    assert len(read_encoded(at("task_encoded"), "train")) == 60


def test_encoding_says_how_far_it_is(store):
    screen = io.StringIO()
    for stage in StageGraph(texts(task="translation", num_sources=1).encoded).stages:
        execute_stage(stage, store, reporter=LineReporter(screen))
    lines = [f"task_encoded line {size}" for size in (60, 8) for _ in ("source 0", "target")]
    assert screen.getvalue().splitlines() == lines


def test_scores_under_a_prefix_keep_their_segments(store):
    """What stands aside, such as the lead, is resampled with the same lines as the trial's own scores."""
    corpus = text_graph.corpus("task", ConlangConfig(corpus="conlang", train=60, dev=8, test=6))
    scores = extract_scores(corpus, ("dev", "test"), num_sentences=1)["lead"]
    record, at = finish(store, StageGraph(scores))
    segments = load_file(at("lead_scores") / "segments-lead.safetensors")
    assert {name: len(rows) for name, rows in segments.items()} == {
        f"{split}_{name}": size
        for split, size in (("dev", 8), ("test", 6))
        for name in ("rouge1", "rouge2", "rouge_l", "rouge_lsum")
    }
    for name, rows in segments.items():
        assert aggregate(name, rows.sum(axis=0)) == pytest.approx(record.metrics[f"lead/{name}"])


def test_dev_loss_and_lengths_by_hand(store):
    _, record, at = two_sources(store)
    losses = load_file(at("trained") / "segments-dev.safetensors")["loss"]
    assert record.metrics["dev/loss"] == pytest.approx(losses[:, 0].sum() / losses[:, 1].sum())
    targets = read_encoded(at("task_encoded"), "dev").stream("target")
    assert record.metrics["dev/reference_length"] == targets.lengths.mean()
    assert losses[:, 1].tolist() == (targets.lengths + 1).tolist()


@pytest.mark.parametrize(("max_tokens", "are_whole"), [(60, {True}), (15, {True, False}), (1, {False})])
def test_nats_per_character_are_of_lines_that_were_not_cut(store, max_tokens, are_whole):
    """Dev loss over characters of the references, where the model read them; without a whole line, none."""
    text, record, at = two_sources(store, ("dev",), max_tokens)
    references = read_corpus(at("task_corpus") / "dev").target
    encoded = open_tokenizer(store.fetch(text.tokenizers["target"])).encode(references)
    whole = [row for row, ids in enumerate(encoded) if len(ids) <= max_tokens]
    assert {row in whole for row in range(len(references))} == are_whole
    nats = load_file(at("trained") / "segments-dev.safetensors")["loss"][whole, 0].sum()
    expected = nats / sum(len(references[row]) for row in whole) if whole else None
    assert record.metrics.get("dev/nats_per_char") == pytest.approx(expected)


def test_weights_are_carried_into_another_architecture(store):
    """One source first; then two, with a fine encoder that begins fresh (TRICE's gradual finetuning)."""
    text, view = texts(), BOTH
    first = pieces.train(
        "first", text, TrainSettings(train=TRAIN, model=model(), metric_prefix="first"), seed=1
    )
    grown = model(num_sources=2, fine_encoder={"num_layers": 1})
    carry = CarrySettings(fresh=("fine_encoder",))
    fine = LearnedParameters(only=("fine_encoder",))
    settings = TrainSettings(train=TRAIN, learned=fine, model=grown, carry=carry, view=view)
    graph = scored(pieces.train("trained", text, settings, seed=1, start=first), text, view, ("dev",))
    record, at = finish(store, graph)
    report = json.loads((at("trained") / "carried.json").read_text())
    assert report["dropped"] == []
    assert report["initialised"] == [name for name in report["initialised"] if "fine_encoder" in name] != []
    before, after = (read_model(at(name)).state_dict() for name in ("first", "trained"))
    assert differing(before, after).isdisjoint(report["carried"])
    assert {"first/dev_loss", "first/parameters_total"} <= set(record.metrics)
    assert record.metrics["parameters/total"] > record.metrics["first/parameters_total"]


def rows_of(store, text, view, **budget):
    """Rows of every batch of two epochs of a training."""
    for stage in StageGraph(text.encoded).stages:
        execute_stage(stage, store, reporter=NullReporter())
    inputs = TrainInputs(encoded=store.fetch(text.encoded), corpus=store.fetch(text.corpus), tokenizers={})
    settings = TrainSettings(train=SmoothedTrainConfig(**budget), view=view)
    data = batches("train", settings, inputs, SimpleNamespace(seed=3))
    return [[rows.tolist() for rows in data.epoch(index)] for index in (0, 1)]


CONTEXT = View(contexts={"other": Side(stream="source 1")})


@pytest.mark.parametrize("budget", [{"batch_characters": 300}, {"batch_sentences": 7}])
def test_the_same_seed_is_the_same_batches_whatever_vocabulary_and_view(store, budget):
    first, second = (
        rows_of(store, texts(size=size), view, **budget) for size, view in ((110, BOTH), (400, View()))
    )
    assert first == second == rows_of(store, texts(), CONTEXT, **budget)
    assert first[0] != first[1]
    assert all(sorted(row for batch in epoch for row in batch) == list(range(60)) for epoch in first)


def test_batches_by_tokens_differ_between_vocabularies(store):
    small, large = (rows_of(store, texts(size=size), BOTH, batch_tokens=100) for size in (110, 400))
    alike = {tuple(sorted(rows)) for rows in small[0]} & {tuple(sorted(rows)) for rows in large[0]}
    assert len(alike) < len(small[0]) / 4


def test_sampled_text_and_greedy_bleu(store):
    text = texts("translation", 1)
    settings = TrainSettings(train=TRAIN, model=model(), sampling_alpha=0.2, num_bleu_sentences=3)
    trained = pieces.train("trained", text, settings, seed=1)
    assert trained.config["view"]["target"]["max_tokens"] == 60
    record, _ = finish(store, scored(trained, text, splits=("dev",)))
    assert "dev/greedy_bleu" in record.curves
    plain = pieces.train("trained", text, TrainSettings(train=TRAIN, model=model()), seed=1)
    fixed, _ = finish(store, scored(plain, text, splits=("dev",)))
    assert record.metrics["dev/loss"] != fixed.metrics["dev/loss"]


LEARNED = TransformerConfig(
    preset="tiny", d_model=16, source_positions="learned", target_positions="learned", max_positions=6
)


def test_training_text_must_fit_the_position_table():
    text, long = Ragged.of([[7] * 5]), Ragged.of([[7] * 6])

    def data(source, target):
        return Seq2SeqData(Encoded({"source 0": source, "target": target}), View(), batch_tokens=100)

    table, sinusoids = (
        fresh_model(config, 9, 9, seed=0) for config in (LEARNED, TransformerConfig(preset="tiny"))
    )
    short = data(text, text)
    check_positions(table, short, short)
    check_positions(sinusoids, data(long, long))
    with pytest.raises(DataError, match=r"source text has up to 7 tokens with its end.*at most 5"):
        check_positions(table, data(long, text), short)
    with pytest.raises(DataError, match=r"target text.*at most 5"):
        check_positions(table, short, data(text, long))  # of dev alone


def inputs_of(store, text):
    """What a translation reads of a text, without a model."""
    for stage in StageGraph(text.encoded).stages:
        execute_stage(stage, store, reporter=NullReporter())
    tokenizers = {"source 0": store.fetch(text.tokenizers["source 0"])}
    return TranslateInputs(model=Path("unread"), corpus=store.fetch(text.corpus), tokenizers=tokenizers)


def test_sources_to_translate_are_cut_to_the_position_table(store, caplog):
    text = texts()
    settings = TranslateSettings(split="dev", decode=DECODE, streams={"source 0": "source 0"})
    inputs = inputs_of(store, text)
    cut, whole = (model_inputs(settings, inputs, room).sources[0] for room in (6, None))
    assert set(cut.lengths.tolist()) == {6}
    assert "dev, source 0: 8 of 8 sequences were cut" in caplog.text
    assert [row.tolist() for row in cut] == [[*row[:5].tolist(), 3] for row in whole]


def test_sources_to_translate_are_cut_as_those_of_training(store, caplog):
    text = texts(max_tokens=4)
    stage = pieces.translate("translation", text.corpus, text, "dev", DecodingSettings(decode=DECODE))
    assert stage.config["max_tokens"] == 4
    inputs = inputs_of(store, text)
    trained = read_encoded(store.fetch(text.encoded), "dev").stream("source 0")
    read = model_inputs(TranslateSettings.model_validate(stage.config), inputs, None).sources[0]
    assert [row.tolist() for row in read] == [[*row.tolist(), 3] for row in trained]
    assert "dev, source 0: 8 of 8 sequences were cut" in caplog.text
