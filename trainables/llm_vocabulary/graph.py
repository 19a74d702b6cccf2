"""The stages of a trial, their settings and their inputs.

corpora -> old tokenizer -> pretraining -> new vocabulary -> exchange -> further training -> scores. Arms
share the pretrained model; arms with the same vocabulary share its tokenizer and the encoded text. With a
task the text is prompts and targets, and what is written after prompts of dev and test is scored last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from nlgraft.nn.model_config import LlamaConfig
from nlgraft.pipeline.stage import Stage
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages import text_graph
from nlgraft.stages.config_parts import VectorKind
from nlgraft.stages.masked_lm_graph import CHECKPOINT_TOKENIZER
from nlgraft.stages.released_graph import CHECKPOINTS, CheckpointSettings, checkpoint_settings
from nlgraft.stages.seq2seq_graph import SCORE, ScoreInputs
from nlgraft.stages.stage_kind import (
    SIDE,
    VECTORS,
    CorpusInputs,
    Inputs,
    LanguageModelInputs,
    NoInputs,
    NoSettings,
    Settings,
    StageKind,
    T,
    TokenizedInputs,
    TrainingSettings,
    TrainLanguageModelInputs,
    TrialStages,
    VectorInputs,
    VectorSettings,
    exchanged,
    transfer_plan,
)
from nlgraft.stages.text_graph import TokenizedText
from nlgraft.text.corpus_config import SplitName
from nlgraft.text.tokenizer_config import ByteTokenizerConfig
from nlgraft.training.train_config import LoraConfig, TrainConfig
from trainables.llm_vocabulary.config import (
    DONOR_METHODS,
    EXTENDING,
    KEPT,
    PRUNING,
    WITH_NEW_ROWS,
    Config,
    DecodeConfig,
    ModelConfig,
    PackedTrainConfig,
    has_target,
)


def _line_text(name: str, corpus: Stage, tokenizer: Stage) -> TokenizedText:
    """Encode whole lines of a corpus, those of targets too."""
    inputs = TokenizedInputs(corpus=corpus, tokenizer=tokenizer)
    return TokenizedText(corpus, tokenizer, ENCODED_LINES.stage(f"{name}_encoded", NoSettings(), inputs))


def _released(
    name: str,
    tokenizer_name: str,
    config: ModelConfig,
) -> tuple[Stage, Stage]:
    """Take a released model and its tokenizer as they are."""
    settings = checkpoint_settings(config.checkpoint, config.revision)
    assert settings is not None
    locations = {"checkpoint": config.checkpoint, "read_as": "causal_lm"}
    return (
        RELEASED_CAUSAL.stage(name, settings, NoInputs(), locations=locations),
        CHECKPOINT_TOKENIZER.stage(tokenizer_name, settings, NoInputs(), locations=locations),
    )


class _Trial(TrialStages[Config]):
    """The stages of one trial."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config, seed)
        self.change = config.vocabulary.change
        self.is_changed = self.change != "none"
        self.has_new_rows = self.change in WITH_NEW_ROWS

    # --- text and vocabularies ----------------------------------------------------------------------------

    @cached_property
    def upstream_corpus(self) -> Stage | None:
        config = self.config.data.upstream
        return None if config is None else text_graph.corpus("upstream", config)

    @cached_property
    def corpus(self) -> Stage:
        return text_graph.corpus("downstream", self.config.data.downstream)

    @cached_property
    def old(self) -> Stage:
        """The model's own tokenizer."""
        config = self.config.causal_lm
        if config.checkpoint is not None:
            return _released("released", "checkpoint_tokenizer", config)[1]
        assert config.tokenizer is not None
        assert self.upstream_corpus is not None
        return self._byte_tokenizer("upstream", config.tokenizer, self.upstream_corpus)

    @cached_property
    def new(self) -> Stage:
        """The trial's tokenizer."""
        config = self.config.vocabulary
        if not self.is_changed:
            return self.old
        if self.change == "replace":
            learned = ByteTokenizerConfig(vocab_size=config.size)
            return self._byte_tokenizer("downstream", learned, self.corpus)
        is_extended = self.change in EXTENDING
        settings = ChangeSettings(
            size=config.size if self.change in PRUNING else None,
            num_added=config.num_added if is_extended else None,
            min_count=config.min_count if is_extended else None,
        )
        inputs = TokenizedInputs(tokenizer=self.old, corpus=self.corpus)
        return CHANGE.stage("changed_tokenizer", settings, inputs)

    @staticmethod
    def _byte_tokenizer(name: str, config: ByteTokenizerConfig, corpus: Stage) -> Stage:
        settings = ByteTokenizerSettings(tokenizer=config)
        return BYTE_TOKENIZER.stage(f"{name}_tokenizer", settings, CorpusInputs(corpus=corpus))

    def _text(
        self,
        name: str,
        corpus: Stage,
        tokenizer: Stage,
        *,
        is_paired: bool,
    ) -> TokenizedText:
        """Encode a corpus as the model reads it: lines, or prompts with targets."""
        task = self.config.task
        if task is None or not is_paired:
            return _line_text(name, corpus, tokenizer)
        room = self.config.causal_lm.max_tokens - task.max_target_tokens
        settings = PairSettings(
            prompt=task.prompt, max_prompt_tokens=room, max_target_tokens=task.max_target_tokens
        )
        inputs = TokenizedInputs(corpus=corpus, tokenizer=tokenizer)
        return TokenizedText(corpus, tokenizer, ENCODED_PAIRS.stage(f"{name}_pairs", settings, inputs))

    def _upstream_text(self, name: str, tokenizer: Stage) -> TokenizedText:
        upstream, corpus = self.config.data.upstream, self.upstream_corpus
        assert upstream is not None
        assert corpus is not None
        return self._text(name, corpus, tokenizer, is_paired=has_target(upstream))

    @cached_property
    def old_text(self) -> TokenizedText:
        """Downstream text in the old vocabulary."""
        return self._text("old", self.corpus, self.old, is_paired=True)

    @cached_property
    def text(self) -> TokenizedText:
        """Downstream text in the trial's vocabulary."""
        if not self.is_changed:
            return self.old_text
        return self._text("downstream", self.corpus, self.new, is_paired=True)

    @cached_property
    def lines(self) -> TokenizedText:
        """All lines of downstream text in the trial's vocabulary, sources and targets alike."""
        return _line_text("downstream" if self.is_changed else "old", self.corpus, self.new)

    # --- model ------------------------------------------------------------------------------------------

    @cached_property
    def pretrained(self) -> Stage:
        config, upstream = self.config.causal_lm, self.config.upstream
        if config.checkpoint is not None:
            return _released("released", "checkpoint_tokenizer", config)[0]
        assert upstream is not None
        settings = TrainCausalSettings(
            train=upstream.train,
            max_tokens=config.max_tokens,
            llama=config.model,
            metric_prefix="upstream",
        )
        text = self._upstream_text("upstream", self.old)
        seed = upstream.seed_of(self.seed)
        return TRAIN_CAUSAL.stage("upstream", settings, TrainLanguageModelInputs(**text.inputs), seed=seed)

    def _vectors(self, kind: VectorKind, age: str) -> Stage:
        """Vectors of new tokens from downstream text, or of old ones from upstream text if there is any."""
        if age == "new":
            text = self.lines
        elif self.upstream_corpus is None:
            text = _line_text("old", self.corpus, self.old)
        else:
            text = _line_text("upstream", self.upstream_corpus, self.old)
        return VECTORS.stage(
            f"{age}_{kind}_vectors",
            VectorSettings(kind=kind, vectors=self.config.vectors, streams={SIDE: TEXT}),
            VectorInputs(
                encoded=text.encoded,
                tokenizers={SIDE: text.tokenizer},
                model=self.pretrained,
            ),
            seed=self.seed,
        )

    def _donor(self, method: str) -> tuple[Stage, Stage] | tuple[None, None]:
        """The model in whose space a method compares tokens, and its tokenizer."""
        config = self.config.vocabulary.donor
        if config is None or method not in DONOR_METHODS:
            return None, None
        if config.train is None:
            return _released("donor", "donor_tokenizer", config)
        settings = TrainCausalSettings(
            train=config.train,
            max_tokens=self.config.causal_lm.max_tokens,
            llama=config.model,
            metric_prefix="donor",
        )
        donor = TRAIN_CAUSAL.stage(
            "donor", settings, TrainLanguageModelInputs(**self.text.inputs), seed=self.seed
        )
        return donor, self.new

    @cached_property
    def plans(self) -> Stage | None:
        """Where each new row comes from; None where the vocabulary is the old one."""
        if not self.is_changed:
            return None
        # All tokens of a pruned vocabulary are copied, whatever the method.
        method = self.config.vocabulary.method if self.has_new_rows else "mean"
        donor, donor_tokenizer = self._donor(method)
        return transfer_plan(
            self.pretrained,
            {SIDE: self.old},
            {SIDE: self.new},
            method,
            seed=self.seed,
            vectors=self._vectors,
            donor=donor,
            donor_tokenizer=donor_tokenizer,
        )

    @cached_property
    def exchanged(self) -> Stage:
        """The model with the trial's vocabulary, before any training."""
        if self.plans is None:
            return self.pretrained
        model = exchanged(self.pretrained, self.plans)
        distillation = self.config.vocabulary.distillation
        if distillation is None or not self.has_new_rows:
            return model
        old = _line_text("old", self.corpus, self.old)
        return DISTILLED.stage(
            "distilled",
            DistilSettings(**dict(distillation)),
            DistilInputs(
                **self.lines.inputs,
                start=model,
                teacher=self.pretrained,
                old_encoded=old.encoded,
                old_tokenizer=self.old,
            ),
            seed=self.seed,
        )

    @cached_property
    def model(self) -> Stage:
        """The trial's model."""
        config = self.config.training
        if config is None:
            return self.exchanged
        if not self.is_changed:
            return self._kept
        steps = config.new_rows_first_steps if self.has_new_rows else 0
        return self._trained("continued", self.exchanged, self.text, new_rows_first_steps=steps)

    @cached_property
    def _kept(self) -> Stage:
        """The model with its old vocabulary, trained likewise: the same stage in all trials."""
        return self._trained(KEPT, self.pretrained, self.old_text)

    def _trained(
        self,
        name: str,
        start: Stage,
        text: TokenizedText,
        *,
        new_rows_first_steps: int = 0,
    ) -> Stage:
        config = self.config.training
        assert config is not None
        settings = TrainCausalSettings(
            train=config.train,
            max_tokens=self.config.causal_lm.max_tokens,
            new_rows_first_steps=new_rows_first_steps,
            table_lr_multiplier=config.table_lr_multiplier,
            lora=config.lora,
        )
        inputs = TrainLanguageModelInputs(**text.inputs, start=start)
        return TRAIN_CAUSAL.stage(name, settings, inputs, seed=self.seed)

    # --- results ----------------------------------------------------------------------------------------

    def scores(self, splits: tuple[str, ...]) -> Stage:
        """Score the trial's model; its training, if there is one, has scored it on dev."""
        tests = [split for split in splits if split != "dev"]
        is_trained = self.config.training is not None
        if self.config.task is not None:
            further = {split: self._scored(split) for split in splits if split != "dev" or not is_trained}
            return self._written(splits, further | (self._measures() if tests else {}))
        if not tests:
            return self.model if is_trained else self._scored("dev")
        further = {split: self._scored(split) for split in tests[1:]} | self._measures()
        if not is_trained:
            further["dev"] = self._scored("dev")
        return self._scored(tests[0], further)

    def _written(self, splits: tuple[str, ...], further: Mapping[str, Stage]) -> Stage:
        """Score what the trial's model writes after prompts."""
        task, score = self.config.task, self.config.score
        assert task is not None
        inputs = ScoreCausalInputs(**self.text.inputs, model=self.model, further={})
        translations = {
            split: WRITTEN.stage(
                f"translation_{split}",
                WriteSettings(
                    split=split,
                    decode=task.decode,
                    max_target_tokens=task.max_target_tokens,
                    is_calibrated=score.is_calibrated,
                ),
                inputs,
            )
            for split in splits
        }
        learned = pieces.learned_scores(score, self.corpus, translations)
        return SCORE.stage(
            "scores",
            pieces.score_settings(score),
            ScoreInputs(corpus=self.corpus, translations=translations, further={**further, **learned}),
        )

    def _scored(self, split: str, further: Mapping[str, Stage] | None = None) -> Stage:
        return self._score(f"{split}_scores", self.text, split, "", further)

    def _score(
        self,
        name: str,
        text: TokenizedText,
        split: str,
        prefix: str,
        further: Mapping[str, Stage] | None = None,
    ) -> Stage:
        max_tokens = self.config.causal_lm.max_tokens
        settings = ScoreCausalSettings(split=split, max_tokens=max_tokens, metric_prefix=prefix)
        inputs = ScoreCausalInputs(**text.inputs, model=self.model, further=further or {})
        return SCORE_CAUSAL.stage(name, settings, inputs)

    def _measures(self) -> dict[str, Stage]:
        """Stages whose metrics belong to the trial although nothing reads them."""
        inputs = MeasureInputs(**self.lines.inputs, model=self.model, plans=self.plans)
        stages = {
            "text": MEASURES.stage("text_measures", NoSettings(), inputs),
            "generation": GENERATION.stage("generation", NoSettings(), inputs),
        }
        if self.upstream_corpus is not None:
            text = self._upstream_text("old_domain", self.new)
            stages["old_domain"] = self._score("old_domain_scores", text, "test", "old_domain")
        training = self.config.training
        if training is not None and training.has_reference and self.is_changed:
            caught_up = CatchUpInputs(trained=self.model, reference=self._kept)
            stages["catch_up"] = CATCH_UP.stage("catch_up", NoSettings(), caught_up)
        return stages


stage_graph = _Trial.graph


# Settings and inputs of the stages that only this system has. No torch.


TEXT = "source 0"
"""Stream of an encoded split, and role of its text."""


class ByteTokenizerSettings(Settings):
    """A byte-level BPE vocabulary that is learned from the training text of a corpus."""

    tokenizer: ByteTokenizerConfig
    """Its size."""


class TrainCausalSettings(TrainingSettings[PackedTrainConfig]):
    """One training of a causal language model: of a fresh Llama, or of the input ``start``."""

    max_tokens: int
    """Predicted tokens of a sequence of packed lines; longest context in scoring."""
    llama: LlamaConfig | None = None
    """A fresh Llama of transformers."""
    new_rows_first_steps: int = 0
    """Number of first steps that train only the new rows of an exchanged vocabulary; needs ``start``."""
    table_lr_multiplier: float = 1.0
    """Factor on the learning rate of tables and output biases."""
    lora: LoraConfig | None = None
    """Adapters, which learn with the new rows alone."""
    metric_prefix: str = ""
    """Prefix of all metrics, e.g. ``upstream``, of a training whose model is not the trial's result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers, and width, of a fresh model."""
        if self.llama is None:
            return None
        return (self.llama.num_layer_parameters, self.llama.d_model)


class DistilSettings(TrainingSettings[TrainConfig]):
    """Token distillation of the new rows of an exchanged vocabulary."""

    num_contexts: int
    """Contexts of each new token, at most."""
    context_tokens: int
    """Longest context, in old tokens."""
    layer: int
    """Hidden state that is compared."""


class DistilInputs(LanguageModelInputs[T]):
    """Lines in the new vocabulary and in the old one, with the model before and after the exchange."""

    tokenizer: T
    start: T
    teacher: T
    old_encoded: T
    old_tokenizer: T


class PairSettings(Settings):
    """Prompts that are read and targets that are predicted, with the special tokens at both ends."""

    prompt: str
    """The prompt, with the place of the source."""
    max_prompt_tokens: int
    """Longest prompt; the source in it is cut."""
    max_target_tokens: int
    """Longest target, its end included; one that is cut has no end."""


class WriteSettings(Settings):
    """Targets that are written after the prompts of a split."""

    split: SplitName
    """Split to write."""
    decode: DecodeConfig
    """Search."""
    max_target_tokens: int
    """Longest target, its end included."""
    is_calibrated: bool
    """If true, measure the expected calibration error of inference."""


class ScoreCausalSettings(Settings):
    """Losses of a causal language model on one split."""

    split: SplitName
    """Split to score."""
    max_tokens: int
    """Longest context."""
    metric_prefix: str = ""
    """Prefix of all metrics, of text that is not the trial's own."""


class ScoreCausalInputs(Inputs[T]):
    """A causal language model, and encoded text with corpus and tokenizer.

    ``further`` are stages whose metrics belong to the trial although nothing reads them.
    """

    model: T
    encoded: T
    corpus: T
    tokenizer: T
    further: Mapping[str, T] = field(default_factory=dict)


class ChangeSettings(Settings):
    """Another size of a vocabulary, with the old ids (extended) or rows (pruned) of what stays."""

    size: int | None
    """Number of tokens that pruning leaves; null: none is dropped."""
    num_added: int | None
    """Number of tokens to add; null: none."""
    min_count: int | None
    """Occurrences that an added token needs."""


class MeasureInputs(Inputs[T]):
    """Text in the trial's vocabulary, how it came about, and the trial's model.

    ``plans`` is missing where the vocabulary is the old one.
    """

    corpus: T
    encoded: T
    tokenizer: T
    model: T
    plans: T | None = None


class CatchUpInputs(Inputs[T]):
    """The training with the new vocabulary, and that with the old one."""

    trained: T
    reference: T


BYTE_TOKENIZER = StageKind(
    "trainables.llm_vocabulary.stages:learn_tokenizer", ByteTokenizerSettings, CorpusInputs
)
ENCODED_LINES = StageKind("trainables.llm_vocabulary.stages:encode", NoSettings, TokenizedInputs)
ENCODED_PAIRS = StageKind("trainables.llm_vocabulary.stages:encode_pairs", PairSettings, TokenizedInputs)
WRITTEN = StageKind(
    "trainables.llm_vocabulary.stages:write", WriteSettings, ScoreCausalInputs, workers="share"
)
RELEASED_CAUSAL = StageKind(
    "trainables.llm_vocabulary.stages:read_released", CheckpointSettings, NoInputs, check=CHECKPOINTS
)
TRAIN_CAUSAL = StageKind(
    "trainables.llm_vocabulary.stages:train",
    TrainCausalSettings,
    TrainLanguageModelInputs,
    workers="train",
)
DISTILLED = StageKind(
    "trainables.llm_vocabulary.stages:distil", DistilSettings, DistilInputs, workers="train"
)
SCORE_CAUSAL = StageKind(
    "trainables.llm_vocabulary.stages:score", ScoreCausalSettings, ScoreCausalInputs, workers="share"
)
CHANGE = StageKind("trainables.llm_vocabulary.stages:change", ChangeSettings, TokenizedInputs)
MEASURES = StageKind("trainables.llm_vocabulary.stages:measure_text", NoSettings, MeasureInputs)
GENERATION = StageKind(
    "trainables.llm_vocabulary.stages:generate", NoSettings, MeasureInputs, workers="first"
)
CATCH_UP = StageKind("trainables.llm_vocabulary.stages:catch_up", NoSettings, CatchUpInputs)
