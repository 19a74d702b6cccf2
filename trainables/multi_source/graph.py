"""The stages of a trial: text, pretraining, two finetunings, translation, scores.

All cells of a study share text and pretraining; cells that differ only in the multi-source model or in its
finetuning also share the finetuning on single sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from nlgraft.nn.checkpoint_files import LanguagePlace
from nlgraft.pipeline.stage import Stage
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages import text_graph
from nlgraft.stages.config_parts import MASK_TOKEN, MaskedSpansConfig, PhaseConfig
from nlgraft.stages.masked_lm_graph import bert2bert
from nlgraft.stages.released_graph import MBART_EOS, Released, language_view, released
from nlgraft.stages.seq2seq_graph import (
    LAST_SENTENCE,
    SCORE,
    CarrySettings,
    DecodingSettings,
    LastSentenceSettings,
    ScoreInputs,
    TrainSettings,
    TranslationInputs,
    learned_scores,
)
from nlgraft.stages.stage_kind import (
    CorpusInputs,
    EncodeSettings,
    Inputs,
    Settings,
    StageKind,
    T,
    TrialStages,
)
from nlgraft.stages.text_graph import TARGET, EncodedText
from nlgraft.training.train_config import (
    ALL_LEARNED,
    LearnedParameters,
    ParameterGroup,
    Side,
    View,
)
from trainables.multi_source.config import Config, MultiSourceConfig

SEPARATOR = "<sep>"
"""Between two sentences of a document on one line."""
NEW = (
    r"^(fine_encoder|further_encoders|further_norms)\.|\.further_(attentions|residuals)\."
    r"|^source_input\.segments$"
)
"""Pattern of the parameters that a single-source model lacks."""


class _Trial(TrialStages[Config]):
    """The stages of one trial."""

    # --- text -------------------------------------------------------------------------------------------

    @cached_property
    def sentences(self) -> Stage:
        """The task's corpus, unchanged."""
        return text_graph.corpus("task", self.config.data.task)

    @cached_property
    def corpus(self) -> Stage:
        """The training examples: single sentences, or pairs of consecutive ones."""
        kind = self.config.documents
        if kind == "apart":
            return self.sentences
        inputs = CorpusInputs(corpus=self.sentences)
        settings = DocumentsSettings(kind=kind, separator=SEPARATOR if kind == "joined" else None)
        return DOCUMENTS.stage(f"task_{kind}", settings, inputs)

    @cached_property
    def pretraining_text(self) -> dict[str, Stage]:
        """Text by language."""
        texts = self.config.data.text or {}
        return {name: text_graph.text(f"text_{name}", corpus) for name, corpus in texts.items()}

    @cached_property
    def released(self) -> Released:
        """The released checkpoint used instead of a pretraining."""
        upstream = self.config.upstream
        assert upstream is not None
        assert upstream.checkpoint is not None
        return released(
            upstream.checkpoint.directory,
            upstream.checkpoint.revision,
            read_as="bert" if upstream.objective == "masked_tokens" else "multilingual",
            max_tokens=self.config.data.max_tokens,
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """Pieces that the tokenizer never splits.

        Every arm on documents has the separator, used or not, so that all share vocabulary and pretraining.
        """
        return (SEPARATOR,) if "document" in self.config.data.task.roles else ()

    @cached_property
    def tokenizer(self) -> Stage:
        config, tokens = self.config, tuple(self.config.language_tokens.values())
        if config.upstream is not None and config.upstream.checkpoint is not None:
            return self.released.tokenizer("shared_tokenizer", tokens, self.symbols)
        corpora = {"task": self.sentences, **self.pretraining_text}
        special = (MASK_TOKEN, *tokens)
        return text_graph.tokenizer(
            "shared", config.tokenizer, corpora, special_tokens=special, symbols=self.symbols
        )

    @cached_property
    def text(self) -> EncodedText:
        """The encoded examples, with all sources whichever are read, so that all cells share them."""
        roles = (*text_graph.source_roles(len(self.config.languages) - 1), TARGET)
        limit = self.config.data.max_tokens
        return text_graph.encode("task", self.corpus, dict.fromkeys(roles, self.tokenizer), max_tokens=limit)

    def view(self, sources: Sequence[int]) -> View:
        """Describe batches of some sources: the language id ends each source and begins the target.

        Some released models have it at the begin of sources, and behind the end of a sentence in targets.
        """
        config = self.config
        ids = [config.language_id(language) for language in config.languages]
        view = language_view({f"source {k}": ids[k] for k in sources}, ids[-1], self._language_place)
        # with document context, source 1 is the sentence to translate: it limits the length of the output
        is_context_read = config.documents == "previous" and 1 in sources
        translated = list(sources).index(1) if is_context_read else None
        return view.model_copy(update={"length_source": translated})

    @property
    def _language_place(self) -> LanguagePlace:
        upstream = self.config.upstream
        if upstream is None or upstream.checkpoint is None or upstream.objective != "denoising":
            return "last"
        return self.released.language_place

    # --- training ---------------------------------------------------------------------------------------

    @cached_property
    def upstream(self) -> Stage | None:
        """The pretrained model."""
        config = self.config.upstream
        if config is None:
            return None
        if config.objective == "masked_tokens":
            return bert2bert(
                config.train,
                self.config.model.transformer(),
                self._languages,
                seed=config.seed_of(self.seed),
                released=self.released if config.checkpoint else None,
            )
        if config.checkpoint is not None:
            named, languages = config.checkpoint.language_ids or {}, self.config.language_tokens
            checkpoint_languages: dict[str, int | str] = {name: named.get(name, name) for name in languages}
            ids = tuple(checkpoint_languages.values())
            # an mBART was pretrained on sentences with their end between them
            ids += (MBART_EOS,) * len(self.symbols)
            start = self.released.start_id(checkpoint_languages[self.config.languages[-1]])
            return self.released.encoder_decoder("upstream", self.tokenizer, start, ids)
        side = Side(stream=TEXT)
        settings = TrainSettings(
            train=config.train,
            model=self.config.model.transformer(),
            view=View(sources=(side,), target=side, language=LANGUAGE),
            masked_spans=MaskedSpansConfig(),
            metric_prefix="upstream",
        )
        return pieces.train("upstream", self._languages, settings, seed=config.seed_of(self.seed))

    @property
    def _languages(self) -> EncodedText:
        """Text of all languages, each line with its language id."""
        limit, tokens = self.config.data.max_tokens, self.config.language_tokens
        settings = LanguagesSettings(
            tokens={name: tokens[name] for name in self.pretraining_text}, max_tokens=limit
        )
        inputs = LanguagesInputs(corpora=self.pretraining_text, tokenizer=self.tokenizer)
        stage = LANGUAGES.stage("text_encoded", settings, inputs)
        read = EncodeSettings(streams={TEXT: TEXT}, max_tokens=limit)
        return EncodedText(stage, {TEXT: self.tokenizer}, read, stage)

    @cached_property
    def single_source(self) -> Stage | None:
        """The model after the finetuning on one source at a time."""
        phase = self.config.single_source
        if phase is None:
            return None
        view = self.view(phase.draws or self.config.read_sources)
        if len(view.sources) > 1:  # output length is limited by whichever source is drawn
            view = view.model_copy(update={"is_one_source_drawn": True, "length_source": None})
        settings = self._settings(
            phase,
            self.upstream,
            model=None if self.upstream else self.config.model.transformer(),
            view=view,
            metric_prefix="single_source" if self.config.multi_source else "",
        )
        return pieces.train("single_source", self.text, settings, seed=self.seed, start=self.upstream)

    @cached_property
    def trained(self) -> Stage:
        """The trial's model."""
        phase = self.config.multi_source
        if phase is None:
            assert self.single_source is not None
            return self.single_source
        start = self.single_source or self.upstream
        wiring = self.config.wiring()
        is_new = start is not None and self.config.sources.has_new_parameters
        settings = self._settings(
            phase,
            start,
            model=None if start else self.config.model.transformer(**wiring),
            extension=wiring if start else {},
            carry=CarrySettings(fresh=(NEW,) if start else ()),
            view=self.view(self.config.read_sources),
            learned=_learned(phase) if is_new else ALL_LEARNED,
        )
        return pieces.train("multi_source", self.text, settings, seed=self.seed, start=start)

    def _settings(
        self,
        phase: PhaseConfig,
        start: Stage | None,
        **settings: Any,
    ) -> TrainSettings:
        return TrainSettings(
            train=phase.train.model_copy(update={"is_evaluated_at_start": False} if start else {}),
            num_bleu_sentences=phase.num_bleu_sentences,
            sampling_alpha=self.config.tokenizer.sampling_alpha,
            report_steps=(0,) if start else (),
            **settings,
        )

    # --- scores -----------------------------------------------------------------------------------------

    def scores(self, splits: tuple[str, ...]) -> Stage:
        """The last stage: all scores of the trial."""
        is_joined = self.config.documents == "joined"
        translations = {split: self._translation(split) for split in splits}
        further: dict[str, Stage] = {}
        if self.config.is_adversarial:
            for place, source in enumerate(self.config.read_sources):
                name = f"random_source_{source}"
                foreign = {split: self._translation(split, place, name) for split in splits}
                further[name] = self._score(f"{name}_scores", self.corpus, foreign, prefix=name)
        corpus = self.sentences if is_joined else self.corpus
        further |= learned_scores(self.config.score, corpus, translations)
        return self._score(
            "scores",
            corpus,
            translations,
            trained=None if is_joined else self.trained,
            further=further,
        )

    def _translation(
        self,
        split: str,
        foreign_source: int | None = None,
        name: str = "translation",
    ) -> Stage:
        """Translate a split, optionally with one source replaced by that of another example."""
        config = self.config
        view = self.view(config.read_sources)
        decoding = DecodingSettings(
            decode=config.decode,
            view=view,
            is_measured=foreign_source is None,
            is_calibrated=config.score.is_calibrated and foreign_source is None,
            foreign_source=foreign_source,
        )
        translation = pieces.translate(f"{name}_{split}", self.trained, self.text, split, decoding)
        if config.documents != "joined":
            return translation
        inputs = TranslationInputs(translation=translation)
        settings = LastSentenceSettings(separator=SEPARATOR)
        return LAST_SENTENCE.stage(f"sentences_{split}", settings, inputs)

    def _score(
        self,
        name: str,
        corpus: Stage,
        translations: Mapping[str, Stage],
        *,
        prefix: str = "",
        trained: Stage | None = None,
        further: Mapping[str, Stage] | None = None,
    ) -> Stage:
        has_documents = self.config.documents != "apart" and not prefix
        settings = pieces.score_settings(
            self.config.score,
            has_documents=has_documents,
            metric_prefix=prefix,
            max_tokens=None if trained is None else self.config.data.max_tokens,
        )
        inputs = ScoreInputs(
            corpus=corpus,
            translations=translations,
            target_tokenizer=self.tokenizer,
            trained=trained,
            further=further or {},
        )
        return SCORE.stage(name, settings, inputs)


stage_graph = _Trial.graph


def _learned(phase: MultiSourceConfig) -> LearnedParameters:
    """Give the new parameters a learning rate of their own; freeze all others, or all but a part of them."""
    groups = (ParameterGroup(pattern=NEW, lr_multiplier=phase.new_lr_multiplier),)
    return LearnedParameters(
        only=(NEW,) if phase.is_rest_frozen else (),
        groups=groups if phase.new_lr_multiplier != 1 else (),
        part=phase.part,
        part_of=f"^(?!.*({NEW}))" if phase.part else "",
    )


# Settings and inputs of the stages that only this system has. No torch.


TEXT, LANGUAGE = "source 0", "language"
"""Streams of multilingual text: the lines, and the language id of each line."""


class LanguagesSettings(Settings):
    """Encoding of lines in several languages."""

    tokens: Mapping[str, str]
    """Special token of each language."""
    max_tokens: int
    """Maximum length of a line in tokens, without begin and end; longer lines are truncated and counted."""


class LanguagesInputs(Inputs[T]):
    """Text by language, and the shared tokenizer."""

    corpora: Mapping[str, T]
    tokenizer: T


class DocumentsSettings(Settings):
    """Examples made of two consecutive sentences of a document."""

    kind: Literal["previous", "joined"]
    """``previous``: the previous sentence is the first of two sources, absent at the start of a document.
    ``joined``: both sentences on one line, in source and target."""
    separator: str | None = None
    """joined: symbol between the two sentences; absent from the text, and kept whole by the tokenizer."""


_STAGES = "trainables.multi_source.stages"
LANGUAGES = StageKind(f"{_STAGES}:encode_languages", LanguagesSettings, LanguagesInputs)
DOCUMENTS = StageKind(
    f"{_STAGES}:pair_sentences",
    DocumentsSettings,
    CorpusInputs,
    version=2,
    check="nlgraft.stages.kind_checks:separators",
)
