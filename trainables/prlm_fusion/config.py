"""Every knob of the fusion of pretrained language models, typed and frozen. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from nlgraft.conditions import Condition, ReadWhen
from nlgraft.nn.model_config import (
    MERGE_SETTINGS,
    ArchitectureConfig,
    BeamSearchConfig,
    BertConfig,
    FusionConfig,
    MergeConfig,
    MergeName,
    Site,
)
from nlgraft.stages.config_parts import (
    ScoreConfig,
    SystemConfig,
    UpstreamSeed,
    defaulting,
)
from nlgraft.strict_config import StrictConfig
from nlgraft.text.corpus_config import PairsConfig, TextConfig
from nlgraft.text.files import InputPathOrName
from nlgraft.text.roles import requires
from nlgraft.text.tokenizer_config import SampledTokenizerConfig, WordTokenizerConfig
from nlgraft.training.train_config import MaskingConfig, SmoothedTrainConfig, TrainConfig

Merge = Literal["none", "direct", MergeName]
Layers = int | Literal["mean", "mean_last_2", "mean_last_4", "scalar_mix", "dynamic_cls", "dynamic_mean"]
States = Literal["fp32", "fp16", "live"]
PrlmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

_BRANCHING: tuple[MergeName, ...] = get_args(MergeName)
_BRANCHED: Condition = {"fusion.merge": _BRANCHING}
_FUSED: Condition = {"fusion.merge": ("direct", *_BRANCHING)}
_READS: Condition = {"fusion.weights": ("pretrained", "random")}
_FROZEN: Condition = {**_READS, "fusion.is_frozen": (True,)}
READ_WHEN: ReadWhen = {
    "data.upstream": ({**_FUSED, **_READS},),
    "pretraining": ({**_FUSED, **_READS},),
    "fusion": (_FUSED,),
    "fusion.merge": (),
    "fusion.site": (_BRANCHED,),
    "fusion.side": (_BRANCHED,),
    "fusion.layers": ({**_FUSED, **_READS},),
    "fusion.is_frozen": ({**_FUSED, **_READS},),
    "fusion.lr_multiplier": ({**_FUSED, **_READS, "fusion.is_frozen": (False,)},),
    "fusion.has_frozen_dropout": ({**_FUSED, **_FROZEN},),
    "fusion.states": ({**_FUSED, **_FROZEN, "fusion.has_frozen_dropout": (False,)},),
    "fusion.max_tokens": ({**_BRANCHED, **_READS},),
    "model.has_source_scale": ({"fusion.merge": ("none", *_BRANCHING)},),
    **{f"fusion.{name}": ({"fusion.merge": (merge,)},) for name, merge in MERGE_SETTINGS.items()},
}
"""Settings that only some arms read: see `nlgraft.conditions`."""


def _has_layers(depth: int, layers: Layers) -> bool:
    if isinstance(layers, int):
        return -depth - 1 <= layers <= depth
    return not layers.startswith("mean_last_") or int(layers.removeprefix("mean_last_")) <= depth


class DataConfig(StrictConfig):
    """The text of the task and that of the pretrained models."""

    downstream: Annotated[PairsConfig, requires("source 0", "target")]
    """The task: translation or summarisation."""
    upstream: Annotated[TextConfig, requires(is_tested=False)] | None = None
    """Text of the models that the study pretrains, source 0 of the corpus; null: it only reads released
    ones."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest source and target of the task, in tokens of the model without begin and end; longer ones are
    cut and counted."""


class ReleasedPrlm(StrictConfig):
    """A checkpoint of transformers with its own tokenizer: encoder, decoder or encoder-decoder."""

    kind: Literal["released"] = "released"
    """Kind of pretrained model."""
    checkpoint: InputPathOrName
    """Hub name or local directory."""
    revision: str | None = None
    """Commit, tag or branch of a hub name; null: main."""
    width: int | None = Field(default=None, ge=1)
    """Width of its states, which `fusion.weights: own` takes for branches of as many parameters; null: read
    from a local directory."""


class BertPrlm(StrictConfig):
    """A BERT: masked language model (Devlin et al. 2019)."""

    kind: Literal["bert"] = "bert"
    """Kind of pretrained model."""
    model: BertConfig = BertConfig()
    """Its sizes."""


class GptPrlm(StrictConfig):
    """A GPT-2: left-to-right language model (Radford et al. 2019)."""

    kind: Literal["gpt"] = "gpt"
    """Kind of pretrained model."""
    model: BertConfig = BertConfig()
    """Its sizes."""


class ElectraPrlm(StrictConfig):
    """An ELECTRA: tells replaced tokens, which a small generator proposes (Clark et al. 2020)."""

    kind: Literal["electra"] = "electra"
    """Kind of pretrained model."""
    model: BertConfig = BertConfig()
    """Sizes of the discriminator; the generator has its depth and half its width, heads and FFN."""
    discriminator_weight: float = Field(default=50.0, gt=0)
    """Weight of the discriminator's loss beside the generator's."""

    @model_validator(mode="after")
    def _can_be_halved(self) -> ElectraPrlm:
        if self.model.d_model % 2 or self.model.d_model // 2 % max(1, self.model.num_heads // 2):
            raise ValueError(
                f"d_model {self.model.d_model} with num_heads {self.model.num_heads}: the generator has half "
                "of both, so half the width must be divisible by half the heads"
            )
        return self


class DistilbertPrlm(StrictConfig):
    """A DistilBERT: a smaller BERT that learns from a larger one (Sanh et al. 2019)."""

    kind: Literal["distilbert"] = "distilbert"
    """Kind of pretrained model."""
    teacher: PrlmName
    """The BERT among `prlms` whose predictions and states it learns; as wide, and at least as deep. It begins
    with evenly spaced layers of it."""
    num_layers: int = Field(default=1, ge=1)
    """Depth; the other sizes are the teacher's."""
    temperature: float = Field(default=2.0, gt=0)
    """Divides the logits of both in the distillation loss."""
    soft_weight: float = Field(default=5.0, ge=0)
    """Weight of the cross-entropy with the teacher's distribution (released code)."""
    hard_weight: float = Field(default=2.0, ge=0)
    """Weight of the masked language model's loss (released code)."""
    cosine_weight: float = Field(default=1.0, ge=0)
    """Weight of the cosine distance of the last states (released code)."""


PretrainedPrlm = Annotated[BertPrlm | GptPrlm | ElectraPrlm | DistilbertPrlm, Field(discriminator="kind")]
PrlmConfig = Annotated[
    ReleasedPrlm | BertPrlm | GptPrlm | ElectraPrlm | DistilbertPrlm, Field(discriminator="kind")
]


class PretrainingConfig(UpstreamSeed):
    """What the pretrained models of a study have in common: vocabulary, text, budget."""

    tokenizer: WordTokenizerConfig = WordTokenizerConfig()
    """Their vocabulary, learned from the upstream text."""
    max_tokens: int = Field(default=128, ge=1)
    """Longest line in tokens, without begin and end; longer ones are cut. The models have positions for no
    more."""
    masking: Annotated[MaskingConfig, defaulting(unit="token")] = MaskingConfig(unit="token")
    """What BERT, ELECTRA's generator and DistilBERT predict."""
    train: TrainConfig = TrainConfig()
    """Length, learning rate and choice of the result of each of them."""

    @model_validator(mode="after")
    def _fits_the_objectives(self) -> PretrainingConfig:
        if self.train.best_metric != "dev/loss":
            raise ValueError(f"train.best_metric is {self.train.best_metric!r}; measured is dev/loss")
        return self


class PrlmFusionConfig(MergeConfig):
    """Pretrained states in the model (Park and Zhao 2021, section 2)."""

    prlms: tuple[PrlmName, ...] = ()
    """Which of the study's pretrained models are fused (Table 4: several)."""
    merge: Merge = "sum"
    """Operator (Table 3b). none: the plain Transformer; direct: the states of one model replace the source
    embeddings, its tokens the source tokens (Clinchant et al. 2019); the others merge a branch per model into
    the layers."""
    site: Site = "ffn"
    """Place in the layer where flows meet (Table 3c): after attention, its norm, the FFN, its norm."""
    side: Literal["source", "target", "both"] = "source"
    """Layers that have branches (Table 3d): encoder's, decoder's, both."""
    layers: Layers = -2
    """Hidden states that are read (Table 3a): a state by number (-1 last, 0 embeddings); the mean of all or
    of the last few layers; ELMo's scalar mix; weights per sentence from its first token or mean (dynamic)."""
    weights: Literal["pretrained", "random", "own"] = "pretrained"
    """Whose states: the pretrained models'; those of models of their architecture with random weights
    (control); or the model's own source embeddings at their width (control of equal parameters where the
    models are frozen and one layer is read)."""
    is_frozen: bool = True
    """If false, the pretrained models are finetuned (Table 5)."""
    lr_multiplier: float = Field(default=1.0, gt=0)
    """Learning rate of finetuned models relative to the rest (1 in the paper)."""
    has_frozen_dropout: bool = False
    """Frozen models keep their dropout in training, as in the released code."""
    states: States = "fp32"
    """States of frozen models are computed once and stored in this precision, or live in every step."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the states (0.3 in the released code)."""
    has_memory_norm: bool = False
    """A layer norm on the states: inner states of GPT-2 are not normalised."""
    max_tokens: int | None = Field(default=512, ge=2)
    """Longest input of the pretrained models; longer ones keep first and last halves (256+256, appendix A.1).
    Null: any length."""

    @property
    def branches(self) -> FusionConfig:
        """Branches and merge in the model's layers; none for the plain Transformer and for direct."""
        if self.merge in ("none", "direct"):
            return FusionConfig()
        return FusionConfig(
            contexts=self.prlms,
            side=self.side,
            site=self.site,
            merge=self.merge,
            **{name: getattr(self, name) for name in MERGE_SETTINGS},
        )

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> PrlmFusionConfig:
        _ = self.branches  # refuses what contradicts itself
        return self

    @property
    def is_stored(self) -> bool:
        """True where training reads stored states."""
        is_constant = self.is_frozen and not self.has_frozen_dropout
        return self.weights != "own" and is_constant and self.states != "live"


class Config(SystemConfig):
    """A trial: pretrain or take language models, fuse them into a Transformer, train and test it."""

    READ_WHEN: ClassVar[ReadWhen] = READ_WHEN

    data: DataConfig
    """The corpora."""
    tokenizer: SampledTokenizerConfig = SampledTokenizerConfig()
    """Vocabulary of the task."""
    prlms: dict[PrlmName, PrlmConfig] = Field(default_factory=dict)
    """The study's pretrained language models, released or pretrained here; arms choose among them."""
    pretraining: PretrainingConfig = PretrainingConfig()
    """Pretraining of those that are not released."""
    fusion: PrlmFusionConfig = PrlmFusionConfig()
    """Which are used, and how."""
    model: ArchitectureConfig = ArchitectureConfig()
    """The encoder-decoder into which `fusion` puts the pretrained models."""
    train: SmoothedTrainConfig = SmoothedTrainConfig()
    """Its training."""
    decode: BeamSearchConfig = BeamSearchConfig()
    """Beam search, with live states."""
    score: ScoreConfig = ScoreConfig()
    """Measures of the output."""

    num_extracted_sentences: int | None = Field(default=None, ge=1)
    """Summarisation: also score the text's first sentences (lead) and its best ones (oracle; Table 2), this
    many at most; null: do not."""

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the pretrained models that are fused; none for the plain Transformer."""
        return () if self.fusion.merge == "none" else self.fusion.prlms

    def _problems(self) -> Iterator[str]:
        if self.model.tying == "all" and not self.tokenizer.is_shared:
            yield "model.tying is 'all' with tokenizer.is_shared false: one table needs one vocabulary"
        yield from self._prlm_problems()
        if self.fusion.merge != "none":
            yield from self._fusion_problems()

    def _prlm_problems(self) -> Iterator[str]:
        for name, prlm in self.prlms.items():
            if not isinstance(prlm, DistilbertPrlm):
                continue
            teacher = self.prlms.get(prlm.teacher)
            if not isinstance(teacher, BertPrlm):
                yield f"prlms.{name}.teacher is '{prlm.teacher}', which is no bert among prlms"
            elif prlm.num_layers > teacher.model.num_layers:
                theirs = teacher.model.num_layers
                yield f"prlms.{name}.num_layers is {prlm.num_layers}, its teacher has {theirs}"

    def _fusion_problems(self) -> Iterator[str]:
        fusion = self.fusion
        if not fusion.prlms:
            yield "fusion.prlms is empty: name at least one of prlms, or set fusion.merge to none"
        for name in fusion.prlms:
            if name not in self.prlms:
                yield f"fusion.prlms names '{name}', but prlms has {', '.join(self.prlms) or 'nothing'}"
            elif self.prlms[name].kind != "released" and self.data.upstream is None:
                yield f"prlms.{name} is pretrained here, but data.upstream, its text, is missing"
            elif (depth := self._depth(name)) is not None and not _has_layers(depth, fusion.layers):
                yield (
                    f"fusion.layers is {fusion.layers}, but prlms.{name} has {depth} layers: states are "
                    f"{-depth - 1} to {depth}, 0 the embeddings"
                )
        if fusion.merge == "direct":
            yield from self._direct_problems()

    def _depth(self, name: PrlmName) -> int | None:
        """Count the layers of a model; None for a released one, which is not at hand."""
        prlm = self.prlms[name]
        if isinstance(prlm, ReleasedPrlm):
            return None
        return prlm.num_layers if isinstance(prlm, DistilbertPrlm) else prlm.model.num_layers

    def _direct_problems(self) -> Iterator[str]:
        if len(self.fusion.prlms) > 1:
            yield "fusion.merge is direct with several fusion.prlms: one model gives the source embeddings"
        if self.fusion.weights == "own":
            yield "fusion.merge is direct with weights own: that is the plain Transformer; choose another"
        if self.tokenizer.sampling_alpha is not None:
            yield (
                "fusion.merge is direct with tokenizer.sampling_alpha: the tokens of a pretrained model are "
                "not sampled"
            )
