"""A trial's model as a directory: written, opened, and applied to other lines as the study's stages do."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from tokenizers.processors import TemplateProcessing

from nlgraft.basics.errors import ContractError, DataError, StoreError
from nlgraft.evaluation.artifact import one_line
from nlgraft.export.description import (
    BODY,
    CORPUS_READ,
    MODEL,
    NATIVE,
    USES,
    Description,
    ExportSource,
    Task,
    export_source,
)
from nlgraft.nn.conversion.checkpoint import to_hugging_face
from nlgraft.nn.conversion.ctranslate2_model import missing_package, unsupported, write_ctranslate2
from nlgraft.nn.masked_lm_models import Classifier, TransformersMaskedLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.transformers_lms import quiet_transformers
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages.run.seq2seq_stages import encoded_inputs, last_sentence, search
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.stages.seq2seq_graph import TranslateSettings
from nlgraft.text.corpora import Corpus, first_words, read_corpus
from nlgraft.text.files import read_json, refuse_special, write_json
from nlgraft.text.tokenizers import TOKENIZER_FILE, encode_words
from nlgraft.tracking.entries import PREDICTOR
from nlgraft.training.masked_lm_training import (
    LabelledData,
    class_probabilities,
    read_classifier,
    write_classifier,
    write_masked_lm,
)
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.training.models import read_model, write_model
from nlgraft.training.train_config import Side
from nlgraft.vocab.tokenizers.loading import (
    DECODER_DIRECTORY,
    copy_tokenizer,
    load_vocabulary,
    save_tokenizer,
)

CTRANSLATE2 = "ctranslate2"
_MIN_POSITIONS = 512
"""Positions of sinusoids in a conversion for CTranslate2, which has a table of them."""
_NUM_COMPARED = 1000
"""Lines that both forms of a tokenizer have to segment alike."""
_NO_CTRANSLATE2 = "not there: nlgraft converts models for translation alone"
Forms = dict[str, str]
"""Why each form of the model is there or missing, in one sentence each."""


def write_directory(
    graph: StageGraph,
    store: ArtifactStore,
    out: Path,
) -> tuple[Description, Forms]:
    """Write the model of a finished trial.

    Args:
        graph: The trial.
        store: Its store.
        out: An empty directory.

    Returns:
        How the model is used; by ``transformers`` and ``ctranslate2``, what is there, or why nothing is.

    Raises:
        DataError: The trial has no model that can be used without it.
        StoreError: An artifact is missing or damaged.
    """
    source = export_source(graph, store)
    fetched = {folder: store.fetch(stage) for folder, stage in source.stages.items()}
    for folder, path in fetched.items():
        if folder not in (MODEL, BODY, CORPUS_READ):
            copy_tokenizer(path, out / NATIVE / folder)
    writers = {"translation": _translation, "classification": _classification, "checkpoint": _checkpoint}
    forms = writers[source.description.task](source, fetched, out)
    source.description.write(out)
    predictor: dict[str, object] = {"predictor": "nlgraft.export.exported:open_predictor"}
    if len(source.description.columns) > 1:
        predictor["inputs"] = list(source.description.columns)
    if source.description.task != "checkpoint":
        write_json(out / PREDICTOR, predictor)
    return source.description, forms


def _translation(
    source: ExportSource,
    fetched: Mapping[str, Path],
    out: Path,
) -> Forms:
    description = source.description
    settings = TranslateSettings.model_validate_json(json.dumps(description.settings))
    model = read_model(fetched[MODEL])
    (out / NATIVE / MODEL).mkdir(parents=True)
    write_model(model, out / NATIVE / MODEL)
    folders = {stream: out / NATIVE / folder for stream, folder in description.tokenizers.items()}
    role = settings.streams[settings.view.sources[0].stream]
    lines = read_corpus(fetched[CORPUS_READ] / settings.split).text(role)[:_NUM_COMPARED]

    form = partial(_write_seq2seq, model, settings, folders, lines)
    forms = {"transformers": _try_transformers(form, out)}
    if problems := unsupported(model.config) or missing_package():
        return forms | {"ctranslate2": f"not there: {'; '.join(problems)}"}
    pieces = tuple(
        open_tokenizer(folders[side.stream]).pieces
        for side in (settings.view.sources[0], settings.view.target)
    )
    is_learned = "learned" in (model.config.source_positions, model.config.target_positions)
    num_positions = (
        model.config.max_positions if is_learned else max(_MIN_POSITIONS, model.config.max_positions)
    )
    write_ctranslate2(model, settings.generation, out / CTRANSLATE2, num_positions, (pieces[0], pieces[1]))
    return forms | {"ctranslate2": f"ctranslate2.Translator('{CTRANSLATE2}'); its tokens are the tokenizer's"}


def _classification(
    source: ExportSource,
    fetched: Mapping[str, Path],
    out: Path,
) -> Forms:
    model, labels = read_classifier(fetched[MODEL], fetched[BODY])
    native = out / NATIVE / MODEL
    native.mkdir(parents=True)
    write_classifier(model, labels, native)
    if not model.config.is_body_trained:
        (out / NATIVE / BODY).mkdir()
        write_masked_lm(model.body, out / NATIVE / BODY)
    [folder] = source.description.tokenizers.values()
    limit = source.description.max_tokens
    assert limit is not None, "every classifier has one"
    lines = read_corpus(fetched[CORPUS_READ] / "dev").text(TEXT)[:_NUM_COMPARED]

    form = partial(_write_transformers_classifier, model, labels, out / NATIVE / folder, limit, lines)
    return {"transformers": _try_transformers(form, out), "ctranslate2": _NO_CTRANSLATE2}


def _try_transformers(write: Callable[[Path], list[str]], out: Path) -> str:
    """Write transformers' form if there is one, and say what is there, or why nothing is."""
    with tempfile.TemporaryDirectory(dir=out, prefix=".transformers-") as name:
        written = Path(name)
        try:
            notes = write(written)
        except (ContractError, DataError) as error:
            return f"not there: {error}"
        for path in written.iterdir():
            path.replace(out / path.name)
    return "; ".join(notes)


def _checkpoint(
    source: ExportSource,
    fetched: Mapping[str, Path],
    out: Path,
) -> Forms:
    """Copy what transformers wrote, and nothing of the stage's own records."""
    checkpoint = fetched[MODEL]
    for path in sorted(checkpoint.iterdir()):
        is_theirs = path.suffix == ".safetensors" and not path.name.startswith("segments-")
        if is_theirs or path.name in (
            "config.json",
            "generation_config.json",
            "model.safetensors.index.json",
        ):
            shutil.copyfile(path, out / path.name)
    folders = [fetched[folder] for folder in source.description.tokenizers.values()]
    [folder, *_] = [*folders, checkpoint]
    vocabulary = load_vocabulary(folder)
    try:
        ids = MaskingIds.of(vocabulary)
    except DataError:
        # A causal model's, which puts nothing around a line.
        save_tokenizer(folder, vocabulary, out)
    else:
        side = Side(stream=TEXT, prefix=(ids.begin,), suffix=(ids.end,))
        _write_tokenizer(folder, out, side, None)
    kind = read_json(out / "config.json").get("architectures", ["a model"])[0]
    return {
        "transformers": f"{kind} loads this directory",
        "ctranslate2": _NO_CTRANSLATE2,
    }


# The form that transformers loads, where it knows the architecture.


_HEADS: Mapping[str, tuple[str, str]] = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
}
"""By model type, the layers of transformers' classifier that are our hidden layer and our output."""


def _write_seq2seq(
    model: Seq2Seq,
    settings: TranslateSettings,
    folders: Mapping[str, Path],
    lines: Sequence[str],
    directory: Path,
) -> list[str]:
    """Write a Marian or mBART with its tokenizers, which have to segment lines as our own do.

    Returns:
        What loads it, and how transformers differs.

    Raises:
        ContractError: transformers has no such model.
        DataError: It has no such tokenizer.
    """
    view = settings.view
    if len(view.sources) != 1:
        raise ContractError("transformers' encoder-decoders read one source")
    notes = to_hugging_face(model, directory, settings.generation)
    [source] = view.sources
    target = folders[view.target.stream]
    _write_tokenizer(folders[source.stream], directory, source, settings.max_tokens)
    encoded = open_tokenizer(folders[source.stream]).encode([*lines])
    _compare(directory, lines, source, encoded)
    if target != folders[source.stream]:
        _write_tokenizer(target, directory / DECODER_DIRECTORY, view.target, None)
        notes.append(f"the target has a tokenizer of its own, in {DECODER_DIRECTORY}/")
    return ["AutoModelForSeq2SeqLM loads this directory", *notes]


def _write_transformers_classifier(
    model: Classifier,
    labels: Sequence[str],
    folder: Path,
    limit: int,
    lines: Sequence[str],
    out: Path,
) -> list[str]:
    """Write a classifier of sequences with its tokenizer, which has to segment lines as our own does.

    Returns:
        What loads it.

    Raises:
        ContractError: transformers has no such head on this architecture.
        DataError: It has no such tokenizer.
    """
    from transformers import AutoModelForSequenceClassification

    body = model.body
    kind = body.model.config.model_type if isinstance(body, TransformersMaskedLM) else "nlgraft"
    if kind not in _HEADS or model.config.pooling != "first" or not model.config.has_hidden_layer:
        raise ContractError(
            f"transformers' classifiers have no head with pooling {model.config.pooling} and "
            f"has_hidden_layer {str(model.config.has_hidden_layer).lower()} on a body of type {kind}; they "
            f"read the first token behind a hidden layer, on {', '.join(_HEADS)}"
        )
    pretrained: Any = body.model
    config = copy.deepcopy(pretrained.config)
    label_ids = {name: k for k, name in enumerate(labels)}
    config.update({"id2label": dict(enumerate(labels)), "label2id": label_ids})
    config.update({"classifier_dropout": model.config.dropout})
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        classifier = AutoModelForSequenceClassification.from_config(config)
        classifier.base_model.load_state_dict(pretrained.base_model.state_dict(), strict=False)
        layers = (model.head[0], model.head[-1])
        for name, layer in zip(_HEADS[kind], layers, strict=True):
            classifier.get_submodule(name).load_state_dict(layer.state_dict())
        classifier.save_pretrained(out)
    ids = MaskingIds.of(load_vocabulary(folder))
    side = Side(stream=TEXT, prefix=(ids.begin,), suffix=(ids.end,))
    _write_tokenizer(folder, out, side, limit)
    encoded = encode_words(folder / TOKENIZER_FILE, lines).ids
    _compare(out, lines, side, [encoded[row] for row in range(len(lines))])
    return ["AutoModelForSequenceClassification loads this directory"]


def _write_tokenizer(
    folder: Path,
    directory: Path,
    side: Side,
    max_tokens: int | None,
) -> None:
    """Write a tokenizer that puts the ids of a side around each sentence."""
    vocabulary = load_vocabulary(folder)
    save_tokenizer(folder, vocabulary, directory)
    path = directory / TOKENIZER_FILE
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    before, after = ([str(vocabulary.surfaces[i]) for i in ids] for ids in (side.prefix, side.suffix))
    added = dict(zip((*before, *after), (*side.prefix, *side.suffix), strict=True))
    tokenizer.post_processor = TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=[*added.items()]
    )
    tokenizer.save(str(path))
    if max_tokens is not None:
        path = directory / "tokenizer_config.json"
        config = read_json(path)
        config["model_max_length"] = max_tokens + len(side.prefix) + len(side.suffix)
        write_json(path, config)


def _compare(
    directory: Path,
    lines: Sequence[str],
    side: Side,
    native_ids: Iterable[Iterable[int]],
) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    exported_ids = [encoding.ids for encoding in tokenizer.encode_batch([*lines])]
    num_other = sum(
        [*side.prefix, *map(int, native), *side.suffix] != exported
        for native, exported in zip(native_ids, exported_ids, strict=True)
    )
    if num_other:
        raise DataError(f"its tokenizer would segment {num_other} of {len(lines)} lines otherwise")


# An exported model in use: the functions of the study's own stages, applied to other lines.


_BATCH_TOKENS = 4096
"""Padded positions of a batch of lines to classify, as in a study's scoring."""
Predictor = Callable[..., list[str]]


class ExportedModel:
    """A model that ``nlgraft export`` wrote; its weights are read when they are first needed.

    Attributes:
        task: ``translation``, ``classification`` or ``checkpoint``.
        columns: Roles of the texts of an example.
        separator: What joins the texts of an example to the one source that the model reads; None: nothing.
    """

    def __init__(self, directory: str | Path) -> None:
        """Open a directory.

        Raises:
            DataError: ``nlgraft export`` did not write it.
        """
        self._directory = Path(directory)
        self._description = Description.read(self._directory)
        self.task, self.columns = self._description.task, self._description.columns
        self.separator = self._description.joined_by
        for path in self._directory.rglob("*"):
            refuse_special(path)
        self._native = self._directory / NATIVE
        self._tokenizers = {name: self._native / at for name, at in self._description.tokenizers.items()}

    def __repr__(self) -> str:
        next_ = {"translation": ".translate(lines)", "classification": ".classify(lines)"}
        how = next_.get(self.task, "transformers loads it")
        return f"{self.task} model in {self._directory} of {', '.join(self.columns)}; next: {how}"

    def translate(self, *columns: Sequence[str]) -> list[str]:
        """Translate examples, given column by column, as the study translated its test set.

        Raises:
            DataError: The model does something else, or the columns do not fit.
        """
        self.check_task("translation")
        self._check_columns(columns)
        if not columns[0]:
            return []
        with _export_errors(self._directory):
            model, settings = self._seq2seq
            inputs = encoded_inputs(settings, self._corpus(columns), self._tokenizers, model.room("source"))
            target = open_tokenizer(self._tokenizers[settings.view.target.stream])
        lines = map(one_line, target.decode(search(model, inputs, settings).best))
        kept_after = self._description.kept_after
        return [line if kept_after is None else last_sentence(line, kept_after) for line in lines]

    def classify(self, lines: Sequence[str]) -> list[str]:
        """Find the likeliest label of every line; errors as for ``probabilities``."""
        labels, probabilities_NC = self.probabilities(lines)
        if lines:
            return [labels[index] for index in probabilities_NC.argmax(1)]
        return []

    def probabilities(self, lines: Sequence[str]) -> tuple[list[str], NDArray[np.float64]]:
        """Compute the probability of every label of every line.

        Returns:
            The labels, and the probabilities, shape (lines, labels).

        Raises:
            DataError: The model does something else.
        """
        self.check_task("classification")
        with _export_errors(self._directory):
            model, labels = self._classifier
            [tokenizer] = self._tokenizers.values()
            encoded = encode_words(tokenizer / TOKENIZER_FILE, lines, self._description.max_tokens)
            ids = MaskingIds.of(load_vocabulary(tokenizer))
        if not lines:
            return labels, np.zeros((0, len(labels)))
        # Unknown, and not looked at.
        classes = np.zeros(len(lines), dtype=np.int64)
        data = LabelledData(encoded.ids, classes, ids, batch_tokens=_BATCH_TOKENS)
        return labels, class_probabilities(model, data, len(labels))

    def check_task(self, task: Task) -> None:
        """Raise ``DataError`` if the model does something else."""
        if self.task != task:
            use = f"`nlgraft {USES[self.task]}`" if self.task in USES else "transformers"
            raise DataError(f"{self._directory}: a {self.task} model; use {use}")

    def _check_columns(self, columns: Sequence[Sequence[str]]) -> None:
        lengths = [len(column) for column in columns]
        if len(lengths) != len(self.columns) or len({*lengths}) != 1:
            sizes = ", ".join(map(str, lengths))
            raise DataError(
                f"{self._directory}: given {len(columns)} columns of {sizes} lines; it reads "
                f"{len(self.columns)} of equal length: {', '.join(self.columns)}"
            )

    def _corpus(self, columns: Sequence[Sequence[str]]) -> Corpus:
        max_words = self._description.max_source_words
        cut = [[first_words(line, max_words) for line in column] for column in columns]
        if self.separator is not None:
            return Corpus([[self.separator.join(parts) for parts in zip(*cut, strict=True)]])
        indices = [int(role.removeprefix("source ")) for role in self.columns]
        # A source that the model does not read may hold anything.
        sources = [[""] * len(cut[0]) for _ in range(max(indices) + 1)]
        for index, lines in zip(indices, cut, strict=True):
            sources[index] = lines
        return Corpus(sources)

    @cached_property
    def _seq2seq(self) -> tuple[Seq2Seq, TranslateSettings]:
        settings = TranslateSettings.model_validate_json(json.dumps(self._description.settings))
        return read_model(self._native / MODEL), settings

    @cached_property
    def _classifier(self) -> tuple[Classifier, list[str]]:
        return read_classifier(self._native / MODEL, self._native / BODY)


@contextmanager
def _export_errors(directory: Path) -> Iterator[None]:
    """Name the directory if its files are not those that were exported."""
    try:
        yield
    # StoreError: as of an artifact. RuntimeError: weights of another shape.
    except (StoreError, SafetensorError, OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{directory}: files are missing or damaged ({reason}); export it again") from error


def open_predictor(directory: Path) -> Predictor:
    """Open an exported directory for MLflow: the function from columns of text to texts."""
    model = ExportedModel(directory)
    return model.classify if model.task == "classification" else model.translate
