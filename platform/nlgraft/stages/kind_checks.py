"""Checks that kinds of stages name: what is wrong with text and released checkpoints before anything runs.

Each takes all stages that name it and the findings so far, to which it adds; see
`nlgraft.study.planning.planner`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import grouped
from nlgraft.evaluation.metric_config import INSTALLED_APART
from nlgraft.evaluation.scripts import Script, fitting_tokenizers, misfits, script_of
from nlgraft.nn.checkpoint_files import checkpoint_problems
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.masked_lm_graph import WORD_TOKENIZER
from nlgraft.stages.seq2seq_graph import LEARNED_SCORE, SCORE
from nlgraft.stages.stage_kind import TOKENIZER
from nlgraft.study.data.system import Findings
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpora import Corpus, SplitReport, check_labels, corpus_report, report_json
from nlgraft.text.corpus_checks import (
    check_corpus,
    normalization_warning,
    separator_problems,
    swapped_sides,
    vocabulary_warning,
)
from nlgraft.text.corpus_config import SPLITS, ConlangConfig, CorpusConfig, Split
from nlgraft.text.files import JoinedLines
from nlgraft.text.tokenizers import required_pieces, size_problem

_CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
_NUM_REFERENCES = 1000
_MOST_CONSTRUCTED = 20_000  # examples: more take seconds to make, and have words enough


def corpora(stages: Sequence[Stage], findings: Findings) -> None:
    """Read or make the corpora that this machine has, count them, and compare them with each other."""
    # Splits that are drawn anew say nothing about what will be trained on.
    # Of these the splits are pooled and drawn anew.
    redrawn = {stage.inputs["pooled"].fingerprint for stage in findings.stages if "pooled" in stage.inputs}
    configs = {stage.fingerprint: _CORPUS.validate_python(stage.locations["corpus"]) for stage in stages}
    findings.read |= _constructed(
        {
            key: config
            for key, config in configs.items()
            if isinstance(config, ConlangConfig) and config.train <= _MOST_CONSTRUCTED
        }
    )
    names = _numbered(stages)
    for stage in stages:
        key = stage.fingerprint
        try:
            _read_corpus(stage, configs[key], names[key], findings, is_redrawn=key in redrawn)
        except DataError as error:
            findings.refuse(stage, str(error).split("\n"))
        findings.warn(stage, _ambiguous_sources(stage, findings))
    _compare_corpora(stages, names, findings)


def _numbered(stages: Sequence[Stage]) -> dict[str, str]:
    """Name each corpus by its stage; further corpora of the same stage name are numbered from 2."""
    fingerprints = grouped((stage.name, stage.fingerprint) for stage in stages)
    return {
        key: name if number == 1 else f"{name} {number}"
        for name, keys in fingerprints.items()
        for number, key in enumerate(keys, start=1)
    }


def _ambiguous_sources(stage: Stage, findings: Findings) -> Iterator[str]:
    """Warn of sources that already contain the separator that will join them."""
    # Not refused: a model sees one boundary too many in such a source, but nothing is ever cut there, and
    # targets, the only text that is scored, are not joined.
    several = {
        split: Corpus(corpus.sources)
        for split, corpus in _text_of(stage, findings).items()
        if len(corpus.sources) > 1
    }
    return separator_problems(several, stage.config.get("joined_by"))


def _constructed(configs: Mapping[str, ConlangConfig]) -> dict[str, dict[Split, Corpus]]:
    """Make constructed text; a shorter split is the beginning of a longer one that is alike otherwise."""
    longest: dict[tuple[ConlangConfig, Split], dict[str, list[str]]] = {}
    corpora: dict[str, dict[Split, Corpus]] = {key: {} for key in configs}
    for split in SPLITS:
        # The longest first: shorter ones are cut from it.
        for key, config in sorted(configs.items(), key=lambda each: -getattr(each[1], split)):
            alike = config.model_copy(update=dict.fromkeys(SPLITS, 1)), split
            if alike not in longest:
                longest[alike] = generate(config, split)
            num_examples = getattr(config, split)
            streams = {role: lines[:num_examples] for role, lines in longest[alike].items()}
            corpora[key][split] = Corpus.from_streams(streams)
    return corpora


def _read_corpus(
    stage: Stage,
    config: CorpusConfig,
    name: str,
    findings: Findings,
    *,
    is_redrawn: bool,
) -> None:
    if isinstance(config, ConlangConfig):
        _count(name, corpus_report(findings.read.get(stage.fingerprint, {})), findings)
        return
    corpus_check = check_corpus(config)
    findings.read[stage.fingerprint] = corpus_check.corpora
    _count(name, corpus_check.reports, findings)
    check_labels(corpus_check.corpora, is_redrawn=is_redrawn)
    findings.warn(stage, [*corpus_check.warnings, *(() if is_redrawn else corpus_check.overlaps)])


def _count(
    name: str,
    reports: Mapping[str, SplitReport],
    findings: Findings,
) -> None:
    """Keep the counts of a corpus, if it has any."""
    if reports:
        counts = report_json(reports)
        findings.corpora[name] = {
            split: numbers | {"num_in_other_train": {}} for split, numbers in counts.items()
        }


def _compare_corpora(
    stages: Sequence[Stage],
    names: Mapping[str, str],
    findings: Findings,
) -> None:
    """Warn of scored text in the training text of other corpora; put all overlaps into the counts.

    What is scored must not be trained on, in any role. Corpora of one name are levels of a factor; no trial
    reads two of them, so they are not compared.
    """
    texts = {
        stage.fingerprint: (stage.name, findings.read[stage.fingerprint])
        for stage in stages
        if stage.fingerprint in findings.read
    }
    findings.warnings += _swapped([*texts.values()])
    # Text that the study takes out of another before it is trained on.
    left_out = {
        (_root(stage.inputs["left_out"]).fingerprint, stage.inputs["corpus"].fingerprint)
        for stage in findings.stages
        if "left_out" in stage.inputs
    }
    trains = {key: splits["train"] for key, (_, splits) in texts.items() if "train" in splits}
    is_compared = len({name for name, _ in texts.values()}) > 1
    train_lines = {key: _hashes(train.lines()) for key, train in trains.items()} if is_compared else {}
    for (key, (name, splits)), (other, lines) in itertools.product(texts.items(), train_lines.items()):
        other_name = texts[other][0]
        for split, corpus in splits.items() if other_name != name else ():
            sides = [_hashes(side) for side in corpus.sides().values()]
            number = int(np.any([np.isin(side, lines[lines != 0]) for side in sides], axis=0).sum())
            if not number:
                continue
            report = findings.corpora[names[key]][split]
            report["num_in_other_train"][names[other]] = number
            if split != "train" and (key, other) not in left_out:
                findings.warnings.append(
                    f"{name}: {split}: {number} of {report['num_examples']} examples have a line in the "
                    f"training text of {other_name}; scores on them measure memory, remove them there"
                )


def _hashes(lines: Sequence[str]) -> NDArray[np.int64]:
    """Make a number of 64 bits of each line, [N], which takes less memory; 0 of a blank one."""
    return np.fromiter((hash(line) if line.strip() else 0 for line in lines), np.int64, len(lines))


def _swapped(texts: Sequence[tuple[str, Mapping[str, Corpus]]]) -> Iterator[str]:
    """Warn of splits whose languages are the other way round than in train, or than in the first corpus."""
    trains = [(name, splits["train"]) for name, splits in texts if "train" in splits]
    pairs = [(name, "train", corpus, trains[0]) for name, corpus in trains[1:]]
    pairs += [
        (name, split, corpus, (name, splits["train"]))
        for name, splits in texts
        for split, corpus in splits.items()
        if split != "train" and "train" in splits
    ]
    for name, split, corpus, (other, train) in pairs:
        if sides := swapped_sides(corpus, train):
            first, second = sides
            yield (
                f"{name}: {split}: its {first} looks like the {second} of {other}, train, and its {second} "
                f"like the {first} there; swap them, unless they differ on purpose"
            )


def separators(stages: Sequence[Stage], findings: Findings) -> None:
    """Refuse text that has what is to stand between two joined lines."""
    for stage in stages:
        text = _text_of(stage, findings)
        findings.refuse(stage, separator_problems(text, stage.config["separator"]))


def tokenizers(stages: Sequence[Stage], findings: Findings) -> None:
    """Compare the size and the normalisation of vocabularies with the text that they are learned from."""
    for stage in stages:
        read = [_text_of(corpus, findings) for corpus in stage.inputs.values()]
        # Text of the hub is not read here.
        if not all("train" in splits for splits in read):
            continue
        settings = TOKENIZER.settings_of(stage)
        lines = JoinedLines(
            stream
            for splits in read
            for role, stream in splits["train"].streams().items()
            if role in (settings.roles or splits["train"].sides())
        )
        required = required_pieces(lines, settings.tokenizer, settings.symbols)
        _size(stage, size_problem(settings.tokenizer.vocab_size, required), findings)
        warnings = [vocabulary_warning(settings.tokenizer, lines)]
        if not settings.roles or "target" in settings.roles:
            targets = [line for splits in read for line in _references(splits)]
            warnings.append(normalization_warning(settings.tokenizer.normalization, targets))
        findings.warn(stage, (warning for warning in warnings if warning is not None))


def word_tokenizers(stages: Sequence[Stage], findings: Findings) -> None:
    """Refuse vocabularies that cannot hold the characters of the text that they are learned from."""
    from nlgraft.text.tokenizers import required_tokens  # with the tokenizers library, .1 s to import

    for stage in stages:
        config = WORD_TOKENIZER.settings_of(stage).tokenizer
        if "train" in (splits := _text_of(stage, findings)):
            required = required_tokens(splits["train"].lines(), config)
            _size(stage, size_problem(config.vocab_size, required, has_coverage=False), findings)


def _size(
    stage: Stage,
    problem: str | None,
    findings: Findings,
) -> None:
    """Refuse a vocabulary that is too small, or warn of it where other stages leave out some of the text."""
    if problem is not None:
        is_whole = all(_root(corpus) is corpus for corpus in stage.inputs.values())
        tell = findings.refuse if is_whole else findings.warn
        tell(stage, [problem])


def scores(stages: Sequence[Stage], findings: Findings) -> None:
    """Compare the tokenizers of metrics with the script of the references; refuse one that is missing."""
    scripts: dict[str, Script | None] = {}  # many cells are scored on the same text
    for stage in stages:
        settings = SCORE.settings_of(stage)
        bleu, rouge = settings.bleu_tokenizer, settings.rouge_tokenizer
        corpus = _root(stage).fingerprint
        if corpus not in scripts:
            scripts[corpus] = script_of(_references(_text_of(stage, findings)))
        try:
            chosen = fitting_tokenizers(scripts[corpus], bleu, rouge).bleu
            if "bleu" in settings.metrics and chosen in INSTALLED_APART:
                from nlgraft.evaluation.overlap import check_bleu_tokenizer  # takes .2 s to import

                check_bleu_tokenizer(chosen)
        except DataError as error:
            findings.refuse(stage, str(error).split("\n"))
        findings.warn(stage, misfits(scripts[corpus], bleu, rouge))


def learned_metrics(stages: Sequence[Stage], findings: Findings) -> None:
    """Refuse learned metrics that cannot be imported, and programs that are not there."""
    from nlgraft.evaluation.learned_metric import check_scorer  # with the other metrics, .2 s to import

    for stage in stages:
        settings = LEARNED_SCORE.settings_of(stage)
        try:
            check_scorer(settings.metric, settings.options)
        except DataError as error:
            findings.refuse(stage, [f"score.learned.{settings.name}: {error}"])


def checkpoints(stages: Sequence[Stage], findings: Findings) -> None:
    """Look at the files of released checkpoints, each once for what it becomes."""
    released = {
        (stage.locations["checkpoint"], stage.locations["read_as"])
        for stage in stages
        if "checkpoint" in stage.locations
    }
    findings.problems += [problem for each in sorted(released) for problem in checkpoint_problems(*each)]


def _text_of(stage: Stage, findings: Findings) -> Mapping[str, Corpus]:
    """Find the text that a stage or its input ``corpus`` was made of; nothing where it was not read."""
    return findings.read.get(_root(stage).fingerprint, {})


def _references(splits: Mapping[str, Corpus]) -> list[str]:
    """The first target lines of dev and test."""
    targets = [splits[name].target or [] for name in ("dev", "test") if name in splits]
    return [line for lines in targets for line in lines[:_NUM_REFERENCES]]


def _root(stage: Stage) -> Stage:
    """Follow derived text to the corpus that it is made of."""
    while key := next((key for key in ("corpus", "pooled") if key in stage.inputs), None):
        stage = stage.inputs[key]
    return stage
