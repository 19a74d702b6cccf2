"""A first study of a user's text: split the text, choose sizes that fit it and the machine, write the file.

Systems that `nlgraft init` can start have a template ``init.yaml.j2`` in its folder.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

from nlgraft import api
from nlgraft.basics.errors import DataError, NlgraftError
from nlgraft.basics.wording import count, duration, name_some
from nlgraft.evaluation.metric_config import BleuTokenizer
from nlgraft.evaluation.scripts import DEFAULT_TOKENIZERS, choose_tokenizers
from nlgraft.study.data import paths
from nlgraft.study.data.plan import Plan
from nlgraft.study.data.system import System
from nlgraft.study.public import Study
from nlgraft.study.reading.documents import write_yaml
from nlgraft.text.corpora import Corpus, load_split_files
from nlgraft.text.corpus_checks import normalization_warning
from nlgraft.text.corpus_config import FilesConfig, SplitFiles, word_tokens
from nlgraft.text.files import read_json, without_compression
from nlgraft.text.tokenizer_config import LEAST_BYTE_TOKENS, LearnedTokenizerConfig, WordTokenizerConfig
from nlgraft.text.tokenizers import required_pieces, required_tokens

SCALES = ("minutes", "evening", "gpu")
TEMPLATE = "init.yaml.j2"
_TARGET_S = {"minutes": 900.0, "evening": 4 * 3600.0}
"""Time that all trials of a scale may take on this machine, by a rough estimate."""
_TRAIN = {"evening": 200_000, "gpu": None}
_SCORED = {"evening": {"dev": 500, "test": 1000}, "gpu": {"dev": 1000, "test": None}}
_MOST_TYPES = {"minutes": 1000, "evening": 8000, "gpu": 16_000}
_EXAMPLES = {"minutes": 300, "evening": 1500, "gpu": 1_000_000}
"""Examples for which the templates' steps are meant; fewer get fewer steps."""
_LEAST_SHARE = 0.05
_COVERAGES = (0.9995, 0.995, 0.99, 0.98)
_LEAST_LEARNED = 50  # pieces besides the characters, special tokens among them
_MIN_EXAMPLES, _MIN_STEPS = 100, 4
_MOST_TOKENS, _OWN_POSITIONS = 126, 4  # positions of begin, end and, in RoBERTa types, padding
_OBJECTIVES = {"mbart": "denoising", "marian": "translation"}
"""What released models were trained for, by type, as far as it is not masked language modelling."""
_HELD_OUT, _MOST_SHARE = 0.05, {"dev": 0.1, "test": 0.2}
_LEAST_HELD_OUT, _MOST_HELD_OUT = {"dev": 200, "test": 500}, 2000
_FEW, _FEW_PAIRS = 500, 10_000
_DEVIATION = {"accuracy": 45.0, "chrF": 15.0}
"""Standard deviation over lines of the difference of two models, in points: of accuracy where a fifth of the
lines differs, and of chrF, as of small translators."""
_UPSTREAM_SHARE = 0.75
_BLEU_WORDS = 4
"""Words in a row that BLEU counts, at most."""
_NUM_COUNTED = 20_000
_MANY_UNSEEN = 0.1


@dataclass(frozen=True)
class Text:
    """Text of a user: files with an example per line, or columns of a table.

    Attributes:
        sources: One file or column per source.
        target: File or column of the targets.
        label: File or column of the classes.
        table: The table that has the columns.
    """

    sources: Sequence[str]
    target: str | None = None
    label: str | None = None
    table: str | None = None

    def read(self) -> Corpus:
        """Read all examples.

        Raises:
            DataError: Files are missing, unequal or unusable.
        """
        files = SplitFiles(
            table=self.table, sources=tuple(self.sources), target=self.target, label=self.label
        )
        # A config needs a dev split as well; only train is read, and split later.
        config = FilesConfig(corpus="files", train=files, dev=files)
        return load_split_files(config, "train", files)


@dataclass(frozen=True)
class NewStudy:
    """A study file that was written.

    Attributes:
        path: The file.
        folder: Folder of its text.
        num_examples: Examples of the task by split.
        plans: Plan of each scale.
        notes: What was decided about the text that its owner may not expect.
    """

    path: Path
    folder: Path
    num_examples: Mapping[str, int]
    plans: Mapping[str, Plan] = field(repr=False)
    notes: Sequence[str]


def write_study(
    system: System,
    text: Text,
    out: Path,
    *,
    upstream: Text | None,
    checkpoint: Path | None,
    languages: Sequence[str],
    held: Mapping[str, Text] | None = None,
    num_held_out: int | None = None,
    num_seeds: int = 3,
) -> NewStudy:
    """Write a study of a system, and its text in splits beside it.

    Args:
        text: Text of the task.
        out: The study file.
        upstream: Text of the pretraining; None for the task's own.
        checkpoint: Directory of a released model that replaces the pretraining.
        languages: Language of each source, then of the target; empty for the suffixes of their files.
        held: Text of dev and test; of a split that it lacks, some of ``text`` is held out.
        num_held_out: Examples of each split that is held out; None for a share of the text.

    Raises:
        DataError: Text is missing, too short or unusable, or does not suit the system; the system has no
            template, something is there already, or the place cannot be written.
    """
    template = _template(system)
    _check_options(template, system, text, upstream, checkpoint, languages)
    folder = out.with_name(f"{out.stem}_text")
    taken = [str(path) for path in (out, folder) if path.exists()]
    if taken:
        raise DataError(f"{' and '.join(taken)}: there already; give another --out")
    corpus = text.read()
    notes: list[str] = []
    released = None if checkpoint is None else _released(checkpoint)
    held_out = {split: text_files.read() for split, text_files in (held or {}).items()}
    splits = _split(corpus, "--source", notes, held_out, num_held_out)
    pretraining = None
    if upstream is not None:
        scored = {split: splits[split] for split in ("dev", "test")}
        upstream_text = _without(upstream.read(), scored, "--upstream-source", notes)
        notes += _unseen_words(upstream_text, splits["test"])
        pretraining = _split(upstream_text, "--upstream-source", notes)
    notes += _few_lines(len(splits["test"]), text)
    metric = _metric(splits["dev"])
    direction = "minimize" if metric == "bits_per_byte" else "maximize"
    language_names = [*languages] or _languages(text)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written ({error.strerror}); give another") from error
    (folder / _SCHEMA).write_text(json.dumps(Study.json_schema(system.path)), "utf-8")
    values = {
        "file": out.name,
        "schema": f"{folder.name}/{_SCHEMA}",
        **_text_values(folder, splits, pretraining),
        "name": out.stem,
        "checkpoint": released,
        "languages": language_names,
        "text_paths": [f"text.{language}" for language in dict.fromkeys(language_names)],
        "num_examples": len(splits["train"]),
        **_vocabularies(splits, pretraining),
        "least_byte_tokens": LEAST_BYTE_TOKENS + _LEAST_LEARNED,
        "score": _score(splits["dev"], notes),
        "tail": _TAIL.format(
            metric=f"dev/{metric}",
            direction=direction,
            seeds=[*range(1, num_seeds + 1)],
        ),
        "claim": partial(_claim, metric),
    }
    try:
        plans = _write_fitting(template, system, values, out)
    except NlgraftError:
        # The same command must work again once the cause is mended.
        shutil.rmtree(folder)
        out.unlink()
        raise
    corpora = plans["minutes"].corpora
    (task,) = corpora.keys() & _TASKS
    # Its limits may take a part of the test lines.
    notes += _floor(splits, metric, corpora[task]["test"]["num_examples"])
    # Above all about text, which is mended in the files that were given here.
    notes += plans["minutes"].warnings
    # No template uses all the layouts of the text that were written.
    study = out.read_text("utf-8")
    for path in folder.iterdir():
        if f"{folder.name}/{path.name}" not in study:
            path.unlink()
    sizes = {split: len(lines) for split, lines in splits.items()}
    return NewStudy(out, folder, sizes, plans, notes)


_TAIL = """analysis: {{family: claims}}
objective: {{metric: {metric}, direction: {direction}}}
seeds: {seeds}                 # more seeds decide smaller differences; the report says how many it takes"""
_SCHEMA = "study.schema.json"
_TASKS = {"downstream_corpus", "task_corpus"}
_HEAD = """# yaml-language-server: $schema={schema}
# A first study of {system}, written by `nlgraft init`. Edit it freely; then:
#
#   nlgraft validate {file}          every problem at once
#   nlgraft run {file}               {minutes} on the machine that wrote this, by a rough estimate
#   nlgraft run {file} @evening      {evening}
#   nlgraft run {file} @gpu          larger models; needs a GPU
#
# The first study on these test lines gets most of the certainty that they can give: practise with
# --storage practice. Only claims get verdicts here; give a new arm one.
#
# All settings, their defaults and ranges: nlgraft systems {system}"""


def _metric(dev: Corpus) -> str:
    if dev.labels is not None:
        return "accuracy"
    if dev.target is None:
        return "bits_per_byte"
    num_words = sum(len(line.split()) for line in dev.target)
    has_words = num_words >= _BLEU_WORDS * len(dev.target)
    return "bleu" if has_words and _bleu_tokenizer(dev) == DEFAULT_TOKENIZERS.bleu else "chrf"


def _claim(metric: str, corpus: str) -> str:
    """Write the rest of a claim of the study's own, on whatever text its corpus has."""
    data = _flow({f"{corpus}.corpus": "*"})
    return f"metric: test/{metric}, source: the question of this study, data: {data}"


def _bleu_tokenizer(dev: Corpus) -> BleuTokenizer:
    return choose_tokenizers(dev.target or []).bleu


def _score(dev: Corpus, notes: list[str]) -> str:
    """Settings of BLEU where the words of the targets cannot be told here; BLEU does not decide there."""
    from nlgraft.evaluation.overlap import check_bleu_tokenizer  # takes .2 s to import

    tokenizer = _bleu_tokenizer(dev)
    if tokenizer != DEFAULT_TOKENIZERS.bleu:
        notes.append(
            f"chrF decides: BLEU depends on how words are found ({tokenizer}) in the targets' script"
        )
    elif _metric(dev) == "chrf":
        notes.append("chrF decides: BLEU counts four words in a row, which most targets lack")
    try:
        check_bleu_tokenizer(tokenizer)
    except DataError as error:
        notes.append(f"BLEU is computed by characters: {error}; then delete bleu_tokenizer in the study")
        return f"\n  score: {{bleu_tokenizer: char}}  # {error}, then delete this line"
    return ""


def _few_lines(num_lines: int, text: Text) -> list[str]:
    if num_lines >= _FEW:
        return []
    few = f"{num_lines} test lines are few; give more text, or test files with --test-source"
    if not (text.label or text.target):
        return [few]
    metric = "accuracy" if text.label else "chrF"
    least = NormalDist().inv_cdf(0.975) * _DEVIATION[metric] / num_lines**0.5
    return [f"{few}: differences below some {least:.1f} points of {metric} will stay undecided"]


def _unseen_words(upstream: Corpus, test: Corpus) -> list[str]:
    """Warn where a model is pretrained on text that lacks many of the task's running words."""
    seen = {word for line in upstream.sources[0] for word in word_tokens(line)}
    words = [word for line in test.sources[0] for word in word_tokens(line)]
    share = sum(word not in seen for word in words) / max(1, len(words))
    if share < _MANY_UNSEEN:
        return []
    return [
        f"{share:.0%} of the task's words do not occur in the text of --upstream-source: a model that begins "
        "there may learn less than one without; nearer text, or none, may do better"
    ]


def _floor(
    splits: Mapping[str, Corpus],
    metric: str,
    num_scored: int,
) -> list[str]:
    """Say from which score a cell has learned anything, as the report will judge it."""
    from nlgraft.analysis.estimates.trivial import NEAR, Trivial, trivial_texts  # takes .2 s to import

    test, num_lines = splits["test"].at(range(num_scored)), len(splits["train"])
    is_part = num_scored < len(splits["test"])
    part = f"; @minutes scores {num_scored:,} of {len(splits['test']):,} test lines, @gpu all"
    if test.labels is not None:
        largest = max(Counter(test.labels).values())
        outputs = [Trivial("the most frequent class for every line", 100 * largest / len(test))]
    elif test.target is not None:
        tokenizers = choose_tokenizers(splits["dev"].target or [])
        outputs = [*trivial_texts(metric, test.target, test.sources, tokenizers)]
    else:
        return []
    floor = max(outputs, key=lambda trivial: trivial.value)
    note = (
        f"a cell has learned something from test/{metric} {floor.value + NEAR:.1f}: {floor.output}, has "
        f"{floor.value:.1f}{part if is_part else ''}"
    )
    if test.labels is None and num_lines < _FEW_PAIRS:
        plain = "small models learn short, plain sentences in minutes; others need"
        few = "models that begin from nothing learn next to nothing; give"
        learned = plain if num_lines >= _FEW else few
        note += f". From {num_lines:,} pairs {learned} more text or a pretrained model: see docs/own_text.md"
    return [note]


def _template(system: System) -> str:
    import importlib

    folder = Path(importlib.import_module(system.path).__path__[0])
    if not (folder / TEMPLATE).exists():
        raise DataError(
            f"{system.name} has no {TEMPLATE}: begin with one of its studies in `nlgraft studies`"
        )
    return (folder / TEMPLATE).read_text("utf-8")


def _check_options(
    template: str,
    system: System,
    text: Text,
    upstream: Text | None,
    checkpoint: Path | None,
    languages: Sequence[str],
) -> None:
    """Refuse options that the first line of a system's template does not list, and missing ones."""
    listed = template.partition("\n")[0].partition(":")[2].removesuffix("-#>").strip()
    groups = [group.split(" or ") for group in listed.split(", ")]
    takes = [name for group in groups for name in group]
    values: dict[str, object] = {"target": text.target, "label": text.label, "checkpoint": checkpoint}
    values |= {"language": languages, "upstream-source": upstream}
    values["upstream-target"] = None if upstream is None else upstream.target
    options = [name for name, value in values.items() if value]
    needed = ["target", "label", *(["upstream-target"] if "upstream-source" in options else [])]
    problems = [f"--{name} is not taken" for name in options if name not in takes]
    problems += [f"--{name} is missing" for name in needed if name in takes and name not in options]
    for group in groups:
        if len({*group} & {*options}) > 1:
            problems.append(f"give {_alternatives(group)}, not both")
    num_languages = len(text.sources) + 1
    if "language" in takes and languages and len(languages) != num_languages:
        problems.append(f"--language: {len(languages)} given, {num_languages} needed, the target's last")
    if (len(text.sources) > 1) != ("sources" in takes):
        problems.append(f"--source is given once{' per source, two or more' if 'sources' in takes else ''}")
    if problems:
        listed = ", ".join(_alternatives(group) for group in groups)
        raise DataError(f"{system.name} takes {listed}: {'; '.join(problems)}")


def _alternatives(names: Sequence[str]) -> str:
    return " or ".join(f"--{name.rstrip('s')}" for name in names)


def _split(
    corpus: Corpus,
    option: str,
    notes: list[str],
    held_out: Mapping[str, Corpus] | None = None,
    num_held_out: int | None = None,
) -> dict[str, Corpus]:
    """Hold out dev and test at random, but for those of ``held_out``, whose text train then lacks."""
    held_out = held_out or {}
    train = _without(corpus, held_out, option, notes)
    num_classes = len({*(train.labels or ())})
    if num_classes > len({*train.sources[0]}):
        raise DataError("there are more classes than sources: are --source and --label swapped?")
    sizes = {"train": len(train)}
    for split in ("dev", "test"):
        if split not in held_out:
            by_share = max(_LEAST_HELD_OUT[split], round(_HELD_OUT * len(train)))
            most = round(_MOST_SHARE[split] * len(train))
            sizes[split] = num_held_out or min(_MOST_HELD_OUT, by_share, most)
            sizes["train"] -= sizes[split]
    if sizes["train"] < _MIN_EXAMPLES // 2:
        raise DataError(
            f"--held-out {num_held_out} leaves {max(0, sizes['train'])} of {len(train)} examples to train; "
            f"give at most {len(train) // 4}"
        )
    splits = _divide(train, sizes)
    for split, lines in held_out.items():
        splits |= _divide(lines, {split: len(lines)})
    if min(len(splits[split]) for split in ("dev", "test")) < 10:
        raise DataError(
            f"the {len(train)} examples of {option} have too few different lines: dev and test need "
            "some that train lacks"
        )
    class_sizes = Counter(train.labels or [])
    alone = sorted(label for label, number in class_sizes.items() if number == 1)
    if alone:
        classes = count(len(alone), "class", "classes")
        notes.append(f"in train alone, {classes} of one example: {name_some(alone)}")
    return splits


def _without(
    corpus: Corpus,
    held_out: Mapping[str, Corpus],
    option: str,
    notes: list[str],
) -> Corpus:
    """Leave out what shares a source or a target with text that is held out, and refuse what is too short."""
    held_keys = {key for lines in held_out.values() for keys in _keys(lines) for key in keys}
    disjoint = [n for n, keys in enumerate(_keys(corpus)) if held_keys.isdisjoint(keys)]
    kept = corpus.at(disjoint)
    left_out = f"{count(len(corpus) - len(kept), 'example')} of {option} stand in dev or test"
    if len(kept) < _MIN_EXAMPLES:
        why = f" ({left_out})" if len(kept) < len(corpus) else ""
        raise DataError(f"the text of {option} has {len(kept)} examples{why}; give {_MIN_EXAMPLES} or more")
    if len(kept) < len(corpus):
        notes.append(f"{left_out}: left out of train")
    return kept


def _keys(corpus: Corpus) -> list[list[object]]:
    """Name the sources and the target of each example; those with a name in common must not be apart.

    A further source that repeats itself, such as the kind of a text, is no name.
    """
    sides = [("target", corpus.target)] if corpus.target else []
    for number, lines in enumerate(corpus.sources):
        if len(corpus.sources) == 1 or 2 * len({*lines}) >= len(lines):
            sides.append((f"source {number}", lines))
    return [[(name, lines[example]) for name, lines in sides] for example in range(len(corpus))]


def _divide(corpus: Corpus, sizes: Mapping[str, int]) -> dict[str, Corpus]:
    """Divide at random, with all classes in like shares; examples of equal text stay together.

    Each class has an example in the first part, which also has text that is repeated often.
    """
    shuffled = _groups(corpus)
    random.Random(1).shuffle(shuffled)  # the same text is divided alike, whenever it is
    strata: dict[str, list[list[int]]] = defaultdict(list)
    for group in shuffled:
        strata[corpus.labels[group[0]] if corpus.labels is not None else ""].append(group)
    largest = max(1, min(sizes.values()) // 20)
    offset = random.Random(2)
    placed: list[tuple[float, list[int]]] = []
    for groups in strata.values():
        for position, group in enumerate(groups):
            is_first = position == 0 or len(group) > largest
            place = 0.0 if is_first else (position + offset.random()) / len(groups)
            placed.append((place, group))
    names = [name for name, size in sizes.items() for _ in range(size)]
    part_of: dict[int, str] = {}
    for _, group in sorted(placed):
        part_of |= dict.fromkeys(group, names[len(part_of)])
    # In random order, since limits take the first lines.
    examples: dict[str, list[int]] = {name: [] for name in sizes}
    for n in random.Random(3).sample(range(len(corpus)), len(corpus)):
        examples[part_of[n]].append(n)
    return {name: corpus.at(numbers) for name, numbers in examples.items()}


def _groups(corpus: Corpus) -> list[list[int]]:
    """Gather the examples that share a source or a target, directly or by way of others."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components  # takes .2 s to import

    first: dict[object, int] = {}
    examples, others = [], []
    for n, keys in enumerate(_keys(corpus)):
        examples += [n] * len(keys)
        others += [first.setdefault(key, n) for key in keys]
    shape = (len(corpus), len(corpus))
    links = coo_array(([True] * len(others), (examples, others)), shape)
    groups: dict[int, list[int]] = defaultdict(list)
    for example, group in enumerate(connected_components(links, directed=False)[1]):
        groups[group].append(example)
    return [*groups.values()]


def _text_values(
    folder: Path,
    splits: Mapping[str, Corpus],
    upstream: Mapping[str, Corpus] | None,
) -> dict[str, Any]:
    """Write the text of task and pretraining; return the values that templates need to name the files."""
    files = _write_splits(folder, "", splits)
    if upstream is None:
        # Some systems train twice: the first part of the task's text then serves for pretraining.
        train = splits["train"]
        num_upstream = round(_UPSTREAM_SHARE * len(train))
        parts = _divide(train, {"downstream": len(train) - num_upstream, "upstream": num_upstream})
        apart = _write_splits(folder, "upstream_", {"train": parts["upstream"]})
        downstream = _write_splits(folder, "downstream_", {"train": parts["downstream"]})
        task = files["both"] | downstream["both"]
    else:
        apart = _write_splits(folder, "upstream_", upstream)
        task = files["both"]
    return {
        "text": files["both"],
        "sides": files,
        "upstream": {**(files if upstream is None else apart), "is_own": upstream is None},
        "apart": {
            "upstream": files["both"] | apart["both"],
            "upstream_source": files["source"] | apart["source"],
            "downstream": task,
        },
    }


def _write_splits(
    folder: Path,
    prefix: str,
    splits: Mapping[str, Corpus],
) -> dict[str, dict[str, str]]:
    """Write a file per split and role; return flow mappings of YAML: of all roles, and of each text alone."""
    mappings: dict[str, dict[str, str]] = {"both": {}}
    for split, corpus in splits.items():
        names: dict[str, str] = {}
        for role, lines in corpus.streams().items():
            side = "source" if role == "source 0" else role.replace(" ", "")
            path = folder / f"{prefix}{split}.{side}"
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")
            names[side] = f"{folder.name}/{path.name}"
            if role not in ("label", "document"):
                mappings.setdefault(side, {})[split] = _flow({"sources": names[side]})
        sources = [name for side, name in names.items() if side.startswith("source")]
        other_files = {side: name for side, name in names.items() if not side.startswith("source")}
        source_files = sources if len(sources) > 1 else sources[0]
        mappings["both"][split] = _flow({"sources": source_files, **other_files})
    return mappings


def _flow(value: Any) -> str:
    """Write JSON values as YAML on one line."""
    # As the item of a list, in which a comma, say, has to be quoted.
    return write_yaml([value], is_flow=True).strip()[1:-1]


def _vocabularies(
    splits: Mapping[str, Corpus], upstream: Mapping[str, Corpus] | None
) -> dict[str, dict[str, Any]]:
    """Choose vocabularies by scale that hold the characters of all text.

    Returns:
        ``vocab``: sizes with a piece for each character; ``words``: the same for WordPiece, which has two;
        ``coarse``: sizes of a vocabulary that cuts the text into smaller pieces;
        ``pieces``: settings of SentencePiece, in which bytes spell rare characters where there are too many.
    """
    train = splits["train"]
    lines = [*train.text()]
    if upstream is not None:
        lines += upstream["train"].text()
    config = LearnedTokenizerConfig()
    references = [line for split in ("dev", "test") for line in splits[split].target or []]
    if normalization_warning(config.normalization, references):
        config = LearnedTokenizerConfig(normalization="identity")
    required = required_pieces(lines, config) + _LEAST_LEARNED
    words = required_tokens(lines, WordTokenizerConfig()) + _LEAST_LEARNED
    sizes = {scale: max(size, required) for scale, size in _vocabulary_sizes(train).items()}
    return {
        "vocab": sizes,
        "words": {scale: max(size, words) for scale, size in sizes.items()},
        "coarse": {scale: max(size // 4, required - _LEAST_LEARNED // 2) for scale, size in sizes.items()},
        "pieces": {
            scale: _pieces(lines, config, size, most=_MOST_TYPES[scale]) for scale, size in sizes.items()
        },
    }


def _pieces(
    lines: Sequence[str],
    config: LearnedTokenizerConfig,
    size: int,
    most: int,
) -> str:
    """Write size, coverage and bytes; as few characters as needed are left to bytes."""
    kept = ", normalization: identity" if config.normalization == "identity" else ""
    if size <= most:
        return f"vocab_size: {size}{kept}"
    required, coverage = size, 1.0
    for coverage in _COVERAGES:
        bytes_config = config.model_copy(update={"character_coverage": coverage, "has_byte_fallback": True})
        required = required_pieces(lines, bytes_config) + _LEAST_LEARNED
        if required <= most:
            break
    if required >= size:  # too few characters for bytes to pay
        return f"vocab_size: {size}{kept}"
    return f"vocab_size: {max(required, most)}, character_coverage: {coverage}, has_byte_fallback: true{kept}"


def _vocabulary_sizes(train: Corpus) -> dict[str, int]:
    """Sizes of a vocabulary by scale: about half of a side's distinct words, so that it holds their parts."""
    sizes = []
    for side in train.sides().values():
        # The task's vocabulary is learned without the text of the pretraining.
        lines = side[: round((1 - _UPSTREAM_SHARE) * min(len(side), _NUM_COUNTED))]
        words = {word for line in lines for word in line.split()}
        characters = {character for word in words for character in word}
        sizes.append(len(words) // 2 + len(characters) + 10)
    return {scale: min(most, *sizes) for scale, most in _MOST_TYPES.items()}


def _languages(text: Text) -> list[str]:
    """Name languages by the suffixes of files, ``de`` of ``train.de.gz``, or else by role."""
    files = filter(None, [*text.sources, text.target])
    names = [without_compression(name).rpartition(".")[2] for name in files]
    if all(name.isalpha() and len(name) <= 3 for name in names):
        return names
    return [*(f"source{number}" for number in range(len(text.sources))), "target"]


def _released(directory: Path) -> dict[str, Any]:
    tokenizer = directory / "tokenizer_config.json"
    try:
        config = read_json(directory / "config.json")
        settings = read_json(tokenizer) if tokenizer.exists() else {}
    except DataError as error:
        raise DataError(
            f"--checkpoint {directory}: no config.json of transformers there ({error})"
        ) from error
    # GPT-2 names this setting n_positions.
    num_positions = config.get("max_position_embeddings") or config.get("n_positions") or 10**9
    return {
        "path": _flow(str(directory.absolute())),
        "max_tokens": min(_MOST_TOKENS, num_positions - _OWN_POSITIONS),
        "objective": _OBJECTIVES.get(str(config.get("model_type")), "masked_tokens"),
        "is_lowercase": str(bool(settings.get("do_lower_case"))).lower(),
    }


def _write_fitting(
    template: str,
    system: System,
    values: Mapping[str, Any],
    out: Path,
) -> dict[str, Plan]:
    """Write the study; where a scale would take too long here, write it again with fewer steps."""
    number = values["num_examples"]
    factors = {scale: min(1.0, max(_LEAST_SHARE, number / full)) for scale, full in _EXAMPLES.items()}
    texts: dict[str, str] = dict.fromkeys(SCALES, "")
    plans: dict[str, Plan] = {}
    for is_shortened in (False, True):  # the second time to see how long the shortened scales take
        out.write_text(_rendered(template, system, values, factors, texts), "utf-8")
        plans = {scale: api.plan(Study.from_yaml(out, [f"@{scale}"])) for scale in SCALES}
        seconds = {scale: plans[scale].run_s for scale in _TARGET_S}
        texts |= {
            scale: "unknown" if scale_s is None else duration(scale_s) for scale, scale_s in seconds.items()
        }
        shares = {
            scale: target / max(target, seconds[scale] or target) for scale, target in _TARGET_S.items()
        }
        if is_shortened or set(shares.values()) == {1.0}:
            break
        factors |= {scale: factors[scale] * share for scale, share in shares.items()}
    out.write_text(_rendered(template, system, values, factors, texts), "utf-8")
    return plans


def _rendered(
    template: str,
    system: System,
    values: Mapping[str, Any],
    factors: Mapping[str, float],
    texts: Mapping[str, str],
) -> str:
    import jinja2

    def steps(number: int, scale: str) -> int:
        return max(_MIN_STEPS, round(number * factors[scale]))

    def limits(scale: str, scored: str, *unscored: str) -> str:
        train = {"train": _TRAIN[scale]}
        limits_by_path = {f"{corpus}.limits": train for corpus in unscored}
        limits_by_path = {f"{scored}.limits": train | _SCORED[scale]} | limits_by_path
        return _flow(paths.expand(limits_by_path))

    # Delimiters without braces, which YAML uses itself.
    environment = jinja2.Environment(
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        comment_start_string="<#",
        comment_end_string="#>",
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    places = {"file": values["file"], "schema": values["schema"]}
    head = _HEAD.format(system=system.name, **{"minutes": "", "evening": "", **texts}, **places)
    return environment.from_string(template).render(
        **values, head=head, steps=steps, limits=limits, flow=_flow
    )
