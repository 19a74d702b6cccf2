"""Stages of masked language models and the exchange of their vocabulary, on a few constructed sentences."""

import json

import pytest
import torch
import transformers
from safetensors.numpy import load_file

from nlgraft.basics.errors import DataError, TrialFailed
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import StageGraph
from nlgraft.stages import masked_lm_graph as masked_pieces
from nlgraft.stages import metrics
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages.config_parts import MaskedLMConfig, VectorsConfig
from nlgraft.stages.masked_lm_graph import (
    BERT2BERT,
    TRAIN_MASKED,
    Bert2BertInputs,
    Bert2BertSettings,
    TrainMaskedSettings,
)
from nlgraft.stages.released_graph import checkpoint_settings
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
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import TokenizerConfig, WordTokenizerConfig
from nlgraft.training.masked_lm_training import read_masked_lm
from nlgraft.training.models import read_model
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig, TrainConfig
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.tensors import differing
from tests.unit.stages.runs import finish

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
    return pieces.corpus(name, ConlangConfig(corpus="conlang", task="monolingual", **sizes | settings))


def run(store, stage):
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
    record, at = run(store, exchanged_trial(method))
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
    record, _ = run(store, graph.result)
    assert "dev/mlm_loss_per_char" in record.metrics
    assert "test/loss" not in record.metrics


def test_an_exchange_changes_rows_and_biases_only(store):
    _, at = run(store, exchanged_trial())
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
        run(store, upstream)


def test_a_checkpoint_learns_its_missing_head(store, tmp_path):
    """Its tokenizer is copied, its body kept bit for bit, and the head drawn from the seed."""
    _, at = run(store, exchanged_trial())
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
    record, at = run(store, upstream)
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
    learned = pieces.tokenizer("upstream", config, {"upstream": corpus()}, special_tokens=("<mask>",))
    return pieces.encode("upstream", corpus(), {"source 0": learned}, max_tokens=60)


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
    record, at = run(store, own_masked_lm())
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
    _, at = run(store, both)
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
    new = pieces.tokenizer("new", TokenizerConfig(vocab_size=120), {"new": corpus("new", domain="b")})
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
        _, at = run(store, transfer)
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
        run(store, plans)
