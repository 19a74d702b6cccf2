"""Settings of multi-source generation. Without torch, since reading a study imports this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from nlgraft.basics.strict_config import GIVEN, Condition, ReadWhen, StrictConfig, as_read
from nlgraft.nn.model_config import (
    MAX_FINE_LAYERS,
    ArchitectureConfig,
    BeamSearchConfig,
    CrossAttention,
    Encoding,
    FineEncoderConfig,
    Segments,
    WholeFineEncoderConfig,
)
from nlgraft.stages.config_parts import (
    DevLossTrainConfig,
    PhaseConfig,
    ScoreConfig,
    UpstreamSeed,
    defaulting,
)
from nlgraft.text.corpus_config import EOS, CorpusConfig, TextConfig, requires, role_problem
from nlgraft.text.files import InputPathOrName
from nlgraft.text.tokenizer_config import SampledTokenizerConfig
from nlgraft.training.train_config import FinetunedPart

MAX_FOREIGN = 4
"""Maximum number of sources in an adversarial test; METRICS has an entry for each replaced source."""
_MULTI_SOURCE: Condition = {"multi_source": (GIVEN,)}
_FINE = "sources.fine_encoder"
_NEW = {
    f"{_FINE}.num_layers": tuple(range(1, MAX_FINE_LAYERS + 1)),
    f"{_FINE}.ffn_adapter": ("per_layer", "top"),
    "sources.encoding": ("own",),
    "sources.cross_attention": ("serial",),
    "sources.segments": ("learned",),
}
"""Settings that give the model parameters which a single-source model lacks."""
_CARRIED: tuple[Condition, ...] = tuple(
    {**_MULTI_SOURCE, start: (GIVEN,), setting: values}
    for start in ("single_source", "upstream")
    for setting, values in _NEW.items()
)
"""Where such a model is initialised from a finetuned or pretrained one."""


class DataConfig(StrictConfig):
    """Examples with several sources and a target, and monolingual text for the pretraining."""

    task: CorpusConfig
    """Examples of the task (D_M in the paper). A source may be absent from an example: an empty line."""
    languages: tuple[str, ...] = Field(min_length=2)
    """Language of each source, then of the target, e.g. ``[en, de, de]`` for post-editing. The language id is
    appended to every source and begins every target (section 2.3)."""
    text: Mapping[str, Annotated[TextConfig, requires(is_tested=False)]] | None = None
    """Pretraining text by language (D_P in the paper); null: none."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum length in tokens, without end and language id; longer sequences are truncated and counted."""

    def _problems(self) -> Iterator[str]:
        if problem := role_problem(self.task, "source 0", "target"):
            yield problem
        if len(self.languages) != self.num_sources + 1:
            yield (
                f"languages are {', '.join(self.languages)}: the task has {self.num_sources} sources and a "
                "target; name the language of each, the target's last"
            )
        unknown = sorted(set(self.text or ()) - set(self.languages))
        if unknown:
            yield f"text has {', '.join(unknown)}, the task's languages are {', '.join(self.languages)}"

    @property
    def num_sources(self) -> int:
        """Sources of the task."""
        return sum(role.startswith("source ") for role in self.task.roles)


class CheckpointConfig(StrictConfig):
    """A released mBART (section 3.1: cc25), mBART-50, M2M-100, NLLB or, for masked_tokens, BERT."""

    directory: InputPathOrName
    """Directory of config.json, weights and tokenizer (sentencepiece.bpe.model, M2M-100: also vocab.json), or
    the hub name of a BERT."""
    revision: str | None = None
    """Commit, tag or branch of a model on the hub (null: main)."""
    language_ids: Mapping[str, int | str] | None = None
    """The checkpoint's token of each language, by id or by name (cc25: 250003 or de_DE, 250004 or en_XX;
    M2M-100: de; NLLB: deu_Latn); null: ``data.languages`` are such names. A BERT has none: language
    embeddings are initialised with that of [CLS]."""


class UpstreamConfig(UpstreamSeed):
    """The pretrained model: denoising of text in many languages (Eqs. 2, 3)."""

    train: DevLossTrainConfig = DevLossTrainConfig()
    """Length, learning rate and choice of the result."""
    objective: Literal["denoising", "masked_tokens"] = "denoising"
    """denoising: reconstruct a line from a copy with masked spans, as mBART (or a released model of
    translation, see ``checkpoint``). masked_tokens: train an encoder to predict masked tokens and initialise
    encoder and decoder with it, as DualBERT (Correia and Martins 2019)."""
    checkpoint: CheckpointConfig | None = None
    """Released model, which replaces ``model`` and ``tokenizer`` by its own; null: pretrain a model."""

    def _problems(self) -> Iterator[str]:
        if self.objective == "masked_tokens" and self.checkpoint is not None and self.checkpoint.language_ids:
            yield "checkpoint.language_ids: a BERT has no tokens of languages; leave it out"


class SourcesConfig(StrictConfig):
    """What distinguishes a multi-source model from a single-source one (sections 2.3 to 2.5)."""

    encoding: Encoding = "joint"
    """Coarse encoder. joint: all sources as one sequence (Eq. 9); separate: each source by the same encoder
    (Table 6); own: each source by an encoder of its own."""
    cross_attention: CrossAttention = "separated"
    """Cross-attention of the decoder. joint: over all sources at once (DualBART); separated: over each source
    with shared weights, results averaged (Eqs. 15, 16); serial: one sublayer per source, one after the other
    (DualTrans)."""
    segments: Segments = "halves"
    """Embedding of a source's index. halves: constant, sines then cosines (released code); interleaved:
    constant, alternating as printed in Eq. 8; learned (ours), initialised with halves; none."""
    fine_encoder: Annotated[FineEncoderConfig, defaulting(num_layers=1)] = FineEncoderConfig(num_layers=1)
    """The fine encoder (Eqs. 11-14), or the adapters it is compared with (Table 5)."""

    @property
    def has_new_parameters(self) -> bool:
        """True if the model has parameters that a single-source model lacks."""
        fine = self.fine_encoder
        is_own = self.encoding == "own" or self.cross_attention == "serial" or self.segments == "learned"
        return is_own or fine.num_layers > 0 or fine.ffn_adapter != "none"

    def wiring(self) -> dict[str, Any]:
        """Express this part in fields of the transformer config."""
        fine = WholeFineEncoderConfig(**as_read(self.fine_encoder).model_dump())
        return {**self.model_dump(mode="json"), "fine_encoder": fine.model_dump(mode="json")}


class SingleSourceConfig(PhaseConfig):
    """Finetuning on one source at a time (Eqs. 4, 5)."""

    draws: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Indices of the sources from which one is drawn for each example and epoch; null: all in ``read``."""


class MultiSourceConfig(PhaseConfig):
    """Finetuning on all sources (Eqs. 6, 7)."""

    new_lr_multiplier: float = Field(default=1.0, gt=0)
    """Factor on the learning rate of the parameters that the single-source model lacks, such as the fine
    encoder (paper: 1, equal rates; released code: 10)."""
    is_rest_frozen: bool = False
    """If true, only those parameters are trained and the rest is frozen (Table 7: fine encoder only)."""
    # Left out of the keys of cells and searches where it is null: these are older.
    part: FinetunedPart | None = Field(default=None, exclude_if=lambda part: part is None)
    """If given, of the rest only this part is trained; null: all of it, unless it is frozen."""


class Config(StrictConfig):
    """A trial: pretrain, finetune on single sources, finetune on all sources, test."""

    READ_WHEN: ClassVar[ReadWhen] = {
        "sources": (_MULTI_SOURCE,),
        # Where there is a model to start from, it is evaluated in any case.
        "single_source.train.is_evaluated_at_start": ({"upstream": (None,)},),
        "multi_source.train.is_evaluated_at_start": ({"upstream": (None,), "single_source": (None,)},),
        "multi_source.new_lr_multiplier": _CARRIED,
        "multi_source.is_rest_frozen": _CARRIED,
        "multi_source.part": tuple({**way, "multi_source.is_rest_frozen": (False,)} for way in _CARRIED),
    }

    data: DataConfig
    """Corpora of the task and of the pretraining."""
    documents: Literal["apart", "previous", "joined"] = "apart"
    """Use of document context. apart: none, each sentence is an example; previous: the previous sentence is
    an additional source, placed first (Table 4); joined: two consecutive sentences are translated as one
    example, of which the second is scored (mBART-DocTrans, appendix A.3)."""
    read: tuple[int, ...] | None = Field(default=None, min_length=1)
    """Indices of the sources that the model reads; null: all."""
    tokenizer: SampledTokenizerConfig = SampledTokenizerConfig()
    """Vocabulary shared by all languages, learned from the text of task and pretraining."""
    model: Annotated[ArchitectureConfig, defaulting(tying="all")] = ArchitectureConfig(tying="all")
    """Architecture of the encoder-decoder with a single source."""
    sources: SourcesConfig = SourcesConfig()
    """Extensions for several sources; the default is TRICE."""
    upstream: UpstreamConfig | None = None
    """Pretraining; null: the first finetuning starts from random initialisation."""
    single_source: SingleSourceConfig | None = None
    """First finetuning phase, on single sources; null: none (Table 6, without gradual finetuning)."""
    multi_source: MultiSourceConfig | None = None
    """Second finetuning phase, on all sources; null: none, the result is a single-source model."""
    is_adversarial: bool = False
    """If true, also score translations in which each of 2 to 4 sources is replaced by another example's
    (section 3.4, Table 8)."""
    decode: Annotated[BeamSearchConfig, defaulting(beam=4)] = BeamSearchConfig(beam=4)
    """Beam search (section 3.1: beam 4)."""
    score: ScoreConfig = ScoreConfig()
    """Metrics of the output."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Language of each source of an example, then that of the target."""
        first, *others = self.data.languages
        return (first, first, *others) if self.documents == "previous" else self.data.languages

    @property
    def read_sources(self) -> tuple[int, ...]:
        """Sources that the model reads, by index."""
        return tuple(range(len(self.languages) - 1)) if self.read is None else self.read

    @property
    def language_tokens(self) -> dict[str, str]:
        """Language id of each language, as a special token."""
        return {language: f"<{language}>" for language in self.data.languages}

    def language_id(self, language: str) -> int:
        """Token id of a language; these follow the mask token, in the order of ``data.languages``."""
        return EOS + 2 + list(self.language_tokens).index(language)

    def wiring(self) -> dict[str, Any]:
        """Fields of the transformer config that depend on the number of sources."""
        return {"num_sources": len(self.read_sources), **self.sources.wiring()}

    def _problems(self) -> Iterator[str]:
        unread = list(self._index_problems())
        yield from unread
        yield from self._source_problems()
        if not unread:
            yield from self._phase_problems()
        if not self.tokenizer.is_shared:
            yield "tokenizer.is_shared is false: all languages have one vocabulary; leave it out"

    def _index_problems(self) -> Iterator[str]:
        num_sources = len(self.languages) - 1
        chosen = [("read", self.read_sources)]
        if self.single_source is not None and self.single_source.draws is not None:
            chosen.append(("single_source.draws", self.single_source.draws))
        for name, sources in chosen:
            if len({*range(num_sources)}.intersection(sources)) < len(sources):
                yield (
                    f"{name} is {list(sources)}: an example has sources 0 to {num_sources - 1}, each at most "
                    "once"
                )

    def _source_problems(self) -> Iterator[str]:
        if self.documents != "apart" and (
            self.data.num_sources > 1 or "document" not in self.data.task.roles
        ):
            yield (
                f"documents is {self.documents}: data.task needs one source and a stream 'document'; it has "
                f"{', '.join(self.data.task.roles)}"
            )
        if self.multi_source is not None and len(self.read_sources) < 2:
            yield "multi_source is given, but one source is read: finetune with single_source alone"
        if self.multi_source is None and len(self.read_sources) > 1:
            yield f"read is {list(self.read_sources)} without multi_source: give it, or read one source"
        if self.multi_source is None and self.single_source is not None and self.single_source.draws:
            yield "single_source.draws is given without multi_source: the source that is read is trained on"
        if self.is_adversarial and (self.multi_source is None or len(self.languages) > MAX_FOREIGN + 1):
            yield f"is_adversarial needs multi_source and examples of 2 to {MAX_FOREIGN} sources"

    def _phase_problems(self) -> Iterator[str]:
        if self.single_source is None and self.multi_source is None:
            yield "single_source and multi_source are both null: nothing is finetuned"
        upstream = self.upstream
        if upstream is None:
            return
        read_languages = {self.languages[index] for index in self.read_sources} | {self.languages[-1]}
        if upstream.checkpoint is not None:
            named = upstream.checkpoint.language_ids
            if named is not None and (missing := sorted(set(self.data.languages) - set(named))):
                yield f"upstream.checkpoint.language_ids lacks {', '.join(missing)}"
            return
        missing = sorted(read_languages - set(self.data.text or ()))
        if missing:
            yield f"upstream learns from data.text, which lacks {', '.join(missing)}"
        depths = self.model.num_encoder_layers, self.model.num_decoder_layers
        if upstream.objective == "masked_tokens" and depths[0] != depths[1]:
            yield (
                "upstream.objective is masked_tokens, whose encoder serves as decoder, too: "
                f"model.num_encoder_layers is {depths[0]}, num_decoder_layers {depths[1]}"
            )
