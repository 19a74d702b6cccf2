"""Settings of embedding transfer. Without torch, since reading a study imports this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from nlgraft.basics.strict_config import GIVEN, Condition, ReadWhen, StrictConfig
from nlgraft.nn.model_config import ArchitectureConfig, BeamSearchConfig
from nlgraft.stages.config_parts import (
    VECTOR_METHODS,
    MaskedLMConfig,
    NewLayersConfig,
    PhaseConfig,
    ScoreConfig,
    UpstreamPhaseConfig,
    VectorsConfig,
    defaulting,
    shared_with_training,
)
from nlgraft.text.corpus_config import PairsConfig, as_corpus, role_problem
from nlgraft.text.files import InputPathOrName
from nlgraft.text.tokenizer_config import RatesConfig, SampledTokenizerConfig, TokenizerConfig
from nlgraft.training.train_config import LrSchedule, OneOfSeveral, SmoothedTrainConfig

Method = Literal[
    "single_run",
    "pretrain_finetune",
    "untrained",
    "downstream_vocab",
    "joint_vocab",
    "bpe_dropout",
    "random_init",
    "mean",
    "hewitt",
    "fvt",
    "wvt",
    "word2vec",
    "reconstruction",
    "focus",
    "wechsel",
    "independent_encoder",
    "cbow",
    "avg_eg",
    "att_eg",
    "patt_eg",
]

GeneratorKind = Literal["att", "patt"]
TRAINED_METHODS: dict[str, GeneratorKind] = {"att_eg": "att", "patt_eg": "patt"}
"""Methods whose generator has parameters, with its kind."""
SIMILAR_METHODS = ("avg_eg", *TRAINED_METHODS)
"""Methods that generate embeddings from similar tokens."""
PRODUCERS = {"random_init": "random", "avg_eg": "avg"}
"""Methods with a different name in `nlgraft.vocab.methods`."""
PRETRAINED_VOCABULARIES = {"downstream_vocab": "downstream", "joint_vocab": "joint"}
"""Methods that do not pretrain with the upstream vocabulary, and the vocabulary they use instead."""
UNTRAINED_METHODS = ("single_run", "untrained")
"""Methods that start from a randomly initialised model."""
KEPT_METHODS = (*UNTRAINED_METHODS, "pretrain_finetune", "bpe_dropout", *PRETRAINED_VOCABULARIES)
"""Methods that keep the vocabulary of the model they finetune."""
STREAMS = {"encoder": "source 0", "decoder": "target"}
"""Stream of the encoded text that is the input of each side of the model."""

_METHODS = get_args(Method)
_EXCHANGING = tuple(name for name in _METHODS if name not in KEPT_METHODS)
MASKED_LM_METHODS = ("pretrain_finetune", *(name for name in _EXCHANGING if name != "independent_encoder"))
"""Methods available for masked language models."""


def _with(methods: Iterable[str], others: Condition | None = None) -> Condition:
    return {"transfer.method": tuple(methods), **(others or {})}


_PRETRAINED = _with(name for name in _METHODS if name not in UNTRAINED_METHODS)
_WITH_UPSTREAM_TEXT = _with(name for name in _METHODS if name != "single_run")
_TRANSLATED: Condition = {"masked_lm": (None,)}
_PAIRS_PRETRAINED: Condition = {**_PRETRAINED, **_TRANSLATED}
_SMOOTHING = ("label_smoothing", "smoothing_kind")
READ_WHEN: ReadWhen = {
    "data.upstream": (_WITH_UPSTREAM_TEXT,),
    "tokenizers.upstream": (_WITH_UPSTREAM_TEXT,),
    "tokenizers.upstream.sampling_alpha": (_PRETRAINED,),
    "tokenizers.downstream": (_with(("single_run", "downstream_vocab", *_EXCHANGING)),),
    "tokenizers.downstream.sampling_alpha": (),
    "tokenizers.joint": (_with(("joint_vocab",)),),
    "upstream": (_PRETRAINED,),
    "upstream.checkpoint": (_PAIRS_PRETRAINED,),
    **{f"upstream.train.{name}": (_PAIRS_PRETRAINED,) for name in _SMOOTHING},
    **{f"downstream.train.{name}": (_TRANSLATED,) for name in ("is_evaluated_at_start", *_SMOOTHING)},
    "generator": (_with(TRAINED_METHODS),),
    "generator.encoder_rates": (
        _with(TRAINED_METHODS, {"transfer.sides": ("encoder", "both")}),
        _with(TRAINED_METHODS, {"upstream.objective": ("masked_tokens",)}),
        _with(TRAINED_METHODS, {"masked_lm": (GIVEN,)}),
    ),
    "generator.decoder_rates": (
        _with(
            TRAINED_METHODS,
            {"transfer.sides": ("decoder", "both"), "upstream.objective": ("translation", "denoising")},
        ),
    ),
    "transfer.sides": (_with((*PRETRAINED_VOCABULARIES, *_EXCHANGING)),),
    "transfer.cap": (_with(SIMILAR_METHODS),),
    "vectors": (_with(VECTOR_METHODS),),
    "independent": (_with(("independent_encoder",)),),
    "masked_lm.downstream_tokenizer": (_with(_EXCHANGING),),
}
"""Settings that only some arms read: see `nlgraft.basics.strict_config`."""

# A masked language model has one table, decodes nothing, and its loss is not smoothed.
_OF_ENCODER_DECODERS = (
    *("tokenizers", "model", "independent", "decode", "score"),
    *("transfer.sides", "generator.decoder_rates", "upstream.objective"),
    *("upstream.num_bleu_sentences", "downstream.num_bleu_sentences"),
    *(f"{part}.train.{name}" for part in ("upstream", "downstream") for name in _SMOOTHING),
)

Sides = Literal["decoder", "encoder", "both"]

CUT_EDGES = {"decoder": 0.2, "encoder": 0.05}
"""Probability of a cut that splits off a single character, in targets and in sources (authors' code)."""
NEW_MASK_RATE = 0.5
"""Share of the generated tokens that are masked and predicted; the others are input (authors' code)."""


class DataConfig(StrictConfig):
    """The two corpora, each with one source and one target."""

    upstream: PairsConfig
    """Pretraining corpus: domain A."""
    downstream: PairsConfig
    """Corpus of the downstream task: domain B."""
    max_tokens: int = Field(default=256, ge=1, le=100_000)
    """Maximum length of source and target in tokens, without begin and end; longer sequences are truncated
    and counted."""


SampledTokenizer = Annotated[SampledTokenizerConfig, defaulting(is_shared=False)]


class TokenizersConfig(StrictConfig):
    """Subword vocabularies of the two domains, each learned on its own training text."""

    upstream: SampledTokenizer = SampledTokenizerConfig(is_shared=False)
    """Vocabulary of the pretrained model; one for each side unless is_shared."""
    downstream: SampledTokenizer = SampledTokenizerConfig(is_shared=False)
    """Vocabulary of the downstream task, learned from its training text (section 4.1)."""
    joint: Annotated[TokenizerConfig, defaulting(is_shared=False)] = TokenizerConfig(is_shared=False)
    """Vocabulary learned from both domains' training text, for joint_vocab (Nguyen and Chiang 2017)."""


class UpstreamConfig(UpstreamPhaseConfig):
    """The pretrained model (section 3.1, pretrain)."""

    objective: Literal["translation", "denoising", "masked_tokens"] = "translation"
    """Pretraining task. translation: the sentence pairs of domain A (Table 2). denoising: every line of
    domain A, source or target, is reconstructed from a copy with masked spans, as in M-BART (Table 3).
    masked_tokens: an encoder is trained to predict masked tokens, as M-BERT, and then initialises both the
    encoder and, with new cross-attention, the decoder (Rothe et al. 2020, BERT2BERT; Table 3)."""
    checkpoint: InputPathOrName | None = None
    """Released Hugging Face model used instead of a pretraining (Table 3); its architecture and tokenizer
    replace ``model`` and ``tokenizers.upstream``. translation: local directory of an OPUS-MT (Marian) of one
    pair of languages, with source.spm, target.spm and vocab.json; or, with ``languages``, of an mBART,
    mBART-50, M2M-100 or NLLB with its sentencepiece.bpe.model. denoising: local directory of an mBART with
    its sentencepiece.bpe.model. masked_tokens: directory or hub name of a BERT with its WordPiece
    tokenizer.json or vocab.txt. null: pretrain a model."""
    revision: str | None = None
    """Commit, tag or branch of a model on the hub (null: main); only a commit makes it reproducible."""
    # Out of the keys of cells and searches where it is null: these are older than it.
    languages: tuple[str, str] | None = Field(default=None, exclude_if=lambda languages: languages is None)
    """Those of source and target, in both corpora, by the names that a checkpoint of many languages has for
    them (de_DE: mBART, de: M2M-100, deu_Latn: NLLB); all vocabularies get their tokens. null: one pair."""
    start_id: int | None = Field(default=None, ge=0)
    """For an mBART checkpoint: the checkpoint's id of the token that begins a target, that is, of the target
    language (cc25: 250003 for German); null: the id in its config.json."""


class GeneratorConfig(OneOfSeveral):
    """Training of ATT-EG and PATT-EG (section 3.3). AVG-EG has no parameters and ignores all of this."""

    ONE_OF = (("max_steps", "max_epochs"),)

    distillation_lambda: float = Field(default=0.5, ge=0)
    """Weight of the distillation loss L_d beside the pretraining loss L_p (eq. 5); 0: no distillation."""
    decoder_rates: RatesConfig = RatesConfig()
    """Splits and merges in target sentences."""
    encoder_rates: Annotated[RatesConfig, defaulting(min_split_chars=7)] = RatesConfig(min_split_chars=7)
    """Splits and merges in source sentences, if the encoder's vocabulary is exchanged, and in the lines of a
    masked language model."""
    max_steps: int | None = Field(default=1000, ge=1)
    """Optimiser steps (section 5.3: convergence at around 20,000); excludes ``max_epochs``."""
    max_epochs: int | None = Field(default=None, ge=1)
    """Passes over the upstream text (section 4.1: one); excludes ``max_steps``."""
    batch_tokens: int = Field(default=4096, ge=1)
    """Maximum number of tokens in a batch, including padding."""
    peak_lr: float = Field(default=1e-2, gt=0)
    """Learning rate at the end of warm-up, its maximum."""
    lr_schedule: LrSchedule = "linear"
    """Decay of the learning rate after warm-up. linear: to zero, as in the authors' code for BERT; section
    4.1 takes over the schedule of the pretraining, inverse_sqrt."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps of linear warm-up."""
    eval_every_steps: int = Field(default=200, ge=1)
    """Steps between evaluations on upstream dev; the generator with the lowest loss is kept."""
    num_dev_sentences: int = Field(default=500, ge=1)
    """Number of upstream dev sentences for these evaluations, whose splits and merges are fixed."""
    is_per_seed: bool = False
    """If true, a generator is trained for each trial seed; otherwise all replicates share one, and intervals
    do not include the variance of its training."""

    def train_config(self, inherited: SmoothedTrainConfig) -> SmoothedTrainConfig:
        """Translate these settings into those of the training loop.

        Args:
            inherited: The pretraining, which determines label smoothing and precision.

        Returns:
            The training config.
        """
        return SmoothedTrainConfig(
            **shared_with_training(self),
            label_smoothing=inherited.label_smoothing,
            smoothing_kind=inherited.smoothing_kind,
            precision=inherited.precision,
            betas=(0.9, 0.999),  # section 4.1
            # Untrained, a generator is AVG-EG: a training that only makes it worse ends with that.
            is_evaluated_at_start=True,
            best_metric="generator/dev_loss",
        )


class TransferConfig(StrictConfig):
    """Initialisation of the downstream vocabulary's embeddings (sections 3.1, 3.2 and 4.1)."""

    method: Method = "patt_eg"
    """The arm (Table 2). No pretraining: single_run (downstream vocabulary), untrained (upstream vocabulary;
    Table 3, Random Init). No exchange: pretrain_finetune and bpe_dropout keep the upstream vocabulary, the
    latter pretrained on sampled segmentations; downstream_vocab and joint_vocab pretrain with the task's
    vocabulary or with one learned from all text. The others exchange the vocabulary of one pretrained model,
    copy the rows of shared tokens and initialise the rest: random_init (as in a new model), mean, hewitt
    (N(mean, covariance)), fvt and wvt (averages over the old tokenizer's pieces), word2vec (vectors of
    downstream text), reconstruction (character n-grams), focus and wechsel (distributionally similar tokens),
    avg_eg, att_eg and patt_eg (morphologically similar tokens). cbow replaces the shared rows as well;
    independent_encoder discards the table for a new one followed by a small encoder."""
    sides: Sides = "decoder"
    """Whose vocabulary is exchanged (section 4.1: the decoder's)."""
    cap: int | None = Field(default=10, ge=1)
    """Maximum number of similar tokens of a new token: first its subwords, then the tokens that contain it,
    by id; null: no maximum (authors' code: 10; the paper does not say)."""


class Config(StrictConfig):
    """A trial: pretrain on domain A, exchange the vocabulary, finetune and test on domain B."""

    READ_WHEN = READ_WHEN

    data: DataConfig
    """The two corpora: domain A (upstream) and domain B (downstream)."""
    tokenizers: TokenizersConfig = TokenizersConfig()
    """The vocabularies of the two domains."""
    model: ArchitectureConfig = ArchitectureConfig()
    """Architecture of the encoder-decoder."""
    upstream: UpstreamConfig = UpstreamConfig()
    """Pretraining on domain A."""
    generator: GeneratorConfig = GeneratorConfig()
    """Generator training on domain A."""
    transfer: TransferConfig = TransferConfig()
    """Exchange of the vocabulary between pretraining and finetuning."""
    vectors: VectorsConfig = VectorsConfig()
    """Token vectors learned from text, used by word2vec, cbow, focus and wechsel."""
    independent: NewLayersConfig = NewLayersConfig()
    """New layers of independent_encoder, and the first phase of its training."""
    downstream: PhaseConfig = PhaseConfig()
    """Finetuning on domain B."""
    decode: BeamSearchConfig = BeamSearchConfig()
    """Beam search on dev and test of domain B, and on dev of domain A."""
    score: ScoreConfig = ScoreConfig()
    """Metrics of the output on domain B."""
    masked_lm: MaskedLMConfig | None = None
    """If given, the model is a masked language model instead of an encoder-decoder (the M-BERT side of Table
    3, by its loss); null: an encoder-decoder."""

    def _problems(self) -> Iterator[str]:
        yield from self._role_problems()
        if self.masked_lm is not None:
            yield from self._masked_lm_problems()
        yield from self._objective_problems()
        yield from self._training_problems()
        method, upstream = self.transfer.method, self.tokenizers.upstream
        if method == "bpe_dropout" and (upstream.kind != "bpe" or upstream.sampling_alpha is None):
            yield (
                f"transfer.method is bpe_dropout with tokenizers.upstream.kind {upstream.kind} and "
                f"sampling_alpha {upstream.sampling_alpha}: set kind to bpe and sampling_alpha to the "
                "dropout probability (0.1, Provilkov et al. 2020)"
            )
        if self.model.tying != "all":
            return
        for name, tokenizer in self.tokenizers:
            if not tokenizer.is_shared and (name != "joint" or method == "joint_vocab"):
                yield (
                    f"model.tying is 'all' with tokenizers.{name}.is_shared false: one table needs one "
                    "vocabulary; set is_shared true, or model.tying to decoder"
                )

    def _training_problems(self) -> Iterator[str]:
        """Find settings of the two short trainings that contradict those they inherit."""
        trainings = [("generator", self.generator.train_config, self.upstream.train)]
        # Rates of the finetuning need not suit a first phase that it does not have.
        if self.transfer.method == "independent_encoder":
            trainings.append(("independent", self.independent.train_config, self.downstream.train))
        for name, describe, shared in trainings:
            try:
                describe(shared)
            except ValidationError as error:
                yield f"{name}: {error.errors()[0]['msg'].removeprefix('Value error, ')}"

    def _masked_lm_problems(self) -> Iterator[str]:
        """Find settings that do not apply to a masked language model."""
        for path in _OF_ENCODER_DECODERS:
            *outer, name = path.split(".")
            part = reduce(getattr, outer, self)
            if getattr(part, name) != type(part).model_fields[name].default:
                yield f"masked_lm and {path} are both given: {path} is of encoder-decoders; leave one out"
        if self.transfer.method not in MASKED_LM_METHODS:
            yield (
                f"transfer.method is {self.transfer.method} with masked_lm, which supports "
                f"{', '.join(MASKED_LM_METHODS)}; choose one of these, or leave masked_lm out"
            )

    def _role_problems(self) -> Iterator[str]:
        for name in ("upstream", "downstream"):
            roles: tuple[str, ...] = ("source 0", "target")
            rules: dict[str, Any] = {"is_tested": name == "downstream"}
            if self.masked_lm is not None:
                roles = ("source 0",)
                rules |= {"is_exact": True, "has_further_tests": False}
            elif name == "upstream" and self.upstream.objective != "translation":
                roles = ()  # any line of any role is text
            if problem := role_problem(as_corpus(getattr(self.data, name)), *roles, **rules):
                yield f"data.{name} {problem}"

    def _objective_problems(self) -> Iterator[str]:
        upstream, tokenizer, method = self.upstream, self.tokenizers.upstream, self.transfer.method
        setting = f"upstream.objective is {upstream.objective}"
        for name in ("start_id", "revision"):
            if getattr(upstream, name) is not None and upstream.checkpoint is None:
                yield f"upstream.{name} is {getattr(upstream, name)} without a checkpoint: give both or none"
        is_translation = upstream.objective == "translation"
        if upstream.languages and (not is_translation or upstream.checkpoint is None):
            yield (
                f"upstream.languages are {', '.join(upstream.languages)}, for a checkpoint of translation: "
                "give one with upstream.objective translation, or leave languages out"
            )
        if is_translation and upstream.checkpoint is None:
            return
        if upstream.checkpoint is not None:
            yield from self._checkpoint_problems()
        elif not tokenizer.is_shared:
            yield f"{setting}: text is its own source, so tokenizers.upstream needs is_shared true"
        if tokenizer.sampling_alpha is not None or upstream.num_bleu_sentences:
            yield f"{setting} with sampling_alpha or num_bleu_sentences, which belong to a pretraining"
        if method in (*PRETRAINED_VOCABULARIES, "bpe_dropout"):
            yield f"{setting} with transfer.method {method}, which pretrains a translation model"
        depths = (self.model.num_encoder_layers, self.model.num_decoder_layers)
        is_own = upstream.objective == "masked_tokens" and upstream.checkpoint is None
        if is_own and depths[0] != depths[1]:
            yield (
                f"{setting}: the encoder serves as decoder, too; model.num_encoder_layers is {depths[0]}, "
                f"num_decoder_layers {depths[1]}"
            )

    def _checkpoint_problems(self) -> Iterator[str]:
        method, setting = self.transfer.method, f"upstream.checkpoint is {self.upstream.checkpoint}"
        tokenizer, is_both = self.tokenizers.downstream, self.transfer.sides == "both"
        if self.upstream.objective == "masked_tokens":
            if self.upstream.start_id is not None:
                yield f"{setting} of a BERT with start_id {self.upstream.start_id}, which belongs to an mBART"
            if tokenizer.sampling_alpha is not None and (method in KEPT_METHODS or not is_both):
                yield (
                    f"{setting} with tokenizers.downstream.sampling_alpha {tokenizer.sampling_alpha}: a side "
                    "keeps the checkpoint's WordPiece, which cuts text in one way; leave sampling_alpha out"
                )
            return
        if self.upstream.start_id is not None and self.upstream.objective == "translation":
            kind = "a translation model" if self.upstream.languages else "an OPUS-MT"
            yield f"{setting} of {kind} with start_id {self.upstream.start_id}, which belongs to an mBART"
        if method == "untrained":
            yield f"{setting} with transfer.method untrained, which needs a model to be trained"
        elif is_both and not tokenizer.is_shared:
            yield f"{setting} with transfer.sides both, which needs tokenizers.downstream.is_shared true"
