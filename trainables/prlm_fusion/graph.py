"""The stages of a trial: corpora, tokenizers, pretrained models and their states, training, scores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.nn.context_config import (
    ContextConfig,
    HuggingFaceEncoderConfig,
    OwnEmbeddingsConfig,
    PoolingConfig,
)
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.stages import context_graph, seq2seq_graph, text_graph
from nlgraft.stages.masked_lm_graph import MaskedText, masked_text, word_tokenizer
from nlgraft.stages.seq2seq_graph import ContextStages, DecodingSettings, TrainSettings
from nlgraft.stages.stage_kind import Inputs, StageKind, T, TrainingSettings
from nlgraft.stages.text_graph import EncodedText
from nlgraft.text.files import expand
from nlgraft.training.train_config import (
    ALL_LEARNED,
    LearnedParameters,
    MaskingConfig,
    TrainConfig,
    View,
)
from trainables.prlm_fusion.config import (
    Config,
    DistilbertPrlm,
    ElectraPrlm,
    Layers,
    PretrainedPrlm,
    ReleasedPrlm,
)

# The stages that pretrain the language models of a study. Without torch.


def _upstream_text(config: Config) -> MaskedText | None:
    """Encode the text of the models that the study pretrains, in the vocabulary that they share."""
    pretraining = config.pretraining
    if config.data.upstream is None:
        return None
    corpus = text_graph.corpus("upstream", config.data.upstream)
    tokenizer = word_tokenizer("upstream", pretraining.tokenizer, corpus)
    return masked_text("upstream", corpus, tokenizer, max_tokens=pretraining.max_tokens)


def pretrained(
    config: Config,
    name: str,
    text: MaskedText | None,
    seed: int,
) -> Stage:
    """Pretrain one of the study's models, after its teacher if it has one; all share text and vocabulary."""
    described, pretraining = config.prlms[name], config.pretraining
    assert not isinstance(described, ReleasedPrlm)
    assert text is not None, "refused by the config"
    is_distilled = isinstance(described, DistilbertPrlm)
    settings = PretrainSettings(
        # the teacher is an input; its name must not change the fingerprint
        prlm=described.model_copy(update={"teacher": "teacher"}) if is_distilled else described,
        train=pretraining.train,
        masking=None if described.kind == "gpt" else pretraining.masking,
        max_tokens=pretraining.max_tokens,
    )
    teacher = pretrained(config, described.teacher, text, seed) if is_distilled else None
    inputs = PretrainInputs(
        corpus=text.corpus, encoded=text.encoded, tokenizer=text.tokenizer, teacher=teacher
    )
    return PRETRAIN.stage(f"{name}_pretrained", settings, inputs, seed=pretraining.seed_of(seed))


SOURCE = "source 0"
FIRST_STAGE = "first_stage"
PRETRAINED = r"^(contexts\.[^.]+|source_embedding\.context)\.encoder\."
"""Parameters of pretrained models, in branches or in place of source embeddings."""


@dataclass(frozen=True)
class Prlm:
    """A pretrained model of a trial.

    Attributes:
        encoder: Its weights, pretrained or random.
        tokenizer: Its tokenizer.
    """

    encoder: Stage
    tokenizer: Stage


def stage_graph(
    config: Config,
    *,
    seed: int,
    splits: tuple[str, ...],
) -> StageGraph:
    """Build the stage graph of a trial.

    Cells share the corpus, the tokenizers, the pretrained models and, if they read the same layers, the
    states.
    """
    corpus = text_graph.corpus("downstream", config.data.downstream)
    upstream = _upstream_text(config)
    # Own embeddings stand in for the models, which are then not needed at all.
    used = () if config.fusion.weights == "own" else config.used
    prlms = {name: _prlm(config, name, upstream, seed) for name in used}
    trained, text, view = _trained(config, corpus, prlms, seed)
    decoding = DecodingSettings(decode=config.decode, view=view, is_calibrated=config.score.is_calibrated)
    count = config.num_extracted_sentences
    return StageGraph(
        seq2seq_graph.scores(trained, text, splits, decoding, config.score, num_extracted_sentences=count)
    )


def _trained(
    config: Config,
    corpus: Stage,
    prlms: Mapping[str, Prlm],
    seed: int,
    name: str = "trained",
) -> tuple[Stage, EncodedText, View]:
    """Train the model, after its first stage if it has one; return it with what it reads, and how."""
    model = transformer(config)
    is_direct = model.source_context is not None
    sides = {name: context_graph.context_side(name) for name in prlms}
    view = View(sources=tuple(sides.values())) if is_direct else View(contexts=sides)
    text = _text(config, corpus, prlms, is_direct=is_direct)
    states = _states(config, model, corpus, prlms) if config.fusion.is_stored else {}
    start = None
    if config.fusion.first_stage is not None and prlms:
        # The same with frozen models.
        frozen = {"is_frozen": True, "lr_multiplier": 1.0, "part": None, "first_stage": None}
        fusion = config.fusion.model_copy(update=frozen)
        first = config.model_copy(update={"train": config.fusion.first_stage, "fusion": fusion})
        start, *_ = _trained(first, corpus, prlms, seed, FIRST_STAGE)
    part = None if config.fusion.is_frozen or not prlms else config.fusion.part
    settings = TrainSettings(
        train=config.train,
        model=model,
        learned=LearnedParameters(part=part, part_of=PRETRAINED) if part else ALL_LEARNED,
        view=view,
        sampling_alpha=config.tokenizer.sampling_alpha,
        metric_prefix=name if name == FIRST_STAGE else "",
    )
    contexts = ContextStages({name: prlm.encoder for name, prlm in prlms.items()}, states)
    trained = seq2seq_graph.train(name, text, settings, seed=seed, start=start, contexts=contexts)
    return trained, text, view


def _prlm(
    config: Config,
    name: str,
    text: MaskedText | None,
    seed: int,
) -> Prlm:
    described = config.prlms[name]
    if isinstance(described, ReleasedPrlm):
        encoder_config = HuggingFaceEncoderConfig(
            checkpoint=described.checkpoint, revision=described.revision
        )
        prlm = Prlm(
            context_graph.released_encoder(name, encoder_config),
            context_graph.released_tokenizer(name, encoder_config),
        )
    else:
        # Saved with its tokenizer, as a released model is.
        encoder = pretrained(config, name, text, seed)
        prlm = Prlm(encoder, encoder)
    if config.fusion.weights == "pretrained":
        return prlm
    drawn = context_graph.random_encoder(name, prlm.encoder, seed=config.pretraining.seed_of(seed))
    return replace(prlm, encoder=drawn)


def _text(
    config: Config,
    corpus: Stage,
    prlms: Mapping[str, Prlm],
    *,
    is_direct: bool,
) -> EncodedText:
    """Encode the task's text, including the input of the pretrained models unless their states are stored."""
    tokenizers = text_graph.tokenizers("downstream", config.tokenizer, {"downstream": corpus})
    streams = {context_graph.context_side(name).stream: prlm.tokenizer for name, prlm in prlms.items()}
    text = text_graph.encode(
        "_".join(("downstream", *prlms)),
        corpus,
        tokenizers | streams,
        streams=dict.fromkeys(streams, SOURCE),
        max_tokens=config.data.max_tokens,
    )
    if is_direct or not config.fusion.is_stored:
        return text
    # Trainings with other stored states then share this encoding; translation encodes for itself.
    plain = text_graph.encode("downstream", corpus, tokenizers, max_tokens=config.data.max_tokens)
    return replace(text, encoded=plain.encoded)


def _states(
    config: Config,
    model: TransformerConfig,
    corpus: Stage,
    prlms: Mapping[str, Prlm],
) -> dict[str, Stage]:
    """Compute the states of frozen models, one stage each, so that cells with other models share them."""
    assert config.fusion.states != "live"
    states = {}
    for name, prlm in prlms.items():
        side = context_graph.context_side(name)
        text = text_graph.encode(name, corpus, {side.stream: prlm.tokenizer}, streams={side.stream: SOURCE})
        states[side.stream] = context_graph.frozen_states(
            f"{name}_states",
            text,
            model.contexts[name],
            side,
            prlm.encoder,
            precision=config.fusion.states,
        )
    return states


def transformer(config: Config) -> TransformerConfig:
    """Describe the model with its branches, or with a pretrained model as its source embedding.

    Raises:
        DataError: The width of a released model cannot be read.
        ValidationError: The fusion does not fit the model.
    """
    fusion = config.fusion
    if not config.used:
        return config.model.transformer()
    contexts = {name: _context(config, name) for name in config.used}
    changes: dict[str, Any] = {"contexts": contexts}
    if fusion.merge == "direct":
        changes |= {"source_context": config.used[0], "has_source_scale": False}
        if config.model.tying == "all":  # there is no source table to tie
            changes["tying"] = "decoder"
    else:
        changes["fusion"] = fusion.branches
    return config.model.transformer(**changes)


def _context(config: Config, name: str) -> ContextConfig:
    fusion = config.fusion
    if fusion.weights == "own":
        embeddings = OwnEmbeddingsConfig(width=_width(config, name))
        return ContextConfig(encoder=embeddings, dropout=fusion.dropout)
    return ContextConfig(
        encoder=HuggingFaceEncoderConfig(),
        pooling=pooling(fusion.layers, fusion.group_size),
        has_mlp=fusion.merge == "direct" and fusion.has_mlp,
        is_frozen=fusion.is_frozen,
        lr_multiplier=1.0 if fusion.is_frozen else fusion.lr_multiplier,
        has_frozen_dropout=fusion.is_frozen and fusion.has_frozen_dropout,
        max_tokens=None if fusion.merge == "direct" else _longest_input(config, name),
        dropout=fusion.dropout,
    )


def _longest_input(config: Config, name: str) -> int | None:
    """Return the maximum input length of a pretrained model; the study's own ones have few positions."""
    limit = config.fusion.max_tokens
    # How many positions a released one has is seen when it is loaded.
    if isinstance(config.prlms[name], ReleasedPrlm):
        return limit
    positions = config.pretraining.max_tokens + 2
    return positions if limit is None else min(limit, positions)


def pooling(layers: Layers, group_size: int) -> PoolingConfig:
    """Translate the choice of layers into a pooling."""
    if isinstance(layers, int):
        return PoolingConfig(kind="index", index=layers)
    if layers == "groups":
        return PoolingConfig(kind=layers, group_size=group_size)
    if layers.startswith("mean_last_"):
        return PoolingConfig(kind="mean", num_last=int(layers.removeprefix("mean_last_")))
    return PoolingConfig.model_validate({"kind": layers})


def _width(config: Config, name: str) -> int:
    described = config.prlms[name]
    if not isinstance(described, ReleasedPrlm):
        model = config.prlms[described.teacher] if described.kind == "distilbert" else described
        return model.model.d_model  # pyright: ignore[reportAttributeAccessIssue]
    if described.width is not None:
        return described.width
    path = expand(described.checkpoint) / "config.json"
    try:
        sizes = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"prlms.{name}.checkpoint {described.checkpoint}: fusion.weights own needs its width, and there "
            f"is no readable {path.name} ({error}); set prlms.{name}.width"
        ) from error
    return next(sizes[key] for key in ("hidden_size", "n_embd", "d_model", "dim") if key in sizes)


# Settings and inputs of the stage that pretrains the study's own language models.


class PretrainSettings(TrainingSettings[TrainConfig]):
    """Pretraining of one language model."""

    prlm: PretrainedPrlm
    """Objective and sizes."""
    masking: MaskingConfig | None
    """Masking; null for left-to-right models, which predict every token."""
    max_tokens: int
    """Maximum length of a line in tokens, without begin and end, for which the model has positions."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers, and width of the tables; of a student None, for the teacher's count."""
        if isinstance(self.prlm, DistilbertPrlm):
            return None
        weights, width = self.prlm.model.num_layer_parameters, self.prlm.model.d_model
        if isinstance(self.prlm, ElectraPrlm):  # with its generator, of half the width
            return weights * 5 // 4, width * 3 // 2
        return weights, width


class PretrainInputs(Inputs[T]):
    """A corpus, its encoded text and tokenizer, and the teacher of a distilled model."""

    corpus: T
    encoded: T
    tokenizer: T
    teacher: T | None = None


PRETRAIN = StageKind(
    "trainables.prlm_fusion.stages:pretrain",
    PretrainSettings,
    PretrainInputs,
    version=3,
    workers="train",
)
