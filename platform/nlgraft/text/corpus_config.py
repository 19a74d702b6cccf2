"""Configuration of corpora.

A study's ``data`` is one of four kinds, told apart by ``corpus``: ``conlang`` (built in, constructed),
``files``, ``huggingface`` or ``sacrebleu``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    TypeAdapter,
    field_validator,
)

from nlgraft.basics.errors import DataError
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.text.files import InputPath, InputPathOrName, file_digest

# Which examples of a corpus a study keeps, and how much of their lines.


_WORD = re.compile(r"[^\W_]+")


def word_tokens(line: str) -> list[str]:
    """Split a line into its maximal runs of letters and digits, lower-cased, as a ``WordRule`` sees it."""
    return _WORD.findall(line.lower())


class Limits(StrictConfig):
    """Largest number of examples of each split, counted after the word rule; null: all."""

    train: int | None = Field(default=None, ge=1)
    """Training examples."""
    dev: int | None = Field(default=None, ge=1)
    """Dev examples."""
    test: int | None = Field(default=None, ge=1)
    """Examples of each test set."""


class WordRule(StrictConfig):
    """Selects a domain from a corpus by the words of its first source.

    A line is split into its maximal runs of letters and digits, lower-cased. It belongs to the domain when
    any of them is in ``words`` (whole words, no stemming: list the inflected forms). ``has: false`` keeps the
    complement, so two configs that differ only in ``has`` split a corpus into two disjoint domains that cover
    it.
    """

    words: tuple[str, ...] = Field(min_length=1)
    """Keywords, lower case, one word each."""
    has: bool = True
    """If true, keep the lines with a keyword; if false, those without."""

    @field_validator("words")
    @classmethod
    def _can_match(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        never = [word for word in words if word_tokens(word) != [word]]
        if never:
            raise ValueError(
                f"{never} can never match: give lower-case words of letters and digits, one each"
            )
        return words

    def keeps(self, line: str) -> bool:
        """Return True when an example belongs to the domain, given its first source."""
        return self.has != frozenset(self.words).isdisjoint(word_tokens(line))


class SelectionConfig(StrictConfig):
    """Part of the configuration of every corpus that is read."""

    limits: Limits = Limits()
    """Limits on the examples of each split."""
    keep: WordRule | None = None
    """Rule that selects examples, applied to every split before the limits; null: all."""
    max_line_chars: int = Field(default=10_000, ge=1)
    """Longest line, in characters; longer ones are truncated, counted and reported."""
    max_source_words: int | None = Field(default=None, ge=1)
    """Longest source, in words between white space; longer ones are truncated, counted and reported (See et
    al. 2017: 400 for CNN-DailyMail). Null: no limit."""


Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SplitName = Annotated[str, Field(pattern=r"^(train|dev|test(_[a-z0-9_]+)?)$")]
"""A split, or a further test set as ``test_NAME``."""
Task = Literal[
    "translation",
    "multi_source",
    "post_editing",
    "document_translation",
    "question_generation",
    "summarisation",
    "classification",
    "monolingual",
]
Language = Literal["first", "second", "target"]
TASK_ROLES: dict[Task, tuple[str, ...]] = {
    "translation": ("source 0", "target"),
    "multi_source": ("source 0", "source 1", "target"),
    "post_editing": ("source 0", "source 1", "target"),
    "document_translation": ("source 0", "target", "document"),
    "question_generation": ("source 0", "source 1", "target"),
    "summarisation": ("source 0", "target"),
    "classification": ("source 0", "label"),
    "monolingual": ("source 0",),
}
"""Roles of the streams of constructed text."""

FilesT = TypeVar("FilesT", bound="TextFiles")
TestName = Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
"""Pieces of the ids 0 to 3 in every vocabulary."""


def _listed(value: Any) -> Any:
    # A tuple, since behind a before-validator pydantic's strict mode refuses a list.
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


_OneOrMore = BeforeValidator(_listed, json_schema_input_type=tuple[str, ...] | str)
Paths = Annotated[tuple[InputPath, ...], _OneOrMore]
Columns = Annotated[tuple[str, ...], _OneOrMore]


class _Constructed(StrictConfig):
    """Text of the constructed language family: needs no network, takes seconds.

    Train, dev and test never share a pair, and a split's first lines do not depend on its size or on the
    size of another split: raising ``train`` leaves dev and test as they are.
    """

    corpus: Literal["conlang"]
    domain: Literal["a", "b"] = "a"
    """Domain of the sentences. Both domains share grammar, affixes and common roots; most words that only b
    has are built from roots and affixes that a uses, too."""
    language: Language | None = None
    """Language of monolingual text and of classification (default: target); other tasks refuse it."""
    train: int = Field(default=10_000, ge=1)
    """Number of training examples."""
    dev: int = Field(default=500, ge=1)
    """Number of dev examples: sentences, or documents to summarise."""
    test: int = Field(default=1000, ge=1)
    """Number of test examples."""
    topicality: float = Field(default=0.0, ge=0, le=1)
    """Monolingual text and classification: share of the nouns, verbs and adjectives that are drawn from one
    semantic field, the sentence's topic. If above 0, the label is the topic (``topic 0`` to ``topic 5``),
    which only words in combination reveal, instead of the sentiment, to which each word contributes by
    itself."""


class ConstructedText(_Constructed):
    """Constructed text of one language."""

    task: Literal["monolingual"] = "monolingual"
    """Sentences alone."""


class ConstructedLabelled(_Constructed):
    """Constructed sentences of one language and their classes."""

    task: Literal["classification"]
    """A sentence and its sentiment or topic."""


class ConlangConfig(_Constructed):
    """Constructed text of any task."""

    task: Task = "translation"
    """Roles of the text. ``translation``: the first language into the target language. ``multi_source``:
    first and second language, which together express what each leaves out. ``post_editing``: the first
    language and a faulty draft. ``document_translation``: sentences of documents, whose pronouns need the
    sentence before. ``question_generation``: a passage and the answer into the question.
    ``summarisation``: a document on one line into its main point. ``classification``: a sentence and its
    sentiment (``positive``, ``negative``, ``neutral``). ``monolingual``: text without target."""
    unsaid: float = Field(default=0.0, ge=0, le=0.5)
    """Multi_source and post_editing: share of the adjectives, adverbs, places and owners that a source omits.
    In multi_source each of them is expressed in at least one source; in post_editing only the first language
    omits any."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the corpus's streams, e.g. ``source 0`` and ``target``."""
        return TASK_ROLES[self.task]

    def _problems(self) -> Iterator[str]:
        for name, tasks, reason in (
            ("language", ("monolingual", "classification"), "which has its own"),
            ("topicality", ("monolingual", "classification"), "whose sentences have no topic"),
            ("unsaid", ("multi_source", "post_editing"), "whose one source must say all"),
        ):
            value = getattr(self, name)
            if value and self.task not in tasks:
                yield (
                    f"{name}: {value!r} cannot be set for task: {self.task}, {reason}; leave {name} out, or "
                    f"set task: {' or '.join(tasks)}"
                )


def _by_role(split: Any) -> dict[str, str]:
    """Map role to what a config gives for it: ``source 0``, ``target``, ``label``, ``document``."""
    named = {f"source {index}": source for index, source in enumerate(split.sources)}
    others = {role: getattr(split, role, None) for role in ("target", "label", "document")}
    return named | {role: other for role, other in others.items() if other is not None}


class TextFiles(StrictConfig):
    """The files of one split, or the columns of its table. Plain, ``.gz`` or ``.zst``, UTF-8."""

    table: InputPath | None = None
    """A table (.csv, .tsv or .jsonl), whose columns or keys the other settings name; numbers from 1 name the
    columns of one without a header. Null: they name files with an example per line."""
    sources: Paths = Field(min_length=1)
    """One file or column per source, in order; or the only one."""

    def streams(self) -> dict[str, str]:
        """Map role to file or column, ``source 0``, ``target``, ``label``, ``document``, as far as given."""
        return _by_role(self)


class PairFiles(TextFiles):
    """The files of one split; line n of each belongs to example n."""

    target: InputPath | None = None
    """File of target lines; null for monolingual text or classification."""


class LabelledFiles(TextFiles):
    """The lines of one split and their classes."""

    label: InputPath
    """File of class labels, one per line."""


class SplitFiles(PairFiles):
    """The files of one split of any task."""

    label: InputPath | None = None
    """File of class labels, one per line."""
    document: InputPath | None = None
    """File of document ids, one per line; equal ids on neighbouring lines make a document."""


class _Files(SelectionConfig, Generic[FilesT]):
    """Text from files. ``~`` is expanded; relative paths start at the directory of the study file."""

    corpus: Literal["files"]
    train: FilesT
    """Files of the training split."""
    dev: FilesT
    """Files of the dev split."""
    test: FilesT | None = None
    """Files of the test split; null for text that is used in training only."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the corpus's streams, e.g. ``source 0`` and ``target``."""
        return tuple(self.train.streams())

    @property
    def splits(self) -> dict[str, FilesT]:
        """The files of each split that exists."""
        files = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: split_files for split, split_files in files.items() if split_files is not None}

    @property
    def origins(self) -> set[str]:
        """Where its text comes from: tables, and files of sources."""
        all_files = self.splits.values()
        return {
            path for files in all_files for path in (files.sources if files.table is None else [files.table])
        }

    def _problems(self) -> Iterator[str]:
        for split, files in self.splits.items():
            if tuple(files.streams()) != self.roles:
                yield (
                    f"{split} has {', '.join(files.streams())} but train has {', '.join(self.roles)}; "
                    "every split needs the same files"
                )
        if self.test is None and self.limits.test is not None:
            yield f"limits.test is {self.limits.test}, but there are no files of a test split"


class FilesText(_Files[TextFiles]):
    """Text without targets, labels or documents, from files."""


class FilesLabelled(_Files[LabelledFiles]):
    """Lines and their classes, from files."""


class _FilesWithTests(_Files[FilesT], Generic[FilesT]):
    further_tests: Mapping[TestName, FilesT] = {}
    """Files of further test sets by name; each is scored as the split ``test_NAME``."""

    @property
    def splits(self) -> dict[str, FilesT]:
        """The files of each split that exists."""
        return super().splits | {
            _test_split(name): split_files for name, split_files in self.further_tests.items()
        }

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.test is None and self.further_tests:
            yield "further_tests are given, but no test: give the main test set as test"


class FilesTestedText(_FilesWithTests[TextFiles]):
    """Text without targets, labels or documents, from files, with further test sets."""


class FilesPairs(_FilesWithTests[PairFiles]):
    """Sources and targets from files."""


class FilesConfig(_FilesWithTests[SplitFiles]):
    """Examples of any task from files."""


class HuggingFaceText(SelectionConfig):
    """Text of a dataset on the Hugging Face hub or in a local directory; needs the ``datasets`` extra."""

    corpus: Literal["huggingface"]
    path: InputPathOrName
    """Name on the hub or directory, as ``datasets.load_dataset`` takes it or ``save_to_disk`` wrote it."""
    name: str | None = None
    """Configuration of the dataset, e.g. ``de-en``."""
    revision: str = Field(min_length=1)
    """Commit or tag on the hub, so that a study always reads the same text (any word for a directory)."""
    sources: Columns = Field(min_length=1)
    """Columns of the sources; a dot reaches inside: ``translation.de``."""
    splits: Mapping[SplitName, str] = {"train": "train", "dev": "validation", "test": "test"}
    """The dataset's own name for each of our splits, slices allowed: ``train[:1%]``. Further test sets are
    named ``test_NAME``."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the corpus's streams, e.g. ``source 0`` and ``target``."""
        return tuple(self.columns())

    @property
    def origins(self) -> set[str]:
        """Where its text comes from: the dataset."""
        return {self.path}

    def _problems(self) -> Iterator[str]:
        missing = [split for split in SPLITS if split not in self.splits]
        if missing:
            yield f"splits names no {', '.join(missing)}; give train, dev and test"

    def columns(self) -> dict[str, str]:
        """Map role to column, as ``TextFiles.streams`` does."""
        return _by_role(self)


class HuggingFacePairs(HuggingFaceText):
    """Sources and targets of a Hugging Face dataset."""

    target: str | None = None
    """Column of the target."""


class HuggingFaceLabelled(HuggingFaceText):
    """Lines of a Hugging Face dataset and their classes."""

    label: str
    """Column of the class label; class names are used where the dataset has them."""


class HuggingFaceConfig(HuggingFacePairs):
    """Examples of any task from a Hugging Face dataset."""

    label: str | None = None
    """Column of the class label; class names are used where the dataset has them."""
    document: str | None = None
    """Column of the document id."""


class SacreBleuConfig(SelectionConfig):
    """Test sets that sacreBLEU distributes (WMT and others), training text from files; needs the network."""

    corpus: Literal["sacrebleu"]
    langpair: str = Field(pattern=r"^[a-z]{2,3}-[a-z]{2,3}$")
    """Direction, e.g. ``en-de``."""
    train: PairFiles
    """Files of the training split: one source and a target."""
    dev: str
    """Test set used as dev set, e.g. ``wmt13``."""
    test: str
    """Test set, e.g. ``wmt14/full``."""
    further_tests: Mapping[TestName, str] = {}
    """Further test sets by a name of your choice; each is scored as the split ``test_NAME``."""

    @property
    def splits(self) -> dict[str, PairFiles | str]:
        """The files or the test set of each split."""
        further = {_test_split(name): test_set for name, test_set in self.further_tests.items()}
        return {"train": self.train, "dev": self.dev, "test": self.test, **further}

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the corpus's streams: ``source 0`` and ``target``."""
        return tuple(self.train.streams())

    def _problems(self) -> Iterator[str]:
        if self.roles != ("source 0", "target"):
            yield (f"train has {', '.join(self.roles)}; sacreBLEU test sets have one source and a target")


PairsConfig = Annotated[
    ConlangConfig | FilesPairs | HuggingFacePairs | SacreBleuConfig, Field(discriminator="corpus")
]
"""Sources and targets."""
LabelledConfig = Annotated[
    ConstructedLabelled | FilesLabelled | HuggingFaceLabelled, Field(discriminator="corpus")
]
"""Lines and their classes."""
TextConfig = Annotated[ConstructedText | FilesText | HuggingFaceText, Field(discriminator="corpus")]
"""Training text without targets: sources only."""
TestedTextConfig = Annotated[
    ConstructedText | FilesTestedText | HuggingFaceText, Field(discriminator="corpus")
]
"""Text without targets, on whose further test sets a model is scored, too."""
CorpusConfig = Annotated[
    ConlangConfig | FilesConfig | HuggingFaceConfig | SacreBleuConfig, Field(discriminator="corpus")
]
AnyCorpus = CorpusConfig | PairsConfig | LabelledConfig | TextConfig | TestedTextConfig
_CORPUS: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)


def as_corpus(config: AnyCorpus) -> CorpusConfig:
    """Convert a corpus config that is restricted to some roles into the general one."""
    return _CORPUS.validate_python(config.model_dump())


def _test_split(name: str) -> str:
    return f"test_{name}"


def further_tests(data: Any) -> tuple[str, ...]:
    """List the test splits besides ``test`` of all corpora in ``data`` of a config, typed or as JSON."""
    fields: Any = dict(data) if isinstance(data, BaseModel) else data
    if not isinstance(fields, Mapping):
        return ()
    if "corpus" not in fields:
        return tuple(dict.fromkeys(name for value in fields.values() for name in further_tests(value)))
    if fields["corpus"] == "huggingface":
        return tuple(split for split in fields.get("splits", ()) if split.startswith("test_"))
    return tuple(_test_split(name) for name in fields.get("further_tests", ()))


# Checks that a corpus has the roles and splits that a system needs, made when a study is read.


def role_problem(
    corpus: CorpusConfig,
    *required: str,
    is_exact: bool = False,
    is_tested: bool = True,
    has_further_tests: bool = True,
) -> str | None:
    """Explain why a corpus cannot be used, by its roles and splits; None when it can.

    Args:
        corpus: The corpus.
        required: Roles that it must have.
        is_exact: Refuse all other roles.
        is_tested: It needs a test split.
        has_further_tests: Further test sets are scored as well.
    """
    further = further_tests(corpus)
    if further and not (is_tested and has_further_tests):
        return f"has further test sets ({', '.join(further)}), on which nothing is scored: leave them out"
    if is_tested and isinstance(corpus, FilesConfig) and corpus.test is None:
        return "needs a test split, on which the results are computed: give the files of test"
    missing = [role for role in required if role not in corpus.roles]
    others = [role for role in corpus.roles if role not in required] if is_exact else []
    if not missing and not others:
        return None
    requirement = f"{'exactly ' if is_exact else ''}{' and '.join(required)}"
    task = f" of task {corpus.task}" if isinstance(corpus, ConlangConfig) else ""
    return f"needs {requirement}; the {corpus.corpus} corpus{task} has {', '.join(corpus.roles)}"


def requires(
    *roles: str,
    is_tested: bool = True,
    has_further_tests: bool = True,
) -> AfterValidator:
    """Make the annotation of a corpus that needs these roles; arguments as in ``role_problem``.

    In a system's config: ``text: Annotated[CorpusConfig, requires("source 0", "target")]``.
    """

    def check(corpus: AnyCorpus) -> AnyCorpus:
        wide = as_corpus(corpus)
        problem = role_problem(wide, *roles, is_tested=is_tested, has_further_tests=has_further_tests)
        if problem:
            raise ValueError(problem)
        return corpus

    return AfterValidator(check)


# Digest of a corpus: everything on which its text depends, for fingerprints.


CONLANG_VERSION = 1
"""Part of the digest; raise it when the same config gives other constructed text."""


def digest(config: CorpusConfig) -> dict[str, Any]:
    """Return everything on which the text of a corpus depends, as JSON for fingerprints.

    Configs with equal digests give the same text. Files count by the SHA-256 of their bytes wherever they
    lie, a hub dataset by its revision, a sacreBLEU test set by its name and published checksums.

    Raises:
        DataError: A file is missing, or sacreBLEU knows no such test set.
    """
    content = config.model_dump(mode="json")
    if isinstance(config, ConlangConfig):
        return {**content, "version": CONLANG_VERSION}
    if not isinstance(config, FilesConfig | SacreBleuConfig):
        return content
    # Further tests are among the splits below, by their files instead of their paths.
    content.pop("further_tests", None)
    for split, files in config.splits.items():
        if isinstance(files, TextFiles) and files.table is not None:
            content[split] = {**files.streams(), "table": file_digest(files.table)}
        elif isinstance(files, TextFiles):
            content[split] = {role: file_digest(path) for role, path in files.streams().items()}
        else:
            content[split] = {"test_set": files, "md5": list(sacrebleu_dataset(files).md5 or [])}
    return content


def sacrebleu_dataset(name: str) -> Any:
    """Look up a test set of sacreBLEU.

    Raises:
        DataError: There is none of this name.
    """
    from sacrebleu.dataset import DATASETS  # takes 0.2 s to import

    if name not in DATASETS:
        raise DataError(f"{name}: sacreBLEU knows no such test set; `sacrebleu --list` names them")
    return DATASETS[name]
