"""A trial's model in the form that transformers loads, where it knows the architecture."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.nn.classifier import Classifier
from nlgraft.nn.conversion.checkpoint import to_hugging_face
from nlgraft.nn.masked_lm_models import TransformersMaskedLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.transformers_lms import quiet_transformers
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.stages.seq2seq_graph import TranslateSettings
from nlgraft.text.word_tokenizers import TOKENIZER_FILE, encode_words
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.training.train_config import Side
from nlgraft.vocab.tokenizers.directories import DECODER_DIRECTORY, save_tokenizer
from nlgraft.vocab.tokenizers.loading import load_vocabulary

_HEADS: Mapping[str, tuple[str, str]] = {
    "bert": ("bert.pooler.dense", "classifier"),
    "roberta": ("classifier.dense", "classifier.out_proj"),
    "xlm-roberta": ("classifier.dense", "classifier.out_proj"),
}
"""By model type, the layers of transformers' classifier that are our hidden layer and our output."""


def write_seq2seq(
    model: Seq2Seq,
    settings: TranslateSettings,
    folders: Mapping[str, Path],
    lines: Sequence[str],
    directory: Path,
) -> list[str]:
    """Write a Marian or mBART with its tokenizers.

    Args:
        model: The model.
        settings: Settings of the search.
        folders: Directory of each stream's tokenizer.
        lines: Sources, which both forms of the tokenizer have to segment alike.
        directory: Destination.

    Returns:
        Notes on how transformers differs.

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
    write_tokenizer(folders[source.stream], directory, source, settings.max_tokens)
    _compare(directory, lines, source, open_tokenizer(folders[source.stream]).encode([*lines]))
    if target != folders[source.stream]:
        write_tokenizer(target, directory / DECODER_DIRECTORY, view.target, None)
        notes.append(f"the target has a tokenizer of its own, in {DECODER_DIRECTORY}/")
    return notes


def write_classifier(
    model: Classifier,
    labels: Sequence[str],
    folder: Path,
    limit: int,
    lines: Sequence[str],
    out: Path,
) -> None:
    """Write a classifier of sequences with its tokenizer.

    Args:
        model: The classifier.
        labels: Its labels.
        folder: Directory of its tokenizer.
        limit: Longest line, in tokens without begin and end.
        lines: Text, which both forms of the tokenizer have to segment alike.
        out: Destination.

    Raises:
        ContractError: transformers has no such head on this architecture.
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
    write_tokenizer(folder, out, side, limit)
    encoded = encode_words(folder / TOKENIZER_FILE, lines).ids
    _compare(out, lines, side, [encoded[row] for row in range(len(lines))])


def write_tokenizer(folder: Path, directory: Path, side: Side, max_tokens: int | None) -> None:
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
        config = json.loads(path.read_text("utf-8"))
        config["model_max_length"] = max_tokens + len(side.prefix) + len(side.suffix)
        path.write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n", "utf-8")


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
