"""Writing of a trial's model into a directory."""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.export.description import (
    BODY,
    CORPUS_READ,
    MODEL,
    NATIVE,
    Description,
    ExportSource,
    export_source,
)
from nlgraft.nn.conversion.checkpoint import to_hugging_face
from nlgraft.nn.conversion.ctranslate2_model import missing_package, unsupported, write_ctranslate2
from nlgraft.nn.masked_lm_models import Classifier, TransformersMaskedLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.transformers_lms import quiet_transformers
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.stages.seq2seq_graph import TranslateSettings
from nlgraft.text.corpora import read_corpus
from nlgraft.text.files import read_json, write_json
from nlgraft.text.word_tokenizers import TOKENIZER_FILE, encode_words
from nlgraft.tracking.entries import PREDICTOR
from nlgraft.training.masked_lm_training import read_classifier, write_classifier, write_masked_lm
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


def write_directory(graph: StageGraph, store: ArtifactStore, out: Path) -> tuple[Description, Forms]:
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


def _translation(source: ExportSource, fetched: Mapping[str, Path], out: Path) -> Forms:
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
        _write_tokenizer(folder, out, Side(stream=TEXT, prefix=(ids.begin,), suffix=(ids.end,)), None)
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
    _compare(directory, lines, source, open_tokenizer(folders[source.stream]).encode([*lines]))
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
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: k for k, name in enumerate(labels)}}
    config.update({**names, "classifier_dropout": model.config.dropout})
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        classifier = AutoModelForSequenceClassification.from_config(config)
        classifier.base_model.load_state_dict(pretrained.base_model.state_dict(), strict=False)
        for name, layer in zip(_HEADS[kind], (model.head[0], model.head[-1]), strict=True):
            classifier.get_submodule(name).load_state_dict(layer.state_dict())
        classifier.save_pretrained(out)
    ids = MaskingIds.of(load_vocabulary(folder))
    side = Side(stream=TEXT, prefix=(ids.begin,), suffix=(ids.end,))
    _write_tokenizer(folder, out, side, limit)
    encoded = encode_words(folder / TOKENIZER_FILE, lines).ids
    _compare(out, lines, side, [encoded[row] for row in range(len(lines))])
    return ["AutoModelForSequenceClassification loads this directory"]


def _write_tokenizer(folder: Path, directory: Path, side: Side, max_tokens: int | None) -> None:
    """Write a tokenizer that puts the ids of a side around each sentence."""
    vocabulary = load_vocabulary(folder)
    save_tokenizer(folder, vocabulary, directory)
    path = directory / TOKENIZER_FILE
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    before, after = ([str(vocabulary.surfaces[i]) for i in ids] for ids in (side.prefix, side.suffix))
    added = {str(vocabulary.surfaces[i]): i for i in (*side.prefix, *side.suffix)}
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
