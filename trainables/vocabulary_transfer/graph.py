"""The stages of a trial, their settings and their inputs.

corpora -> vocabularies -> pretraining -> exchange -> further masked-LM training -> classification -> scores.
Arms share the pretrained model, and arms with the same vocabulary its tokenizer and the encoded text.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from nlgraft.pipeline.stage import Stage
from nlgraft.stages import masked_lm_graph as masked_pieces
from nlgraft.stages import text_graph
from nlgraft.stages.masked_lm_graph import MaskedText, ScoreClassifierInputs, TrainMaskedSettings
from nlgraft.stages.stage_kind import (
    SIDE,
    Inputs,
    NoSettings,
    Settings,
    StageKind,
    T,
    TrialStages,
    exchanged,
    transfer_plan,
)
from nlgraft.text.corpus_config import AnyCorpus
from trainables.vocabulary_transfer.config import KEPT, PLAN_METHODS, SCRATCH, Config, SplitConfig


class _Trial(TrialStages[Config]):
    """The stages of one trial."""

    def __init__(self, config: Config, seed: int) -> None:
        super().__init__(config, seed)
        self.method = config.transfer.method
        self.limit = config.data.max_tokens

    # --- text -------------------------------------------------------------------------------------------

    @cached_property
    def upstream_corpus(self) -> Stage | None:
        """General text; of the task's own files only lines on which the classifier is not scored."""
        data = self.config.data
        if data.upstream is None:
            return None
        corpus = text_graph.corpus("upstream", data.upstream)
        # Given splits keep what is scored apart; splits that are drawn anew from all files do not.
        if data.split is None or not _have_one_origin(data.upstream, data.downstream):
            return corpus
        return APART.stage("upstream_apart", NoSettings(), ApartInputs(corpus=corpus, left_out=self.corpus))

    @cached_property
    def corpus(self) -> Stage:
        data = self.config.data
        corpus = text_graph.corpus("downstream", data.downstream)
        if data.split is None:
            return corpus
        return SPLIT.stage("downstream_split", SplitSettings(split=data.split), SplitInputs(pooled=corpus))

    @cached_property
    def unlabelled_corpus(self) -> Stage:
        """Text for the vocabulary and the masked-LM step, without lines on which the classifier is scored."""
        config = self.config.data.unlabelled
        if config is None:
            return self.corpus
        inputs = ApartInputs(corpus=text_graph.corpus("unlabelled", config), left_out=self.corpus)
        return APART.stage("unlabelled_apart", NoSettings(), inputs)

    @cached_property
    def old(self) -> Stage:
        corpus = self.upstream_corpus or self.corpus
        return masked_pieces.upstream_tokenizer(self.config.masked_lm, corpus)

    @cached_property
    def old_text(self) -> MaskedText:
        """Labelled text in the old vocabulary."""
        return self._in_old("old", self.corpus)

    def _in_old(self, name: str, corpus: Stage) -> MaskedText:
        dropout = self.config.masked_lm.upstream_dropout
        return masked_pieces.masked_text(name, corpus, self.old, max_tokens=self.limit, dropout=dropout)

    @cached_property
    def text(self) -> MaskedText:
        """Labelled text in the trial's vocabulary."""
        if self.method == KEPT:
            return self.old_text
        return self._in_new("downstream", self.corpus)

    @cached_property
    def unlabelled_text(self) -> MaskedText:
        """Text of the masked-LM step in the trial's vocabulary."""
        corpus = self.unlabelled_corpus
        if corpus is self.corpus:
            return self.text
        if self.method == KEPT:
            return self._in_old("old_unlabelled", corpus)
        return self._in_new("unlabelled", corpus)

    def _in_new(self, name: str, corpus: Stage) -> MaskedText:
        config = self.config.masked_lm.downstream_tokenizer
        tokenizer = masked_pieces.word_tokenizer("downstream", config, self.unlabelled_corpus)
        return masked_pieces.masked_text(
            name, corpus, tokenizer, max_tokens=self.limit, dropout=config.dropout
        )

    # --- model ------------------------------------------------------------------------------------------

    @cached_property
    def pretrained(self) -> Stage:
        config, model = self.config, self.config.masked_lm
        if config.upstream is None or self.upstream_corpus is None:
            return masked_pieces.begun_masked_lm("released", model, self.old, max_tokens=self.limit)
        text = self._in_old("upstream", self.upstream_corpus)
        seed = config.upstream.seed_of(self.seed)
        return masked_pieces.pretrained_masked_lm(
            model, config.upstream.train, text, max_tokens=self.limit, seed=seed
        )

    @cached_property
    def transferred(self) -> Stage:
        """The encoder with the trial's vocabulary."""
        if self.method == KEPT:
            return self.pretrained
        if self.method == SCRATCH:
            return masked_pieces.begun_masked_lm(
                "fresh", self.config.masked_lm, self.text.tokenizer, max_tokens=self.limit, seed=self.seed
            )
        method, new = PLAN_METHODS.get(self.method, self.method), {SIDE: self.text.tokenizer}
        plans = transfer_plan(self.pretrained, {SIDE: self.old}, new, method, seed=self.seed)
        return exchanged(self.pretrained, plans)

    @cached_property
    def body(self) -> Stage:
        config = self.config
        if config.intermediate is None:
            return self.transferred
        settings = TrainMaskedSettings(
            train=config.intermediate,
            masking=config.masked_lm.masking,
            scoring=config.masked_lm.scoring,
            metric_prefix="intermediate",
        )
        return masked_pieces.continued_masked_lm(
            "intermediate", self.transferred, self.unlabelled_text, settings, seed=self.seed
        )

    # --- results ----------------------------------------------------------------------------------------

    def scores(self, splits: tuple[str, ...]) -> Stage:
        """Train the classifier and score it."""
        trained = masked_pieces.trained_classifier(
            "classifier", self.body, self.text, self.config.classification, seed=self.seed
        )
        text = MeasureInputs(corpus=self.corpus, tokenizer=self.text.tokenizer, old_tokenizer=self.old)
        read = ScoreClassifierInputs(classifier=trained, body=self.body, further={}, **self.text.inputs)
        further = {
            "text": MEASURES.stage("text_measures", NoSettings(), text),
            "speed": SPEED.stage("speed", NoSettings(), read),
        }
        return masked_pieces.classifier_scores(replace(read, further=further), splits)


stage_graph = _Trial.graph


def _have_one_origin(*corpora: AnyCorpus) -> bool:
    """Tell whether corpora come from the same files or dataset; constructed and shared-task text has none."""
    first_origins, second_origins = (getattr(corpus, "origins", set()) for corpus in corpora)
    return not first_origins.isdisjoint(second_origins)


# Settings and inputs of the stages that only this system has. No torch.


class SplitSettings(Settings):
    """Settings of a stratified split."""

    split: SplitConfig
    """Proportions and size."""


class SplitInputs(Inputs[T]):
    """The corpus whose splits are pooled."""

    pooled: T


class ApartInputs(Inputs[T]):
    """A corpus, and the one whose dev and test lines are removed from it."""

    corpus: T
    left_out: T


class MeasureInputs(Inputs[T]):
    """The corpus, the trial's vocabulary and the old one."""

    corpus: T
    tokenizer: T
    old_tokenizer: T


SPLIT = StageKind("trainables.vocabulary_transfer.stages:split", SplitSettings, SplitInputs, version=2)
APART = StageKind("trainables.vocabulary_transfer.stages:leave_out", NoSettings, ApartInputs)
MEASURES = StageKind("trainables.vocabulary_transfer.stages:measure_text", NoSettings, MeasureInputs)
SPEED = StageKind(
    "trainables.vocabulary_transfer.stages:measure_speed",
    NoSettings,
    ScoreClassifierInputs,
    version=2,
    workers="first",
)
