"""Checks of a study's data before anything runs: corpora, tokenizers and released checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from nlgraft.errors import DataError
from nlgraft.evaluation.scripts import choose_tokenizers, misfits
from nlgraft.nn.checkpoint_files import checkpoint_problems
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import Cell
from nlgraft.study.data.study import Study
from nlgraft.study.data.system import REPLICATE_SPLITS
from nlgraft.study.planning.overlaps import overlaps, pooled, root
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system_import import load_system
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpora import Corpus, report_json
from nlgraft.text.corpus_checks import (
    check_corpus,
    normalization_warning,
    separator_problems,
    vocabulary_warning,
)
from nlgraft.text.corpus_config import SPLITS, ConlangConfig, CorpusConfig
from nlgraft.text.labels import check_labels
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig

_CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
_NUM_REFERENCES = 1000
_MOST_CONSTRUCTED = 20_000  # examples: more take seconds to make, and have words enough


@dataclass(frozen=True)
class DataReport:
    """Findings about the data of a study.

    Attributes:
        corpora: Counts of each split by the name of the corpus stage, of text in local files.
        warnings: What is allowed but likely a mistake.
    """

    corpora: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def check_cells(study: Study, cells: Iterable[Cell], store: ArtifactStore | None = None) -> DataReport:
    """Check the data of some cells; see `check_data`."""
    system = load_system(study.system)
    return check_data(
        (
            system.stage_graph(resolve_config(study, cell), seed=study.seeds[0], splits=REPLICATE_SPLITS)
            for cell in cells
        ),
        store,
    )


def check_data(graphs: Iterable[StageGraph], store: ArtifactStore | None = None) -> DataReport:
    """Check the corpora and tokenizers of stage graphs, each once.

    Args:
        graphs: Stage graphs. Corpora are found by the location ``corpus`` of their stages, tokenizers by
            their config.
        store: What it holds has been checked; None checks everything.

    Raises:
        DataError: A corpus or a released checkpoint cannot be used; lists the problems of all.
    """
    stages = {stage.fingerprint: stage for graph in graphs for stage in graph.stages}
    done = store.finished(stages) if store is not None else set()
    text = _Text(pooled(stages.values()))
    problems: list[str] = []
    warnings: list[str] = []
    for key, stage in stages.items():
        if key in done:
            continue
        try:
            warnings += [f"{stage.name}: {warning}" for warning in text.check(stage)]
        except DataError as error:
            problems += [f"{stage.name}: {line}" for line in str(error).split("\n")]
    released = {
        (stage.locations["checkpoint"], stage.locations["read_as"])
        for key, stage in stages.items()
        if key not in done and "checkpoint" in stage.locations
    }
    problems += [problem for each in sorted(released) for problem in checkpoint_problems(*each)]
    if problems:
        raise DataError("\n".join(dict.fromkeys(problems)))
    warnings += text.overlaps(stages.values())
    return DataReport(text.reports, list(dict.fromkeys(warnings)))


class _Text:
    """The corpora that were read, by the fingerprint of their stage.

    Args:
        redrawn: Those whose own splits are not used.
    """

    def __init__(self, redrawn: set[str]) -> None:
        self.reports: dict[str, Any] = {}
        self._corpora: dict[str, Mapping[str, Corpus]] = {}
        self._names: dict[str, str] = {}
        self._redrawn = redrawn

    def check(self, stage: Stage) -> list[str]:
        if "corpus" in stage.locations:
            found = self._check_corpus(stage, _CORPUS.validate_python(stage.locations["corpus"]))
            return [*found, *separator_problems(self._corpus(stage), stage.config.get("joined_by"))]
        if problems := [*separator_problems(self._corpus(stage), stage.config.get("separator"))]:
            raise DataError("\n".join(problems))
        if "rouge_tokenizer" in stage.config:
            return self._check_score(stage)
        settings = stage.config.get("tokenizer", stage.config)
        if isinstance(settings, Mapping) and {"vocab_size", "character_coverage"} <= settings.keys():
            return self._check_tokenizer(stage, settings)
        return []

    def overlaps(self, stages: Iterable[Stage]) -> list[str]:
        """Warn of scored text in the training text of other corpora; put all overlaps into the reports."""
        texts = {key: (self._names[key], corpora) for key, corpora in self._corpora.items()}
        warnings = []
        for found in overlaps(texts, stages):
            report = self.reports.get(found.corpus, {}).get(found.split)
            if report is not None:
                report["num_in_other_train"][found.other] = found.num_examples
            if found.split != "train" and not found.is_left_out:
                number = len(
                    next(splits for name, splits in texts.values() if name == found.corpus)[found.split]
                )
                warnings.append(
                    f"{found.corpus}: {found.split}: {found.num_examples} of {number} examples have a line "
                    f"in the training text of {found.other}; scores on them measure memory, remove them there"
                )
        return warnings

    def _check_corpus(self, stage: Stage, config: CorpusConfig) -> list[str]:
        self._names[stage.fingerprint] = stage.name
        if isinstance(config, ConlangConfig):
            if config.train <= _MOST_CONSTRUCTED:
                splits = {split: Corpus.from_streams(generate(config, split)) for split in SPLITS}
                self._corpora[stage.fingerprint] = splits
            return []
        found = check_corpus(config)
        self._corpora[stage.fingerprint] = found.corpora
        if found.reports:
            reports = report_json(found.reports)
            self.reports[stage.name] = {
                split: report | {"num_in_other_train": {}} for split, report in reports.items()
            }
        is_redrawn = stage.fingerprint in self._redrawn
        check_labels(found.corpora, is_redrawn=is_redrawn)
        return [*found.warnings, *(() if is_redrawn else found.overlaps)]

    def _check_tokenizer(self, stage: Stage, settings: Mapping[str, Any]) -> list[str]:
        corpora = [self._corpus(corpus) for corpus in stage.inputs.values()]
        known = [corpus["train"] for corpus in corpora if "train" in corpus]
        if not known or len(known) < len(corpora):
            return []
        fields = LearnedTokenizerConfig.model_fields.keys() & settings.keys()
        config = LearnedTokenizerConfig.model_validate({name: settings[name] for name in fields})
        roles = stage.config.get("roles")
        lines = [
            line
            for corpus in known
            for role, stream in corpus.streams().items()
            if (role in roles if roles else role not in ("label", "document"))
            for line in stream
        ]
        found = [vocabulary_warning(config, lines)]
        if not roles or "target" in roles:
            targets = [line for corpus in corpora for line in _references(corpus)]
            found.append(normalization_warning(config.normalization, targets))
        return [warning for warning in found if warning is not None]

    def _check_score(self, stage: Stage) -> list[str]:
        bleu, rouge = stage.config.get("bleu_tokenizer"), stage.config["rouge_tokenizer"]
        lines = _references(self._corpus(stage))
        if "bleu" in stage.config.get("metrics", ()):
            from nlgraft.evaluation.overlap import check_bleu_tokenizer  # takes a second to import

            check_bleu_tokenizer(choose_tokenizers(lines, bleu, rouge).bleu)
        return list(misfits(lines, bleu, rouge))

    def _corpus(self, stage: Stage) -> Mapping[str, Corpus]:
        """Find the text that a stage or its input ``corpus`` was made of; nothing where it was not read."""
        return self._corpora.get(root(stage).fingerprint, {})


def _references(corpora: Mapping[str, Corpus]) -> list[str]:
    """The first target lines of dev and test."""
    found = [corpora[split].target or [] for split in ("dev", "test") if split in corpora]
    return [line for lines in found for line in lines[:_NUM_REFERENCES]]
