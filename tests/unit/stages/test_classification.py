"""Classification of sequences as stages: constructed sentences and their sentiment."""

import math

import pytest
import torch
from pydantic import ValidationError
from safetensors.numpy import load_file

from nlgraft.basics.errors import TrialFailed
from nlgraft.evaluation.artifact import read_metrics
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages import context_graph, masked_lm_graph
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages.config_parts import ClassificationConfig
from nlgraft.stages.masked_lm_graph import TRAIN_MASKED, TrainMaskedSettings
from nlgraft.stages.metrics import CLASSIFICATION
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.stages.stage_kind import TrainLanguageModelInputs
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.training.masked_lm_training import (
    LabelledData,
    evaluate_classifier,
    index_labels,
    read_classifier,
    read_masked_lm,
)
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig, TrainConfig
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.tensors import differing
from tests.unit.stages.runs import TRAIN, StopsAt, artifact, run

PRETRAINING = TrainConfig(max_steps=2, batch_tokens=300, eval_every_steps=2)
OURS = TransformerConfig(preset="tiny", d_model=16, ffn_dim=24, num_heads=2, dropout=0.0)
BERT = {"d_model": 16, "num_heads": 2, "ffn_dim": 24}


def classified(
    kind="bert",
    task="classification",
    num_train=90,
    max_tokens=40,
    splits=("dev", "test"),
    train=TRAIN,
    **classifier,
):
    """A masked language model, pretrained for two steps on the lines that it then classifies."""
    corpus = pieces.corpus(
        "lines", ConlangConfig(corpus="conlang", task=task, train=num_train, dev=20, test=15)
    )
    tokenizer = masked_lm_graph.word_tokenizer("lines", WordTokenizerConfig(vocab_size=150), corpus)
    text = masked_lm_graph.masked_text("lines", corpus, tokenizer, max_tokens=max_tokens)
    settings = TrainMaskedSettings(
        train=PRETRAINING,
        masking=MaskingConfig(),
        scoring=MaskedScoringConfig(),
        bert=BERT if kind == "bert" else None,
        encoder=OURS if kind == "ours" else None,
        max_tokens=max_tokens if kind == "bert" else None,
        metric_prefix="upstream",
    )
    inputs = TrainLanguageModelInputs(**text.inputs)
    body = TRAIN_MASKED.stage("upstream", settings, inputs, seed=1)
    config = ClassificationConfig(classifier=classifier, train=train)
    trained = masked_lm_graph.trained_classifier("trained", body, text, config, seed=1)
    inputs = masked_lm_graph.ScoreClassifierInputs(classifier=trained, body=body, **text.inputs)
    return StageGraph(masked_lm_graph.classifier_scores(inputs, splits))


def trained(store, graph):
    """The classifier and its labels."""
    return read_classifier(artifact(store, graph, "trained"), artifact(store, graph, "upstream"))


@pytest.mark.parametrize("kind", ["bert", "ours"])
def test_scores_by_hand(store, kind):
    """Those of the artifact's model, line by line."""
    graph = classified(kind, pooling="mean" if kind == "ours" else "first")
    record = run(store, graph)
    declared = CLASSIFICATION
    assert set(declared) <= set(record.metrics)
    model, labels = trained(store, graph)
    assert labels == ["negative", "neutral", "positive"]
    corpus = read_corpus(artifact(store, graph, "lines_corpus") / "test")
    lines = read_encoded(artifact(store, graph, "lines_encoded"), "test").stream(TEXT)
    ids = MaskingIds.of(load_vocabulary(artifact(store, graph, "lines_tokenizer")))
    right, nats, confidences = [], [], []
    for row, label in zip(lines, corpus.labels, strict=True):
        tokens = torch.tensor([[ids.begin, *row.tolist(), ids.end]])
        with torch.inference_mode():
            states = body_states(model, tokens)
            pooled = states.mean(1) if kind == "ours" else states[:, 0]
            probabilities = model.head(pooled).double().softmax(-1)[0].tolist()
        right.append(labels[probabilities.index(max(probabilities))] == label)
        nats.append(-math.log(probabilities[labels.index(label)]))
        confidences.append(max(probabilities))
    assert record.metrics["test/accuracy"] == pytest.approx(100 * sum(right) / 15)
    assert record.metrics["test/loss.class"] == pytest.approx(sum(nats) / 15, abs=1e-5)
    bins = [min(int(confidence * 20), 19) for confidence in confidences]
    gaps = [
        abs(sum(r - c for r, c, b in zip(right, confidences, bins, strict=True) if b == number)) / 15
        for number in range(20)
    ]
    assert record.metrics["test/ece"] == pytest.approx(100 * sum(gaps), abs=1e-3)
    segments = load_file(artifact(store, graph, "scores") / "segments-test.safetensors")
    assert segments["accuracy"][:, 0].astype(bool).tolist() == right
    assert segments["macro_f1"].shape == (15, 9)


def body_states(model, tokens):
    """States of whole lines, from the parts of the body."""
    body = model.body.model
    if hasattr(body, "base_model"):
        return body.base_model(input_ids=tokens).last_hidden_state
    return body.encode([Tokens(tokens, torch.ones_like(tokens, dtype=torch.bool))]).bank[0].states


@pytest.mark.parametrize("kind", ["bert", "ours"])
def test_a_frozen_body_stays_as_it_was_and_is_not_written_again(store, kind):
    frozen, finetuned = (
        classified(kind, splits=("dev",), is_body_trained=is_trained, dropout=0.0)
        for is_trained in (False, True)
    )
    records = [run(store, graph) for graph in (frozen, finetuned)]
    before = read_masked_lm(artifact(store, frozen, "upstream")).state_dict()
    for graph, is_trained in ((frozen, False), (finetuned, True)):
        assert (artifact(store, graph, "trained") / "body").is_dir() == is_trained
        after = trained(store, graph)[0].body.state_dict()
        assert bool(differing(before, after)) == is_trained
    head = 16 * 16 + 16 + 16 * 3 + 3
    assert records[0].metrics["parameters/trained"] == head
    assert records[1].metrics["parameters/trained"] > head
    linear = run(store, classified(kind, splits=("dev",), is_body_trained=False, has_hidden_layer=False))
    assert linear.metrics["parameters/trained"] == 16 * 3 + 3


def test_the_prediction_head_of_a_finetuned_body_is_not_trained(store):
    """Nothing that the classes do not depend on counts as trained, which two workers would wait for."""
    graph = classified("bert", splits=("dev",))
    record = run(store, graph)
    body = read_masked_lm(artifact(store, graph, "upstream")).model
    expected = sum(p.numel() for p in body.base_model.parameters()) + 16 * 16 + 16 + 16 * 3 + 3
    assert record.metrics["parameters/trained"] == expected


def test_a_released_encoder_without_prediction_head_is_a_body(store, tmp_path):
    """As the store keeps it for contexts: the base model alone."""
    graph = classified("bert", splits=("dev",))
    run(store, graph)
    released = read_masked_lm(artifact(store, graph, "upstream")).model.base_model
    released.save_pretrained(tmp_path)
    stages = {stage.name: stage for stage in graph.stages}
    names = ("lines_corpus", "lines_tokenizer", "lines_encoded")
    text = masked_lm_graph.MaskedText(*(stages[name] for name in names))
    encoder = HuggingFaceEncoderConfig(checkpoint=str(tmp_path))
    body = context_graph.released_encoder("released", encoder)
    config = ClassificationConfig(train=TRAIN)
    trained = masked_lm_graph.trained_classifier("trained", body, text, config, seed=1)
    record = run(store, StageGraph(trained))
    assert record.metrics["dev/loss.class"] == pytest.approx(run(store, graph).metrics["dev/loss.class"])


def test_a_stopped_training_resumes_bit_for_bit(tmp_path):
    graph = classified(splits=("dev",), train={**TRAIN, "eval_every_steps": 1})
    heads = []
    for name in ("whole", "stopped"):
        store = ArtifactStore.open(tmp_path / name)
        if name == "stopped":
            assert run(store, graph, StopsAt("trained", 4)).state == "stopped"
        run(store, graph)
        heads.append(trained(store, graph)[0].state_dict())
    assert not differing(*heads)


@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"best_metric": "dev/accuracy", "is_evaluated_at_start": True},
        {"best_metric": "dev/accuracy", "peak_lr": 0.003},
        {"average_last": 1},
        {"average_last": 2},
    ],
    ids=["best loss", "best accuracy", "equal accuracies", "last", "averaged"],
)
@pytest.mark.parametrize("is_stopped", [False, True])
def test_dev_scores_are_those_of_the_kept_weights(choice, is_stopped, tmp_path):
    """Whichever evaluation chose them, and whichever process made it."""
    store = ArtifactStore.open(tmp_path)
    train = {**TRAIN, "max_steps": 8, "peak_lr": 0.3, "eval_every_steps": 2}
    graph = classified(splits=("dev",), train=train | choice)
    if is_stopped:
        assert run(store, graph, StopsAt("trained", 6)).state == "stopped"
    run(store, graph)
    model, labels = trained(store, graph)
    gold = read_corpus(artifact(store, graph, "lines_corpus") / "dev").labels
    lines = read_encoded(artifact(store, graph, "lines_encoded"), "dev").stream(TEXT)
    ids = MaskingIds.of(load_vocabulary(artifact(store, graph, "lines_tokenizer")))
    data = LabelledData(lines, index_labels(gold, labels, "dev"), ids, batch_tokens=4096)
    expected = evaluate_classifier(model, data, len(labels))
    metrics = read_metrics(artifact(store, graph, "trained"))
    for name, score in expected.scores.items():
        assert metrics[f"dev/{name}"]["value"] == pytest.approx(score.value, abs=1e-4), name


def test_it_learns(store):
    """Below the loss of the classes' frequencies, and more often right than their majority."""
    train = {**TRAIN, "max_steps": 300, "batch_tokens": 1000, "warmup_steps": 10, "eval_every_steps": 100}
    graph = classified("ours", num_train=1500, splits=("dev",), train=train, pooling="mean")
    record = run(store, graph)
    labels = read_corpus(artifact(store, graph, "lines_corpus") / "dev").labels
    shares = [labels.count(label) / len(labels) for label in set(labels)]
    entropy = -sum(share * math.log(share) for share in shares)
    assert record.metrics["dev/loss.class"] < 0.9 * entropy
    assert record.metrics["dev/accuracy"] > 100 * max(shares)


def test_what_cannot_be_classified_is_refused(store):
    with pytest.raises(TrialFailed, match="no text of label; the corpus has: source 0"):
        run(store, classified(task="monolingual"))
    with pytest.raises(TrialFailed, match="train has one label"):
        run(store, classified(num_train=1))


def test_settings_are_checked_when_the_study_is_read():
    with pytest.raises(ValidationError, match="measured: dev/accuracy, dev/macro_f1"):
        ClassificationConfig(train={"best_metric": "dev/bleu"})
