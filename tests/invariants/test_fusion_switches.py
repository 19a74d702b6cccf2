"""Invariants F28 and F36: tying, and the effect of every switch."""

from contextlib import suppress

import pytest
import torch

from nlgraft.nn.context_config import (
    OwnEmbeddingsConfig,
)
from nlgraft.nn.model_config import (
    ArchitectureConfig,
    FineEncoderConfig,
    FusionConfig,
    TransformerConfig,
)
from tests.contract.effects import changed, leaves, others_of
from tests.tiny_models import (
    BI,
    CASES,
    SIZES,
    UNI,
    VOCAB,
    Case,
    batch_of,
    build,
    checkpoint,
    examples,
    logits_of,
)


def storages(model):
    tables = (
        model.source_embedding.table.weight,
        model.target_embedding.table.weight,
        model.output_projection.weight,
    )
    return [table.data_ptr() for table in tables]


def test_tying_shares_storage_and_counts():
    """Invariant F28: each tie drops V x d parameters exactly."""
    models = {
        tying: build(Case(TransformerConfig(**SIZES, tying=tying), {}))
        for tying in ("none", "decoder", "all")
    }
    counts = {tying: sum(p.numel() for p in model.parameters()) for tying, model in models.items()}
    assert counts["none"] - counts["decoder"] == counts["decoder"] - counts["all"] == VOCAB * 16
    assert {tying: len(set(storages(model))) for tying, model in models.items()} == {
        "none": 3,
        "decoder": 2,
        "all": 1,
    }
    elmo, shared = build("src_elmo"), build("src_elmo+shdemb")
    assert shared.output_projection.weight is shared.target_embedding.table.weight
    assert (
        sum(p.numel() for p in elmo.parameters()) - sum(p.numel() for p in shared.parameters()) == VOCAB * 16
    )


TWO = {"num_sources": 2, "fine_encoder": {"num_layers": 1}, "segments": "halves"}


def fine(**settings):
    return {"fine_encoder": {"num_layers": 2, **settings}}


def context(encoder=UNI, **settings):
    return {"source_context": "lm", "tying": "none", "contexts": {"lm": {"encoder": encoder, **settings}}}


def fused(**settings):
    name = {"contexts": {"lm": {"encoder": UNI}}}
    return {**name, "fusion": {"contexts": ("lm",), **settings}}


def pooled(**settings):
    return context(pooling=settings)


BASES = (
    {**TWO, **fine()},
    {"source_positions": "learned"},
    fused(),
    fused(merge="dropnet"),
    context(is_frozen=False),
    context(BI, is_frozen=False),
    context(),
    pooled(kind="mean"),
    pooled(kind="scalar_mix"),
    pooled(kind="groups", group_size=1),
)
"""Models in which all settings are read, each in one of them at least."""
WIRING = ("num_sources", "contexts", "fusion.contexts", "source_context", "target_context")
"""What a base is, with the vocabulary and the kind of a language model."""


def settings():
    """Every setting of each base: base, path, annotation, value; constants of fingerprints are none."""
    for base in BASES:
        config = TransformerConfig(**SIZES, **base)
        for path, annotation, value in leaves(config):
            is_constant = not [*others_of(annotation, value)]
            if not is_constant and path not in WIRING and not path.endswith(("vocab_size", "encoder.kind")):
                yield config, path, annotation, value


def switches():
    """Pairs of models that differ in one setting, by its name; language models apart by kind."""
    pairs = {}
    for config, path, annotation, value in settings():
        kinds = [each.encoder.kind for each in config.contexts.values()]
        name = f"{path} of {kinds[0]}" if ".encoder." in path else path
        for other in others_of(annotation, value):
            with suppress(ValueError):  # not all values are allowed
                changed_config = TransformerConfig(**changed(config.model_dump(mode="json"), path, other))
                pairs.setdefault(name, []).append((config, changed_config))
    return pairs


SWITCHES = switches()


def differs(first, second):
    """Parameters, what is trained and how fast, or logits in either mode differ."""
    shapes = [{n: (p.shape, p.requires_grad) for n, p in m.named_parameters()} for m in (first, second)]
    if shapes[0] != shapes[1] or first.lr_multipliers() != second.lr_multipliers():
        return True
    batch = batch_of(examples(first))
    for mode in (False, True):
        logits = []
        for model in (first, second):
            model.train(mode)
            torch.manual_seed(3)
            logits.append(logits_of(model, batch))
        if not torch.equal(logits[0], logits[1]):
            return True
    return False


@pytest.mark.parametrize("switch", SWITCHES)
def test_no_switch_does_nothing(switch):
    """Invariant F36: every switch changes parameters or logits."""
    assert any(differs(*(build(Case(config, {})) for config in pair)) for pair in SWITCHES[switch])


UNREAD_SWITCHES = {
    "max_positions": ({}, {"max_positions": 20}),
    "position_layout": (
        {"source_positions": "learned", "target_positions": "none"},
        {"position_layout": "marian"},
    ),
    "fine_encoder.cross_memory": (TWO | fine(num_layers=0), fine(num_layers=0, cross_memory="none")),
    "fine_encoder.norm": (
        TWO | fine(num_layers=0, ffn_adapter="top"),
        fine(num_layers=0, ffn_adapter="top", norm="pre"),
    ),
    "fine_encoder.activation": (TWO | fine(num_layers=0), fine(num_layers=0, activation="gelu")),
    "fine_encoder.dropout": (TWO | fine(num_layers=0), fine(num_layers=0, dropout=0.5)),
    "fine_encoder.init": (TWO | fine(num_layers=0), fine(num_layers=0, init="zero")),
}
"""Settings where the conditions under which they are read do not hold."""


@pytest.mark.parametrize("switch", list(UNREAD_SWITCHES))
def test_a_switch_that_is_said_to_be_unread_does_nothing(switch):
    """Graphs reset such settings to their defaults, which may not change the model."""
    base, change = UNREAD_SWITCHES[switch]
    without, with_it = ({**SIZES, **base, **changes} for changes in ({}, change))
    assert not differs(*(build(Case(TransformerConfig(**settings), {})) for settings in (without, with_it)))


def test_every_conditional_switch_is_tested():
    assert set(UNREAD_SWITCHES) == {
        *ArchitectureConfig.READ_WHEN,
        *(f"fine_encoder.{name}" for name in FineEncoderConfig.READ_WHEN),
    }


def test_every_switch_is_tested():
    """Invariant F36: a new field of the configuration cannot be forgotten here."""
    assert {path for _, path, *_ in settings()} == {name.partition(" ")[0] for name in SWITCHES}


def test_presets_differ_from_one_another():
    """Invariant F36 for whole families."""
    configs = [CASES[family]().config.model_dump_json() for family in CASES]
    assert len(set(configs)) == len(configs)


IN_TARGET = {"target_context": "lm", "source_context": None}
EXCLUSIVE = {
    ("target_context", "bi-directional"): context(BI) | IN_TARGET,
    ("target_context", "hugging_face"): context(checkpoint("bert")) | IN_TARGET,
    ("target_context", "pooling.kind"): pooled(kind="dynamic_cls") | IN_TARGET,
    ("else", "lm"): {**context(BI), "source_context": "else"},
    ("cross_attention", "fusion.side"): {
        **fused(side="both"),
        "num_sources": 2,
        "cross_attention": "serial",
    },
    ("is_frozen", "lr_multiplier"): context(lr_multiplier=0.1),
    ("has_frozen_dropout", "is_frozen"): context(is_frozen=False, has_frozen_dropout=True),
    ("dropnet", "merge"): fused(dropnet_probability=0.5),
    ("index", "kind"): pooled(kind="mean", index=3),
    ("weight_dropout", "kind"): pooled(kind="mean", weight_dropout=0.1),
    ("is_centred", "kind"): pooled(kind="output", is_centred=True),
    ("is_centred", "is_frozen"): context(is_frozen=False, pooling={"kind": "scalar_mix", "is_centred": True}),
    ("num_last", "kind"): pooled(kind="index", num_last=1),
    ("group_size", "kind"): pooled(kind="mean", group_size=1),
    ("pooling, is_frozen", "own_embeddings"): context(
        OwnEmbeddingsConfig(width=8), pooling={"kind": "mean"}, is_frozen=False
    ),
    ("num_heads", "d_model"): {"num_heads": 3},
    ("one context twice", "contexts"): {"fusion": {"contexts": ("a", "a")}},
}


@pytest.mark.parametrize("names", list(EXCLUSIVE), ids=" x ".join)
def test_contradictions_are_refused(names):
    """Invariant F28: the message names both settings."""
    with pytest.raises(ValueError) as caught:
        TransformerConfig(**{**SIZES, **EXCLUSIVE[names]})
    assert all(name in str(caught.value) for name in names)


def test_all_contradictions_come_at_once():
    with pytest.raises(ValueError) as caught:
        TransformerConfig(**{**SIZES, **context(BI), **IN_TARGET, "num_heads": 3})
    assert "target_context" in str(caught.value)
    assert "num_heads" in str(caught.value)


@pytest.mark.parametrize("size", ["tiny", "small", "base", "big"])
def test_given_sizes_win_over_the_preset(size):
    config = TransformerConfig(preset=size, ffn_dim=8)
    assert config.ffn_dim == 8
    assert TransformerConfig(**config.model_dump()) == config
    assert config.d_model == {"tiny": 128, "small": 256, "base": 512, "big": 1024}[size]


def test_configuration_survives_json():
    for family in CASES:
        config = CASES[family]().config
        assert TransformerConfig.model_validate_json(config.model_dump_json()) == config
    assert FusionConfig().merge == "sum"
