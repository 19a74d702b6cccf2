"""An exported model in use: the functions of the study's own stages, applied to other lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from nlgraft.basics.errors import DataError, StoreError
from nlgraft.evaluation.artifact import one_line
from nlgraft.export.description import BODY, MODEL, NATIVE, Description, Task
from nlgraft.nn.masked_lm_models import Classifier
from nlgraft.nn.model import Seq2Seq
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.stages.run.translation_stages import encoded_inputs, last_sentence, search
from nlgraft.stages.seq2seq_graph import TranslateSettings
from nlgraft.text.corpora import Corpus, first_words
from nlgraft.text.files import refuse_special
from nlgraft.text.word_tokenizers import TOKENIZER_FILE, encode_words
from nlgraft.training.masked_lm_training import LabelledData, class_probabilities, read_classifier
from nlgraft.training.masked_text import MaskingIds
from nlgraft.training.models import read_model
from nlgraft.vocab.tokenizers.loading import load_vocabulary

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
        return [labels[index] for index in probabilities_NC.argmax(1)] if lines else []

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
            use = {"translation": "`nlgraft translate`", "classification": "`nlgraft classify`"}
            raise DataError(
                f"{self._directory}: a {self.task} model; use {use.get(self.task, 'transformers')}"
            )

    def _check_columns(self, columns: Sequence[Sequence[str]]) -> None:
        if len(columns) != len(self.columns) or len({len(column) for column in columns}) != 1:
            sizes = ", ".join(str(len(column)) for column in columns)
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
