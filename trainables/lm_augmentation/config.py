"""Settings of language model augmentation. Without torch, since reading a study imports this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from nlgraft.basics.strict_config import Condition, ReadWhen, StrictConfig
from nlgraft.nn.context_config import (
    BiLMConfig,
    ContextConfig,
    LanguageModelConfig,
    PoolingConfig,
    UniLMConfig,
)
from nlgraft.nn.model_config import ArchitectureConfig, BeamSearchConfig
from nlgraft.stages.config_parts import (
    DevLossTrainConfig,
    LanguageModelPhaseConfig,
    ScoreConfig,
    defaulting,
)
from nlgraft.text.corpus_config import PairsConfig, TextConfig, requires
from nlgraft.text.tokenizer_config import TokenizerConfig

Side = Literal["source", "target"]
Vocabulary = Literal["language_model", "bitext"]
Readout = Literal["output", "cloze", "towers"]
SIDES: tuple[Side, ...] = ("source", "target")
_USED = ("elmo", "finetuned")


def _conditions(side: Side) -> dict[str, tuple[Condition, ...]]:
    used: Condition = {f"{side}.use": _USED}
    elmo: Condition = {f"{side}.use": ("elmo",)}
    finetuned: Condition = {f"{side}.use": ("finetuned",)}
    return {
        f"language_models.{side}": (used,),
        f"language_models.{side}.train": ({**used, f"{side}.weights": ("pretrained",)},),
        f"{side}.weights": (used,),
        f"{side}.weight_dropout": (elmo,),
        f"{side}.is_centred": (elmo,),
        f"{side}.dropout": (used,),
        f"{side}.lr_multiplier": (finetuned,),
        f"{side}.num_frozen_steps": (finetuned,),
    }


READ_WHEN: ReadWhen = {
    **_conditions("source"),
    **_conditions("target"),
    "source.states": ({"source.use": ("elmo",)},),
    "source.readout": ({"source.use": ("finetuned",)},),
    "has_lm_cache": ({"target.use": _USED},),
    **dict.fromkeys(
        ("tokenizers.language_model", "data.source_text", "data.target_text"),
        tuple({f"tokenizers.{side}": ("language_model",)} for side in SIDES),
    ),
    "tokenizers.bitext": tuple({f"tokenizers.{side}": ("bitext",)} for side in SIDES),
}
"""Settings that only some arms read: see `nlgraft.basics.strict_config`."""


class DataConfig(StrictConfig):
    """Bitext of the task, and monolingual text for the language models."""

    downstream: Annotated[PairsConfig, requires("source 0", "target")]
    """The task: translation or summarisation."""
    source_text: Annotated[TextConfig, requires(is_tested=False)] | None = None
    """Text of the source's language model; may be null if that model is not pretrained and its vocabulary not
    used."""
    target_text: Annotated[TextConfig, requires(is_tested=False)] | None = None
    """Text of the target's language model; may be null under the same conditions."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum length in tokens, without begin and end, for task and language models; longer sequences are
    truncated and counted."""


class TokenizersConfig(StrictConfig):
    """Vocabularies, and which of them the encoder-decoder uses (section 3.1, appendix A)."""

    language_model: Annotated[TokenizerConfig, defaulting(kind="bpe")] = TokenizerConfig(kind="bpe")
    """Learned from the text of the language models: one for both languages if is_shared, else one each."""
    bitext: Annotated[TokenizerConfig, defaulting(kind="bpe")] = TokenizerConfig(kind="bpe")
    """Learned from the training bitext (Table 4, bitext-BPE; the Turkish side in Table 2)."""
    source: Vocabulary = "language_model"
    """Vocabulary of the source; must be language_model if this side uses a language model."""
    target: Vocabulary = "language_model"
    """Vocabulary of the target; must be language_model if this side uses a language model."""

    def of(self, side: Side) -> TokenizerConfig:
        """Return the settings of the tokenizer of a side."""
        return self.language_model if getattr(self, side) == "language_model" else self.bitext

    @property
    def is_one(self) -> bool:
        """True if source and target have the same vocabulary."""
        return self.source == self.target and self.of("source").is_shared


class RepresentationConfig(StrictConfig):
    """Input of one side of the model (section 2)."""

    use: Literal["table", "elmo", "finetuned"] = "table"
    """table: learned embeddings (baseline). elmo: a learned mixture of all layers of a frozen language model
    (section 2.1). finetuned: the output of a language model before its softmax, trained with the rest of the
    model (section 2.2)."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """Weights of the language model: pretrained, or random as a control (ours)."""
    weight_dropout: float = Field(default=0.0, ge=0, lt=1)
    """elmo: dropout on the weights of the mixture, that is, of whole layers (0.2 in the released recipe)."""
    is_centred: bool = False
    """elmo: whether each layer's mean over the training text is subtracted before the layer norm that all
    layers share (ours)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the representation (tuned in section 4.1)."""
    lr_multiplier: float = Field(default=1.0, gt=0)
    """finetuned: learning rate of the language model relative to the rest (1 in the paper, section 2.2)."""
    num_frozen_steps: int = Field(default=0, ge=0)
    """finetuned: number of first steps in which the language model does not change (ours)."""

    @property
    def output(self) -> Readout:
        """The state of a finetuned language model that replaces an embedding."""
        return "output"

    def context(self, encoder: LanguageModelConfig, prepend_id: int | None) -> ContextConfig:
        """Express the language model as a context of the encoder-decoder."""
        pooling = PoolingConfig(kind=self.output)
        if self.use == "elmo":
            pooling = PoolingConfig(
                kind="scalar_mix",
                weight_dropout=self.weight_dropout,
                is_centred=self.is_centred,
            )
        return ContextConfig(
            encoder=encoder,
            pooling=pooling,
            is_frozen=self.use == "elmo",
            lr_multiplier=self.lr_multiplier if self.use == "finetuned" else 1.0,
            dropout=self.dropout,
            prepend_id=prepend_id,
        )


class SourceConfig(RepresentationConfig):
    """Input of the encoder."""

    states: Literal["fp32", "fp16", "bf16", "live"] = "live"
    """elmo: states of the training text are computed once and stored in fp32 or fp16, computed and stored in
    bf16, or computed anew in every step (live). Decoding always computes them live."""
    readout: Readout = "output"
    """finetuned, with a bi_lm: the state that replaces an embedding. output: that of the combiner, which may
    attend to the towers' states at its own position, unlike in pretraining. cloze: as in pretraining,
    so that it does not depend on its own token (``--bilm-mask-last-state`` in the released code). towers: the
    first plus the last states of both towers (ours)."""

    @property
    def output(self) -> Readout:
        """The state of a finetuned language model that replaces an embedding."""
        return self.readout


class LanguageModelsConfig(StrictConfig):
    """The language models and their pretraining (section 3.2)."""

    source: Annotated[LanguageModelPhaseConfig, defaulting(model={"kind": "bi_lm"})] = (
        LanguageModelPhaseConfig(model=BiLMConfig())
    )
    """Language model of the source; bidirectional (two towers) in the paper."""
    target: Annotated[LanguageModelPhaseConfig, defaulting(model={"kind": "uni_lm"})] = (
        LanguageModelPhaseConfig(model=UniLMConfig())
    )
    """Language model of the target; must be left-to-right, since the decoder must not see future tokens."""

    def _problems(self) -> Iterator[str]:
        if self.target.model.kind != "uni_lm":
            yield (f"target.model.kind is {self.target.model.kind}, which sees the future; use uni_lm")


class Config(StrictConfig):
    """A trial: pretrain language models, train an encoder-decoder on their states, test it."""

    READ_WHEN = READ_WHEN

    data: DataConfig
    """The corpora."""
    tokenizers: TokenizersConfig = TokenizersConfig()
    """Vocabularies."""
    language_models: LanguageModelsConfig = LanguageModelsConfig()
    """Language models and their pretraining; an arm trains only those that it uses."""
    source: SourceConfig = SourceConfig()
    """Input of the encoder: SRC-ELMO, SRC-FT or a table."""
    target: RepresentationConfig = RepresentationConfig()
    """Input of the decoder: TGT-ELMO, TGT-FT or a table."""
    model: ArchitectureConfig = ArchitectureConfig()
    """Architecture of the encoder-decoder. tying none is the paper's baseline, decoder is +SHDEMB, all is
    SHARED. With SRC-ELMO the released recipe sets source_positions to none."""
    train: DevLossTrainConfig = DevLossTrainConfig()
    """Training of the encoder-decoder."""
    decode: BeamSearchConfig = BeamSearchConfig()
    """Beam search; hypotheses begin with the end token, as does the text of the language models."""
    has_lm_cache: bool = True
    """If false, beam search reruns the target's language model on the whole prefix at each step, as the
    released code does (Table 5)."""
    score: ScoreConfig = ScoreConfig()
    """Metrics of the output."""
    num_extracted_sentences: int | None = Field(default=None, ge=1)
    """Summarisation: also score extractive summaries of at most this many sentences, the first (lead) and the
    best (oracle); 3 in Table 3; null: none."""

    def representation(self, side: Side) -> RepresentationConfig:
        """Return the settings of a side's input."""
        return self.source if side == "source" else self.target

    def _problems(self) -> Iterator[str]:
        yield from self._table_problems()
        yield from self._vocabulary_problems()

    def _table_problems(self) -> Iterator[str]:
        if self.source.use != "table" and self.model.tying == "all":
            yield f"source.use is {self.source.use} with model.tying all: the source has no table to share"
        if self.target.use != "table" and self.model.tying != "none":
            yield (
                f"target.use is {self.target.use} with model.tying {self.model.tying}: the decoder input is "
                "no table; set model.tying to none"
            )
        if self.source.use == "finetuned":
            yield from self._readout_problems(self.language_models.source.model)
        for side in SIDES:
            read, steps = self.representation(side), self.train.max_steps
            if read.use != "finetuned":
                continue
            if steps is not None and read.num_frozen_steps >= steps:
                yield (
                    f"{side}.num_frozen_steps is {read.num_frozen_steps} of train.max_steps {steps}: the "
                    f"language model would never be finetuned; lower it, or set {side}.use to elmo"
                )
            if read.is_centred:
                yield (
                    f"{side}.is_centred with {side}.use finetuned: the means are those of a frozen language "
                    f"model, whose states do not change; leave it out or set {side}.use to elmo"
                )
        if self.target.use == "table" and not self.has_lm_cache:
            yield "has_lm_cache is false with target.use table: there is no language model; leave it out"

    def _readout_problems(self, model: LanguageModelConfig) -> Iterator[str]:
        readout = self.source.readout
        if readout != "output" and not isinstance(model, BiLMConfig):
            yield (
                f"source.readout is {readout}, but language_models.source.model.kind is {model.kind}, "
                "which has no combiner and no towers; set source.readout to output"
            )
        if readout == "output" and isinstance(model, BiLMConfig) and model.combiner == "linear":
            yield (
                "source.use is finetuned with language_models.source.model.combiner linear, whose output "
                "never reads the token at its own position; use attention, source.readout towers, or "
                "source.use elmo"
            )

    def _vocabulary_problems(self) -> Iterator[str]:
        for side in SIDES:
            vocabulary, use = getattr(self.tokenizers, side), self.representation(side).use
            if use == "table":
                continue
            if vocabulary != "language_model":
                yield (
                    f"{side}.use is {use} with tokenizers.{side} {vocabulary}: a language model reads its "
                    f"own vocabulary; set tokenizers.{side} to language_model"
                )
            if getattr(self.data, f"{side}_text") is None:
                yield f"{side}.use is {use}, but data.{side}_text, the text of its language model, is missing"
        if self.model.tying == "all" and not self.tokenizers.is_one:
            yield "model.tying is all, but source and target have different vocabularies"
        yield from self._text_problems()

    def _text_problems(self) -> Iterator[str]:
        texts = {side: getattr(self.data, f"{side}_text") for side in SIDES}
        reading = [side for side in SIDES if getattr(self.tokenizers, side) == "language_model"]
        if not self.tokenizers.language_model.is_shared:
            for side in reading:
                if texts[side] is None:
                    yield (
                        f"tokenizers.{side} is language_model, but data.{side}_text, from which it is "
                        "learned, is missing"
                    )
        elif reading and not any(texts.values()):
            yield "tokenizers.language_model is learned from data.source_text and data.target_text: give one"
