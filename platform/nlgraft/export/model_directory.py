"""Writing of a trial's model into a directory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.export.description import BODY, CORPUS_READ, MODEL, NATIVE, ExportSource, export_source
from nlgraft.export.transformers_form import write_classifier, write_seq2seq, write_tokenizer
from nlgraft.nn.conversion.ctranslate2_model import missing_package, unsupported, write_ctranslate2
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages.run.text_stages import open_tokenizer, text_of
from nlgraft.stages.seq2seq_graph import TranslateSettings
from nlgraft.text.corpora import read_corpus
from nlgraft.tracking.entries import PREDICTOR
from nlgraft.training.classification_training import read_classifier
from nlgraft.training.classification_training import write_classifier as write_own_classifier
from nlgraft.training.masked_lm_training import write_masked_lm
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.training.models import read_model, write_model
from nlgraft.training.train_config import Side
from nlgraft.vocab.tokenizers.directories import copy_tokenizer, save_tokenizer
from nlgraft.vocab.tokenizers.loading import load_vocabulary

CTRANSLATE2 = "ctranslate2"
_MIN_POSITIONS = 512
"""Positions of sinusoids in a conversion for CTranslate2, which has a table of them."""
_NUM_COMPARED = 1000
"""Lines that both forms of a tokenizer have to segment alike."""
_NO_CTRANSLATE2 = "not there: nlgraft converts models for translation alone"
Forms = dict[str, str]
"""Why each form of the model is there or missing, in one sentence each."""


def write_directory(graph: StageGraph, store: ArtifactStore, out: Path) -> Forms:
    """Write the model of a finished trial.

    Args:
        graph: The trial.
        store: Its store.
        out: An empty directory.

    Returns:
        By ``transformers`` and ``ctranslate2``, what is there, or why nothing is.

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
        (out / PREDICTOR).write_text(json.dumps(predictor) + "\n", "utf-8")
    return forms


def _translation(source: ExportSource, fetched: Mapping[str, Path], out: Path) -> Forms:
    description = source.description
    settings = TranslateSettings.model_validate_json(json.dumps(description.settings))
    model = read_model(fetched[MODEL])
    (out / NATIVE / MODEL).mkdir(parents=True)
    write_model(model, out / NATIVE / MODEL)
    folders = {stream: out / NATIVE / folder for stream, folder in description.tokenizers.items()}
    role = settings.streams[settings.view.sources[0].stream]
    lines = text_of(read_corpus(fetched[CORPUS_READ] / settings.split), [role])[:_NUM_COMPARED]

    def write(directory: Path) -> list[str]:
        notes = write_seq2seq(model, settings, folders, lines, directory)
        return ["AutoModelForSeq2SeqLM loads this directory", *notes]

    forms = {"transformers": _try_transformers(write, out)}
    if problems := missing_package() + unsupported(model.config):
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


def _classification(source: ExportSource, fetched: Mapping[str, Path], out: Path) -> Forms:
    model, labels = read_classifier(fetched[MODEL], fetched[BODY])
    native = out / NATIVE / MODEL
    native.mkdir(parents=True)
    write_own_classifier(model, labels, native)
    if not model.config.is_body_trained:
        (out / NATIVE / BODY).mkdir()
        write_masked_lm(model.body, out / NATIVE / BODY)
    [folder] = source.description.tokenizers.values()
    limit = source.description.max_tokens
    assert limit is not None, "every classifier has one"
    lines = text_of(read_corpus(fetched[CORPUS_READ] / "dev"), [TEXT])[:_NUM_COMPARED]

    def write(directory: Path) -> list[str]:
        write_classifier(model, labels, out / NATIVE / folder, limit, lines, directory)
        return ["AutoModelForSequenceClassification loads this directory"]

    return {"transformers": _try_transformers(write, out), "ctranslate2": _NO_CTRANSLATE2}


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


def _checkpoint(source: ExportSource, fetched: Mapping[str, Path], out: Path) -> Forms:
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
    [folder, *_] = [*(fetched[folder] for folder in source.description.tokenizers.values()), checkpoint]
    vocabulary = load_vocabulary(folder)
    try:
        ids = MaskingIds.of(vocabulary)
    except DataError:
        # A causal model's, which puts nothing around a line.
        save_tokenizer(folder, vocabulary, out)
    else:
        write_tokenizer(folder, out, Side(stream=TEXT, prefix=(ids.begin,), suffix=(ids.end,)), None)
    kind = json.loads((out / "config.json").read_text("utf-8")).get("architectures", ["a model"])[0]
    return {
        "transformers": f"{kind} loads this directory",
        "ctranslate2": _NO_CTRANSLATE2,
    }
