"""Stages of masked language models and the exchange of their vocabulary, on a few constructed sentences."""

import json
import math

import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.numpy import load_file

from nlgraft.basics.errors import DataError, TrialFailed
from nlgraft.evaluation.artifact import read_metrics
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages import context_graph, metrics, text_graph
from nlgraft.stages import masked_lm_graph as masked_pieces
from nlgraft.stages.config_parts import ClassificationConfig, MaskedLMConfig, VectorsConfig
from nlgraft.stages.masked_lm_graph import (
    BERT2BERT,
    TRAIN_MASKED,
    Bert2BertInputs,
    Bert2BertSettings,
    TrainMaskedSettings,
)
from nlgraft.stages.metrics import CLASSIFICATION
from nlgraft.stages.released_graph import checkpoint_settings
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.stages.stage_kind import (
    EXCHANGE,
    PLAN,
    VECTORS,
    ExchangeInputs,
    NoSettings,
    PlanInputs,
    PlanSettings,
    TrainLanguageModelInputs,
    VectorInputs,
    VectorSettings,
)
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import TokenizerConfig, WordTokenizerConfig
from nlgraft.training.masked_lm_training import (
    LabelledData,
    evaluate_classifier,
    index_labels,
    read_classifier,
    read_masked_lm,
)
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.training.models import read_model
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig, TrainConfig
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.tensors import differing
from tests.unit.stages.runs import TRAIN as HEAD_TRAIN
from tests.unit.stages.runs import StopsAt, artifact, finish, run

TRAIN = TrainConfig(
    max_steps=4,
    batch_tokens=300,
    warmup_steps=1,
    peak_lr=0.01,
    eval_every_steps=2,
    average_last=1,
)
BERT = {"model": {"d_model": 16, "num_heads": 2, "ffn_dim": 32}, "upstream_tokenizer": {"vocab_size": 150}}
OURS = TransformerConfig(preset="tiny", d_model=16, ffn_dim=32, num_heads=2, dropout=0.0)
METRICS = {
    **metrics.MASKED,
    **metrics.MASKED_TEST,
    **metrics.masked_at((0, 2)),
    **metrics.TRAINING,
    **metrics.prefixed("upstream", {**metrics.MASKED, **metrics.MASKED_TEST, **metrics.TRAINING}),
    **metrics.EXCHANGE,
}


def corpus(name="upstream", **settings):
    sizes = {"train": 60, "dev": 8, "test": 6}
    return text_graph.corpus(name, ConlangConfig(corpus="conlang", task="monolingual", **sizes | settings))


def run_stage(store, stage):
    return finish(store, StageGraph(stage), metrics=METRICS)


def upstream_text(config):
    tokenizer = masked_pieces.upstream_tokenizer(config, corpus())
    return masked_pieces.masked_text("upstream", corpus(), tokenizer, max_tokens=50)


def exchanged_trial(method="avg", splits=("dev", "test"), **settings):
    """BERT from scratch, another vocabulary, further training."""
    config = MaskedLMConfig(**{"num_scoring_rounds": 2, **BERT, **settings})
    new_corpus = corpus("downstream", domain="b")
    old = upstream_text(config)
    tokenizer = masked_pieces.word_tokenizer("downstream", WordTokenizerConfig(vocab_size=170), new_corpus)
    new = masked_pieces.masked_text("downstream", new_corpus, tokenizer, max_tokens=50)
    upstream = masked_pieces.pretrained_masked_lm(config, TRAIN, old, max_tokens=50, seed=1)
    vectors = VECTORS.stage(
        "vectors",
        VectorSettings(kind="skipgram", vectors=VectorsConfig(epochs=1), streams={"encoder": "source 0"}),
        VectorInputs(encoded=new.encoded, tokenizers={"encoder": tokenizer}, model=upstream),
        seed=1,
    )
    plans = PLAN.stage(
        "plan",
        PlanSettings(method=method, cap=10),
        PlanInputs(
            model=upstream,
            old={"encoder": old.tokenizer},
            new={"encoder": tokenizer},
            new_vectors=vectors if method == "focus" else None,
        ),
        seed=1,
    )
    transfer = EXCHANGE.stage("transfer", NoSettings(), ExchangeInputs(model=upstream, plans=plans))
    settings = TrainMaskedSettings(
        train=TRAIN,
        masking=config.masking,
        scoring=config.scoring,
        report_steps=(0, 2),
    )
    trained = masked_pieces.continued_masked_lm("continued", transfer, new, settings, seed=1)
    return masked_pieces.masked_scores(trained, new, config, splits)


def state(directory):
    return read_masked_lm(directory).state_dict()


# --- masked language models -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["avg", "random", "focus"])
def test_a_vocabulary_is_exchanged_and_training_goes_on(store, method):
    """Losses before the training, after two steps and at its end; per token and per character."""
    record, at = run_stage(store, exchanged_trial(method))
    scores = record.metrics
    assert {"dev/loss", "dev/mlm_loss_per_char", "test/loss", "test/mlm_loss_per_char"} <= set(scores)
    assert {"upstream/dev_loss", "upstream/dev_mlm_loss_per_char", "upstream/parameters_total"} <= set(scores)
    segments = load_file(at("continued") / "segments-dev.safetensors")
    for name in ("loss.step_0", "mlm_loss_per_char.step_0", "loss", "mlm_loss_per_char"):
        nats, units = segments[name].sum(0)
        assert nats / units == pytest.approx(scores[f"dev/{name}"])
    assert segments["mlm_loss_per_char"][:, 1].sum() == scores["dev/mlm_chars"]
    curve = {point[0]: point[1] for point in record.curves["dev/mlm_loss_per_char"]}
    assert curve == pytest.approx(
        {
            0: scores["dev/mlm_loss_per_char.step_0"],
            2: scores["dev/mlm_loss_per_char.step_2"],
            4: scores["dev/mlm_loss_per_char"],
        }
    )
    assert scores["transfer/drawn"] == 0 or method != "avg"


def test_dev_alone_is_scored_by_the_training(store):
    graph = StageGraph(exchanged_trial(splits=("dev",)))
    assert graph.result.name == "continued"
    record, _ = run_stage(store, graph.result)
    assert "dev/mlm_loss_per_char" in record.metrics
    assert "test/loss" not in record.metrics


def test_an_exchange_changes_rows_and_biases_only(store):
    _, at = run_stage(store, exchanged_trial())
    before, after = state(at("upstream")), state(at("transfer"))
    changed = differing(before, after)
    assert changed == {
        "model.bert.embeddings.word_embeddings.weight",
        "model.cls.predictions.decoder.weight",
        "model.cls.predictions.bias",
        "model.cls.predictions.decoder.bias",
    }
    plan = TransferPlan.load(at("plan") / "plan-encoder")
    copied = plan.rows(Provenance.COPY)
    old = [plan.matrix[row].indices[0] for row in copied]
    assert len(copied) > 20
    assert all(torch.equal(after[name][copied], before[name][old]) for name in changed)
    report = json.loads((at("transfer") / "report.json").read_text())
    assert sum(report["encoder"]["rows"].values()) == len(plan)


def test_masking_is_part_of_what_trains_and_scoring_of_what_scores():
    def names(**settings):
        base, other = (StageGraph(exchanged_trial(**s)) for s in ({}, settings))
        return {stage.name for stage in other.stages if stage != base.find(stage.name)}

    assert names(masking={"replaced": 0.0}) >= {"upstream", "continued"}
    assert names(num_scoring_rounds=3) >= {"upstream", "continued", "scores"}
    assert not names(masking={"replaced": 0.0}) & {"upstream_encoded", "downstream_tokenizer"}


def test_text_beyond_the_positions_is_refused(store):
    config = MaskedLMConfig(**BERT)
    upstream = masked_pieces.pretrained_masked_lm(config, TRAIN, upstream_text(config), max_tokens=8, seed=1)
    with pytest.raises(TrialFailed, match=r"set data\.max_tokens to at most 8"):
        run_stage(store, upstream)


def test_a_checkpoint_learns_its_missing_head(store, tmp_path):
    """Its tokenizer is copied, its body kept bit for bit, and the head drawn from the seed."""
    _, at = run_stage(store, exchanged_trial())
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(at("upstream_tokenizer") / "tokenizer.json"),
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(tmp_path)
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "hidden_size": 8}
    body = transformers.BertModel(
        transformers.BertConfig(vocab_size=150, max_position_embeddings=52, **sizes), add_pooling_layer=False
    )
    body.save_pretrained(tmp_path)
    config = MaskedLMConfig(checkpoint=str(tmp_path), is_body_trained=False)
    upstream = masked_pieces.pretrained_masked_lm(config, TRAIN, upstream_text(config), max_tokens=50, seed=1)
    record, at = run_stage(store, upstream)
    learned = state(at("upstream"))
    for name, tensor in body.state_dict().items():
        assert torch.equal(learned[f"model.bert.{name}"], tensor), name
    drawn = json.loads((at("upstream") / "drawn.json").read_text())
    assert drawn
    assert all(name.startswith("cls.predictions.") for name in drawn)
    assert record.metrics["upstream/parameters_trained"] < record.metrics["upstream/parameters_total"]
    assert upstream.config["checkpoint"]["content"]["files"].keys() >= {"config.json", "model.safetensors"}
    with pytest.raises(DataError, match="a directory has no revisions"):
        checkpoint_settings(str(tmp_path), "v1")


def test_a_checkpoint_on_the_hub_is_known_by_its_revision():
    settings = [checkpoint_settings("owner/name", revision) for revision in (None, "main", "v1")]
    assert settings[0] == settings[1] != settings[2]
    assert settings[2].revision == "v1"


# --- our own encoder ------------------------------------------------------------------------------------


def shared_text(**tokenizer):
    config = TokenizerConfig(vocab_size=200, is_shared=True, **tokenizer)
    learned = text_graph.tokenizer("upstream", config, {"upstream": corpus()}, special_tokens=("<mask>",))
    return text_graph.encode("upstream", corpus(), {"source 0": learned}, max_tokens=60)


def own_masked_lm(norm="post"):
    text = shared_text()
    masking, scoring = MaskingConfig(unit="token"), MaskedScoringConfig(unit="token")
    return TRAIN_MASKED.stage(
        "masked_lm",
        TrainMaskedSettings(
            train=TRAIN,
            masking=masking,
            scoring=scoring,
            encoder=OURS.model_copy(update={"norm": norm}),
            metric_prefix="upstream",
        ),
        TrainLanguageModelInputs(
            encoded=text.encoded, corpus=text.corpus, tokenizer=text.tokenizers["source 0"]
        ),
        seed=1,
    )


def test_our_encoder_learns_from_single_masked_tokens(store):
    record, at = run_stage(store, own_masked_lm())
    first, *_, last = (point[1] for point in record.curves["upstream/dev_loss"])
    assert last < first
    assert record.metrics["upstream/dev_loss"] == last
    assert "upstream/dev_mlm_loss_per_char" not in record.metrics
    model = read_masked_lm(at("masked_lm"))
    assert sum(p.numel() for p in model.parameters()) == record.metrics["upstream/parameters_total"]
    assert not any("decoder" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_encoder_decoder_begins_with_the_encoder_twice(store, norm):
    masked = own_masked_lm()
    config = OURS.model_copy(update={"norm": "post"})
    both = BERT2BERT.stage("both", Bert2BertSettings(model=config), Bert2BertInputs(masked_lm=masked), seed=2)
    _, at = run_stage(store, both)
    inner, outer = read_masked_lm(at("masked_lm")).model.state_dict(), read_model(at("both")).state_dict()
    for name, tensor in inner.items():
        if name.startswith(("encoder.", "source_")):
            assert torch.equal(outer[name], tensor)
            copy = name.replace("encoder", "decoder", 1).replace("source_", "target_", 1)
            assert torch.equal(outer[copy], tensor)
    assert {name for name in outer if "cross" in name}


def test_both_tables_of_an_encoder_decoder_are_exchanged(store):
    both = BERT2BERT.stage(
        "both", Bert2BertSettings(model=OURS), Bert2BertInputs(masked_lm=own_masked_lm()), seed=2
    )
    old = shared_text().tokenizers["source 0"]
    new = text_graph.tokenizer("new", TokenizerConfig(vocab_size=120), {"new": corpus("new", domain="b")})
    sides = ("encoder", "decoder")
    for exchanged in (sides, sides[1:]):
        plans = PLAN.stage(
            f"plan_{len(exchanged)}",
            PlanSettings(method="avg", cap=10),
            PlanInputs(
                model=both,
                old=dict.fromkeys(exchanged, old),
                new=dict.fromkeys(exchanged, new),
            ),
            seed=1,
        )
        transfer = EXCHANGE.stage("transfer", NoSettings(), ExchangeInputs(model=both, plans=plans))
        _, at = run_stage(store, transfer)
        before, after = (read_model(at(name)).state_dict() for name in ("both", "transfer"))
        gone = (
            "target_embedding",
            "output_projection",
            *(["source_embedding"] if exchanged == sides else []),
        )
        assert all(name.startswith(gone) for name in differing(before, after))
        assert len(after["target_embedding.table.weight"]) == 120
        assert len(after["source_embedding.table.weight"]) == (120 if exchanged == sides else 200)


def test_a_bare_encoder_has_no_vocabulary_to_exchange(store):
    masked = own_masked_lm()
    old = shared_text().tokenizers["source 0"]
    plans = PLAN.stage(
        "plan",
        PlanSettings(method="avg"),
        PlanInputs(model=masked, old={"encoder": old}, new={"encoder": old}),
        seed=1,
    )
    with pytest.raises(TrialFailed, match="bare encoder"):
        run_stage(store, plans)


# Classifiers: scores, statistics and artifacts of small ones.


PRETRAINING = TrainConfig(max_steps=2, batch_tokens=300, eval_every_steps=2)
SMALL_ENCODER = TransformerConfig(preset="tiny", d_model=16, ffn_dim=24, num_heads=2, dropout=0.0)
SMALL_BERT = {"d_model": 16, "num_heads": 2, "ffn_dim": 24}


def classified(
    kind="bert",
    task="classification",
    num_train=90,
    max_tokens=40,
    splits=("dev", "test"),
    train=HEAD_TRAIN,
    **classifier,
):
    """A masked language model, pretrained for two steps on the lines that it then classifies."""
    corpus = text_graph.corpus(
        "lines", ConlangConfig(corpus="conlang", task=task, train=num_train, dev=20, test=15)
    )
    tokenizer = masked_pieces.word_tokenizer("lines", WordTokenizerConfig(vocab_size=150), corpus)
    text = masked_pieces.masked_text("lines", corpus, tokenizer, max_tokens=max_tokens)
    settings = TrainMaskedSettings(
        train=PRETRAINING,
        masking=MaskingConfig(),
        scoring=MaskedScoringConfig(),
        bert=SMALL_BERT if kind == "bert" else None,
        encoder=SMALL_ENCODER if kind == "ours" else None,
        max_tokens=max_tokens if kind == "bert" else None,
        metric_prefix="upstream",
    )
    inputs = TrainLanguageModelInputs(**text.inputs)
    body = TRAIN_MASKED.stage("upstream", settings, inputs, seed=1)
    config = ClassificationConfig(classifier=classifier, train=train)
    trained = masked_pieces.trained_classifier("trained", body, text, config, seed=1)
    inputs = masked_pieces.ScoreClassifierInputs(classifier=trained, body=body, **text.inputs)
    return StageGraph(masked_pieces.classifier_scores(inputs, splits))


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
    text = masked_pieces.MaskedText(*(stages[name] for name in names))
    encoder = HuggingFaceEncoderConfig(checkpoint=str(tmp_path))
    body = context_graph.released_encoder("released", encoder)
    config = ClassificationConfig(train=HEAD_TRAIN)
    trained = masked_pieces.trained_classifier("trained", body, text, config, seed=1)
    record = run(store, StageGraph(trained))
    assert record.metrics["dev/loss.class"] == pytest.approx(run(store, graph).metrics["dev/loss.class"])


def test_a_stopped_training_resumes_bit_for_bit(tmp_path):
    graph = classified(splits=("dev",), train={**HEAD_TRAIN, "eval_every_steps": 1})
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
    train = {**HEAD_TRAIN, "max_steps": 8, "peak_lr": 0.3, "eval_every_steps": 2}
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
    train = {
        **HEAD_TRAIN,
        "max_steps": 300,
        "batch_tokens": 1000,
        "warmup_steps": 10,
        "eval_every_steps": 100,
    }
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
