"""Settings of PrLM fusion. Without torch, since reading a study imports this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import Field

from nlgraft.basics.strict_config import GIVEN, Condition, ReadWhen, StrictConfig
from nlgraft.nn.model_config import (
    MERGE_SETTINGS,
    ArchitectureConfig,
    BeamSearchConfig,
    BertConfig,
    FusionConfig,
    Init,
    MergeConfig,
    MergeName,
    Site,
)
from nlgraft.stages.config_parts import (
    DevLossTrainConfig,
    ScoreConfig,
    UpstreamSeed,
    defaulting,
    unmeasured,
)
from nlgraft.text.corpus_config import PairsConfig, TextConfig, requires
from nlgraft.text.files import InputPathOrName
from nlgraft.text.tokenizer_config import SampledTokenizerConfig, WordTokenizerConfig
from nlgraft.training.train_config import FinetunedPart, MaskingConfig, TrainConfig

Merge = Literal["none", "direct", MergeName]
Layers = (
    int | Literal["mean", "mean_last_2", "mean_last_4", "scalar_mix", "dynamic_cls", "dynamic_mean", "groups"]
)
States = Literal["fp32", "fp16", "bf16", "live"]
PrlmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

_BRANCHING = get_args(MergeName)
_BRANCHED: Condition = {"fusion.merge": _BRANCHING}
_FUSED: Condition = {"fusion.merge": ("direct", *_BRANCHING)}
_READS: Condition = {"fusion.weights": ("pretrained", "random")}
_READ: Condition = {**_FUSED, **_READS}
_FINETUNED: Condition = {**_READ, "fusion.is_frozen": (False,)}
_FROZEN: Condition = {**_READ, "fusion.is_frozen": (True,)}
_FROZEN_FIRST: Condition = {"fusion.first_stage": (GIVEN,)}
READ_WHEN: ReadWhen = {
    "data.upstream": (_READ,),
    "pretraining": (_READ,),
    "fusion": (_FUSED,),
    "fusion.merge": (),
    "fusion.site": (_BRANCHED,),
    "fusion.side": (_BRANCHED,),
    "fusion.init": (_BRANCHED,),
    "fusion.layers": (_READ,),
    "fusion.group_size": ({"fusion.layers": ("groups",)},),
    "fusion.has_mlp": ({"fusion.merge": ("direct",)},),
    "fusion.first_stage": (_READ,),
    "fusion.is_frozen": (_READ,),
    "fusion.lr_multiplier": (_FINETUNED,),
    "fusion.part": (_FINETUNED,),
    "fusion.has_frozen_dropout": (_FROZEN, _FROZEN_FIRST),
    "fusion.states": tuple(
        {**condition, "fusion.has_frozen_dropout": (False,)} for condition in (_FROZEN, _FROZEN_FIRST)
    ),
    "fusion.max_tokens": ({**_BRANCHED, **_READS},),
    "model.has_source_scale": ({"fusion.merge": ("none", *_BRANCHING)},),
    **{f"fusion.{name}": ({"fusion.merge": (merge,)},) for name, merge in MERGE_SETTINGS.items()},
}
"""Settings that only some arms read: see `nlgraft.basics.strict_config`."""


def _has_layers(depth: int, layers: Layers, group_size: int) -> bool:
    if isinstance(layers, int):
        return -depth - 1 <= layers <= depth
    if layers == "groups":
        return depth % group_size == 0
    return not layers.startswith("mean_last_") or int(layers.removeprefix("mean_last_")) <= depth


class DataConfig(StrictConfig):
    """Corpora of the task and of the pretraining."""

    downstream: Annotated[PairsConfig, requires("source 0", "target")]
    """The task: translation or summarisation."""
    upstream: Annotated[TextConfig, requires(is_tested=False)] | None = None
    """Text (source 0 of the corpus) for the models that the study pretrains; may be null if all models are
    released ones."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum length of source and target in the task's own tokens, without begin and end; longer sequences
    are truncated and counted."""


class ReleasedPrlm(StrictConfig):
    """A released transformers checkpoint with its own tokenizer: encoder, decoder or encoder-decoder."""

    kind: Literal["released"] = "released"
    """Kind of pretrained model."""
    checkpoint: InputPathOrName
    """Hub name or local directory."""
    revision: str | None = None
    """Commit, tag or branch of a hub name; null: main."""
    width: int | None = Field(default=None, ge=1)
    """Width of its states, used by `fusion.weights: own` to give branches the same number of parameters;
    null: taken from the checkpoint, which must be a local directory."""


class BertPrlm(StrictConfig):
    """A BERT, trained as a masked language model (Devlin et al. 2019)."""

    kind: Literal["bert"] = "bert"
    """Kind of pretrained model."""
    model: BertConfig = BertConfig()
    """Its sizes."""


class GptPrlm(StrictConfig):
    """A GPT-2, trained as a left-to-right language model (Radford et al. 2019)."""

    kind: Literal["gpt"] = "gpt"
    """Kind of pretrained model."""
    model: BertConfig = BertConfig()
    """Its sizes."""


class ElectraPrlm(StrictConfig):
    """An ELECTRA, trained to detect tokens replaced by a small generator (Clark et al. 2020)."""

    kind: Literal["electra"] = "electra"
    """Kind of pretrained model."""
    model: BertConfig = BertConfig()
    """Sizes of the discriminator; the generator has its depth and half its width, heads and FFN."""
    discriminator_weight: float = Field(default=50.0, gt=0)
    """Weight of the discriminator's loss relative to the generator's (50 in the paper)."""

    def _problems(self) -> Iterator[str]:
        half_heads = max(1, self.model.num_heads // 2)
        if self.model.d_model % 2 or self.model.d_model // 2 % half_heads:
            yield (
                f"d_model {self.model.d_model} with num_heads {self.model.num_heads}: the generator has half "
                "of both, so half the width must be divisible by half the heads"
            )


class DistilbertPrlm(StrictConfig):
    """A DistilBERT, a smaller BERT distilled from a larger one (Sanh et al. 2019)."""

    kind: Literal["distilbert"] = "distilbert"
    """Kind of pretrained model."""
    teacher: PrlmName
    """Name of a BERT in `prlms` whose predictions and states are distilled; of the same width, and at least
    as deep. The student is initialised with evenly spaced layers of the teacher."""
    num_layers: int = Field(default=1, ge=1)
    """Depth; the other sizes are the teacher's."""
    temperature: float = Field(default=2.0, gt=0)
    """Temperature of the logits of teacher and student in the distillation loss."""
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
    """Vocabulary, text and budget common to all models that the study pretrains."""

    tokenizer: WordTokenizerConfig = WordTokenizerConfig()
    """Vocabulary of these models, learned from the upstream text."""
    max_tokens: int = Field(default=128, ge=1)
    """Maximum length of a line in tokens, without begin and end; longer lines are truncated. The models have
    no positions beyond it."""
    masking: Annotated[MaskingConfig, defaulting(unit="token")] = MaskingConfig(unit="token")
    """Masking for BERT, ELECTRA's generator and DistilBERT; GPT predicts every token."""
    train: TrainConfig = TrainConfig()
    """Duration, learning rate and selection of the result, the same for each model."""

    def _problems(self) -> Iterator[str]:
        yield from unmeasured(self.train, "dev/loss")
        if (dropout := self.tokenizer.dropout) is not None:
            yield f"tokenizer.dropout is {dropout}: models are pretrained on one segmentation; leave it out"


class PrlmFusionConfig(MergeConfig):
    """Fusion of pretrained states into the model (Park and Zhao 2021, section 2)."""

    prlms: tuple[PrlmName, ...] = ()
    """Names in the top-level `prlms` of the models that are fused (Table 4: several)."""
    merge: Merge = "sum"
    """Merge strategy (Table 3b). none: the plain Transformer. direct: the states and tokens of one model
    replace the source embeddings and tokens (Clinchant et al. 2019). The others merge one branch per model
    into each layer."""
    site: Site = "ffn"
    """Merge site in the layer (Table 3c): self, after attention; self_norm, after its norm; ffn, after the
    FFN; ffn_norm, after its norm."""
    side: Literal["source", "target", "both"] = "source"
    """Which layers have branches (Table 3d): those of the encoder (source), of the decoder (target), or
    both."""
    init: Init = "xavier"
    """Initial weights of each branch's last projection; zero (ours): a sum at the sites self and ffn begins
    as the plain Transformer."""
    layers: Layers = -2
    """Hidden states that are fused (Table 3a): one layer by number (-1 last, 0 embeddings); the mean of all
    or of the last few layers; ELMo's scalar mix; a mixture whose weights are predicted for each sentence from
    its first token (dynamic_cls) or its mean state (dynamic_mean); or LaMaTE's mixture of the last states of
    groups of layers (groups)."""
    # The next two and `first_stage` are left out of the keys of cells and searches at their defaults, as
    # `part` is.
    group_size: int = Field(default=4, ge=1, exclude_if=lambda size: size == 4)
    """Layers of each group of layers (4 in the released code of LaMaTE, Luo et al. 2025)."""
    has_mlp: bool = Field(default=False, exclude_if=lambda has_mlp: not has_mlp)
    """If true, direct states pass through a perceptron with one hidden layer, as in LaMaTE; if false, through
    a linear map where the widths differ."""
    weights: Literal["pretrained", "random", "own"] = "pretrained"
    """Origin of the fused states. pretrained: the pretrained models. random: the same architectures with
    random weights (control, ours). own: the model's own source embeddings at the width of the pretrained
    states (control, ours; equal in learned parameters if the pretrained models are frozen and one layer is
    read)."""
    is_frozen: bool = True
    """If false, the pretrained models are finetuned (Table 5)."""
    lr_multiplier: float = Field(default=1.0, gt=0)
    """Learning rate of finetuned pretrained models relative to the rest (1 in the paper)."""
    # Left out of the keys of cells and searches where it is null: these are older.
    part: FinetunedPart | None = Field(default=None, exclude_if=lambda part: part is None)
    """If given, all of the pretrained models that is finetuned; null: they are finetuned whole."""
    first_stage: DevLossTrainConfig | None = Field(default=None, exclude_if=lambda stage: stage is None)
    """If given, a training with frozen pretrained models comes first, and `train` goes on from its result, as
    LaMaTE does; null: one training."""
    has_frozen_dropout: bool = False
    """If true, frozen models keep their dropout in training, as in the released code."""
    states: States = "fp32"
    """States of frozen models are computed once and stored in fp32 or fp16, computed and stored in bf16, or
    computed in every step (live)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the fused states (0.3 in the released code)."""
    max_tokens: int | None = Field(default=512, ge=2)
    """Maximum input length of the pretrained models, in their tokens; of longer inputs the first and last
    halves are kept (256 + 256 in appendix A.1). null: no maximum."""

    @property
    def branches(self) -> FusionConfig:
        """Branches in the layers of the model; none for the plain Transformer and for direct."""
        if self.merge in ("none", "direct"):
            return FusionConfig()
        return FusionConfig(
            contexts=self.prlms,
            side=self.side,
            site=self.site,
            merge=self.merge,
            init=self.init,
            **{name: getattr(self, name) for name in MERGE_SETTINGS},
        )

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        _ = self.branches  # refuses what contradicts itself

    @property
    def is_stored(self) -> bool:
        """True if training reads stored states."""
        is_constant = self.is_frozen and not self.has_frozen_dropout and self.states != "live"
        return is_constant and self.weights != "own"


class Config(StrictConfig):
    """A trial: pretrain or take language models, fuse them into a Transformer, train and test it."""

    READ_WHEN = READ_WHEN

    data: DataConfig
    """The corpora."""
    tokenizer: SampledTokenizerConfig = SampledTokenizerConfig()
    """Vocabulary of the task."""
    prlms: dict[PrlmName, PrlmConfig] = Field(default_factory=dict)
    """Pretrained language models of the study by name, released or pretrained by it; `fusion.prlms`
    selects."""
    pretraining: PretrainingConfig = PretrainingConfig()
    """Pretraining of the models that are not released."""
    fusion: PrlmFusionConfig = PrlmFusionConfig()
    """Which pretrained models are fused, and how."""
    model: ArchitectureConfig = ArchitectureConfig()
    """Architecture of the encoder-decoder."""
    train: DevLossTrainConfig = DevLossTrainConfig()
    """Training of the encoder-decoder."""
    decode: BeamSearchConfig = BeamSearchConfig()
    """Beam search; pretrained states are always computed live."""
    score: ScoreConfig = ScoreConfig()
    """Metrics of the output."""

    num_extracted_sentences: int | None = Field(default=None, ge=1)
    """Summarisation: also score extractive summaries of at most this many sentences, the first (lead) and the
    best (oracle; Table 2); null: none."""

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
            elif prlm.num_layers > (depth := teacher.model.num_layers):
                yield f"prlms.{name}.num_layers is {prlm.num_layers}, its teacher has {depth}"

    def _fusion_problems(self) -> Iterator[str]:
        fusion = self.fusion
        if not fusion.prlms:
            yield "fusion.prlms is empty: name at least one of prlms, or set fusion.merge to none"
        for name in fusion.prlms:
            if name not in self.prlms:
                yield f"fusion.prlms names '{name}', but prlms has {', '.join(self.prlms) or 'nothing'}"
            elif self.prlms[name].kind != "released" and self.data.upstream is None:
                yield f"prlms.{name} is pretrained here, but data.upstream, its text, is missing"
            elif (depth := self._depth(name)) is not None and not _has_layers(
                depth, fusion.layers, fusion.group_size
            ):
                yield (
                    f"fusion.layers is {fusion.layers}, but prlms.{name} has {depth} layers: states are "
                    f"{-depth - 1} to {depth}, 0 the embeddings; fusion.group_size must divide {depth}"
                )
        if fusion.merge == "direct":
            yield from self._direct_problems()

    def _depth(self, name: PrlmName) -> int | None:
        """Count the layers of a model; None for a released one, which is not loaded while reading a study."""
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
