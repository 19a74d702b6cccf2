"""Read the vocabulary of any tokenizer, by its files; write it as a directory that ``transformers`` loads.

A vocabulary file without special tokens around a sentence follows the convention of the model that it is for:
where the old tokenizer put ``[CLS]``, the new one puts the token that took over its role.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.text.files import read_json, refuse_special, write_json
from nlgraft.vocab.tokenizers.encoding import sentencepiece_files
from nlgraft.vocab.tokenizers.segmenters import GreedySegmenter
from nlgraft.vocab.tokenizers.spm import read_marian, read_sentencepiece, sentencepiece_json
from nlgraft.vocab.tokenizers.tokenizer_json import added_token, read_tokenizer_json
from nlgraft.vocab.tokenizers.vocabulary import (
    SUBWORD_NMT,
    Kind,
    Vocabulary,
    make_vocabulary,
    normal_ids,
    role_of,
)


def load_vocabulary(path: str | Path) -> Vocabulary:
    """Read a vocabulary; its kind is recognised from the file itself.

    Args:
        path: A SentencePiece model, a ``tokenizer.json``, a WordPiece ``vocab.txt``, a subword-nmt or fairseq
            vocabulary (``token frequency`` lines), or a directory that holds one of ``tokenizer.json``,
            ``*.model``, ``vocab.txt``, ``vocab.json`` with ``merges.txt``, or Marian's ``vocab.json`` with
            ``source.spm``. ``DIR/target.spm`` segments words as Marian's target side does.

    Raises:
        DataError: The path is missing or holds no tokenizer.
    """
    path = Path(path)
    if path.is_dir():
        return _load_directory(path)
    if not path.is_file():
        raise DataError(
            f"{path}: no such file; give a SentencePiece model, a tokenizer.json or a vocabulary file"
        )
    if path.suffix == ".json":
        return read_tokenizer_json(read_json(path), name=str(path))
    if path.suffix == ".spm" and (path.parent / "vocab.json").is_file():
        return read_marian(path.parent, path.name)
    if path.suffix in (".model", ".spm"):
        return read_sentencepiece(path)
    lines = read_tokens(path)
    if is_wordpiece(lines):
        return read_tokenizer_json(wordpiece_json(lines, path.parent), name=str(path))
    return read_subword_nmt(path)


def _load_directory(path: Path) -> Vocabulary:
    if (path / "tokenizer.json").is_file():
        data = read_json(path / "tokenizer.json")
        return read_tokenizer_json(data, specials=read_specials(path), name=str(path))
    if (path / "vocab.json").is_file() and (path / "source.spm").is_file():
        return read_marian(path)
    models = sentencepiece_files(path)
    # With a configuration beside it, transformers may number the pieces differently (XLM-R, mBART, T5).
    if models and (path / "tokenizer_config.json").is_file():
        tokenizer = read_by_transformers(path)
        if not tokenizer.is_fast:
            raise DataError(f"{path}: a tokenizer that transformers does not read as a tokenizer.json")
        data = json.loads(tokenizer.backend_tokenizer.to_str())
        return read_tokenizer_json(data, specials=tokenizer.special_tokens_map, name=str(path))
    if models:
        return read_sentencepiece(models[0])
    if (path / "vocab.txt").is_file():
        lines = read_tokens(path / "vocab.txt")
        specials = read_specials(path)
        return read_tokenizer_json(wordpiece_json(lines, path), specials=specials, name=str(path))
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return read_tokenizer_json(byte_level_json(path), specials=read_specials(path), name=str(path))
    raise DataError(
        f"{path}: no tokenizer found; expected tokenizer.json, *.model, vocab.txt, "
        "vocab.json with merges.txt, or vocab.json with source.spm"
    )


def read_by_transformers(name: str | Path, revision: str | None = None) -> Any:
    """Read a tokenizer of a directory or a hub name as ``transformers`` does.

    Raises:
        DataError: It cannot.
    """
    import transformers  # takes seconds

    try:
        return transformers.AutoTokenizer.from_pretrained(name, revision=revision or "main")
    except (ImportError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{name}: transformers cannot read this tokenizer ({error})") from error


def read_subword_nmt(path: str | Path) -> Vocabulary:
    """Read a subword-nmt or fairseq vocabulary, whose tokens are segmented longest match first.

    Args:
        path: ``token frequency`` (or only ``token``) lines. The first line has id 0, unless the file lacks
            the four fairseq specials, which then come first (``<s> <pad> </s> <unk>``) as fairseq numbers
            them.

    Raises:
        DataError: The file is empty, or text, or repeats a token.
    """
    lines = read_tokens(Path(path))
    surfaces = [line.split(" ", 1)[0] for line in lines if line.strip()]
    if not surfaces:
        raise DataError(f"{path}: the vocabulary has no tokens")
    first: dict[str, int] = {}
    for number, surface in enumerate(surfaces, start=1):
        if first.setdefault(surface, number) != number:
            raise DataError(
                f"{path}: '{surface}' occurs twice (entries {first[surface]} and {number}), so it is no "
                "vocabulary; if it is text, train a tokenizer on it first"
            )
    if not any(role_of(surface) for surface in surfaces):
        # fairseq's dict.txt leaves its four special tokens out.
        surfaces = ["<s>", "<pad>", "</s>", "<unk>", *surfaces]
    kinds = [Kind.SPECIAL if role_of(surface) else Kind.NORMAL for surface in surfaces]
    segmenter = GreedySegmenter(normal_ids(surfaces, kinds), SUBWORD_NMT)
    return make_vocabulary(surfaces, kinds, SUBWORD_NMT, segmenter, name=str(path))


# Formats older than ``tokenizer.json``, converted to it: WordPiece, byte-level BPE, subword-nmt.


SPECIAL_FILES = ("special_tokens_map.json", "tokenizer_config.json")
"""Files in which Hugging Face tokenizers name their special tokens."""


def read_lines(path: Path) -> list[str]:
    """Read the lines of a vocabulary file.

    Raises:
        DataError: It is not text in UTF-8.
    """
    try:
        # not splitlines, which also splits at U+2028 and the like: those are tokens of some vocabularies
        lines = path.read_bytes().decode().replace("\r\n", "\n").split("\n")
        return lines if lines[-1] else lines[:-1]
    except UnicodeDecodeError:
        raise DataError(
            f"{path}: neither a SentencePiece model (*.model, *.spm), a tokenizer.json "
            "nor a vocabulary in UTF-8"
        ) from None


def read_tokens(path: Path) -> list[str]:
    """Read a vocabulary file: a token per line, with or without its frequency behind a space.

    Raises:
        DataError: It is text, or a list of SentencePiece pieces, instead of a vocabulary.
    """
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if re.fullmatch(r".+\t-?[\d.]+(e-?\d+)?", line):
            raise DataError(
                f"{path}, line {number}: a piece and its score, as SentencePiece lists them; give the model "
                f"itself, {path.with_suffix('.model').name}"
            )
        token, *rest = line.rstrip(" ").split(" ")
        is_count = not rest or (rest[0].isdigit() and rest[1:] in ([], ["#fairseq:overwrite"]))
        if token and not is_count:
            raise DataError(
                f"{path}, line {number}: {len(rest) + 1} words where a vocabulary has one token. This "
                'looks like text; train a tokenizer on it first, e.g. python -c "import sentencepiece; '
                f"sentencepiece.SentencePieceTrainer.train(input='{path}', model_prefix='new', "
                'vocab_size=8000)", and give new.model'
            )
    return lines


def read_specials(directory: Path) -> dict[str, Any]:
    """Read the special tokens that a Hugging Face tokenizer names; empty without such a file."""
    specials = {}
    for name in SPECIAL_FILES:
        if (directory / name).is_file():
            specials |= read_json(directory / name)
    return specials


def wordpiece_json(lines: list[str], directory: Path) -> dict[str, Any]:
    """Convert a WordPiece vocabulary, one token per line, to a ``tokenizer.json``.

    ``directory`` may hold a ``tokenizer_config.json`` that says whether text is lower-cased; without one, a
    vocabulary without capitals is lower-cased.
    """
    specials = {i: line for i, line in enumerate(lines) if re.fullmatch(r"\[(?!unused)[A-Z]+\]", line)}
    has_capitals = any(line != line.lower() for i, line in enumerate(lines) if i not in specials)
    is_lower = read_specials(directory).get("do_lower_case", not has_capitals)
    return {
        "version": "1.0",
        "added_tokens": [added_token(i, line) for i, line in specials.items()],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": bool(is_lower),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "vocab": {line: i for i, line in enumerate(lines)},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }


def byte_level_json(directory: Path) -> dict[str, Any]:
    """Convert ``vocab.json`` and ``merges.txt`` in a directory to a ``tokenizer.json``."""
    lines = [
        line for line in read_lines(directory / "merges.txt") if line and not line.startswith("#version")
    ]
    vocab = read_json(directory / "vocab.json")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    # vocab.json does not mark special tokens; their usual names tell.
    specials = [token for token in vocab if role_of(token)]
    return {
        "version": "1.0",
        "added_tokens": [added_token(vocab[token], token) for token in specials],
        "model": {"type": "BPE", "vocab": vocab, "merges": [line.split(" ", 1) for line in lines]},
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
    }


def is_wordpiece(lines: list[str]) -> bool:
    """Return True if the lines of a vocabulary file are WordPiece tokens, False for subword-nmt."""
    return any(line.startswith("##") for line in lines) or "[CLS]" in lines


def whole_token_json(vocabulary: Vocabulary) -> dict[str, Any]:
    """Convert a subword-nmt vocabulary to a ``tokenizer.json`` for text that subword-nmt has segmented.

    Tokens between spaces are looked up, as fairseq does.
    """
    tokens = [(i, tok) for i, tok in enumerate(vocabulary.tokens) if tok is not None]
    specials = [i for i, tok in tokens if tok.kind is Kind.SPECIAL]
    unknown = vocabulary.roles.get("unk")
    return {
        "version": "1.0",
        "added_tokens": [added_token(i, vocabulary.surfaces[i]) for i in specials],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {
            "type": "WordLevel",
            "vocab": vocabulary.ids_by_surface,
            "unk_token": "<unk>" if unknown is None else vocabulary.surfaces[unknown],
        },
    }


# Tokenizers as directories that transformers loads: find them, write them from any form, complete them.


CHAT_TEMPLATE = "chat_template.jinja"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    CHAT_TEMPLATE,
    "vocab.txt",
    "vocab.json",
    "target_vocab.json",
    "merges.txt",
    "*.model",
    "*.spm",
)
"""Files of a tokenizer in a checkpoint's directory."""
DECODER_DIRECTORY = "decoder_tokenizer"
"""Place of the decoder's tokenizer in a checkpoint whose two sides have different vocabularies."""
ADDING_PROCESSORS = ("TemplateProcessing", "BertProcessing", "RobertaProcessing")
"""Steps of a ``tokenizer.json`` that put special tokens around a sentence."""
VERY_LONG = 10**9
"""Values of ``model_max_length`` from here on mean that none is set."""


def find_tokenizer(name: str | Path, revision: str | None = None) -> Path:
    """Find a tokenizer on this machine or on the Hugging Face hub.

    Args:
        name: A file, a directory, or a hub name such as ``org/model``.
        revision: Commit, tag or branch of a hub name; None for main.

    Returns:
        The file or directory; for a hub name a local copy of its tokenizer files.

    Raises:
        DataError: There is nothing of that name.
    """
    return find_files(name, TOKENIZER_FILES, revision)


def find_files(
    name: str | Path,
    patterns: Sequence[str],
    revision: str | None = None,
) -> Path:
    """Find a file or directory on this machine, or the files of some names on the Hugging Face hub.

    Raises:
        DataError: There is nothing of that name.
    """
    path = Path(name)
    if path.exists():
        for each in (path, *path.glob("*")):
            refuse_special(each)
        return path
    missing = f"{name}: no such file or directory"
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", str(name)) or path.suffix in (".json", ".model", ".txt"):
        raise DataError(f"{missing}, and not the name of a repository on the Hugging Face hub")
    try:
        import huggingface_hub

        return Path(
            huggingface_hub.snapshot_download(str(name), revision=revision, allow_patterns=[*patterns])
        )
    except Exception as error:  # the hub raises any error of its network
        raise DataError(
            f"{missing}, and not available from the Hugging Face hub ({type(error).__name__}): give a path "
            "or a name that the hub or its cache on this machine has"
        ) from error


def tokenizer_files(directory: Path) -> list[Path]:
    """List a tokenizer's files in the directory of a checkpoint; none when it has no tokenizer."""
    return sorted({path for pattern in TOKENIZER_FILES for path in directory.glob(pattern)})


def copy_tokenizer(source: Path, directory: Path) -> None:
    """Copy a tokenizer's files unchanged; the directory is created if missing."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in tokenizer_files(source):
        shutil.copyfile(path, directory / path.name)


def copy_settings(
    source: Path,
    directory: Path,
    new_ids: Mapping[int, int] | None,
) -> None:
    """Copy the files that name special tokens; ``new_ids`` are their new ids, where these change."""
    if (source / CHAT_TEMPLATE).is_file():
        shutil.copyfile(source / CHAT_TEMPLATE, directory / CHAT_TEMPLATE)
    for name in SPECIAL_FILES:
        if not (source / name).is_file():
            continue
        settings = read_json(source / name)
        if new_ids is not None and (decoder := settings.get("added_tokens_decoder")):
            renumbered = {str(new_ids[int(i)]): token for i, token in decoder.items()}
            settings["added_tokens_decoder"] = renumbered
        write_json(directory / name, settings)


def save_tokenizer(path: Path, vocabulary: Vocabulary, directory: Path) -> None:
    """Write a tokenizer of any form so that ``transformers.AutoTokenizer`` loads it.

    Args:
        path: File or directory that the vocabulary was loaded from.
        vocabulary: The vocabulary.
        directory: Destination, created if missing.

    Raises:
        DataError: ``transformers`` has no equivalent of this form.
    """
    directory.mkdir(parents=True, exist_ok=True)
    names = ("tokenizer_config.json", "tokenizer.json")
    if any((path / name).is_file() for name in names):
        copy_tokenizer(path, directory)
    elif path.suffix == ".spm" and (path.parent / "vocab.json").is_file():
        copy_tokenizer(path.parent, directory)
    else:
        write_json(directory / "tokenizer.json", _tokenizer_json(path, vocabulary))
    config_file = directory / "tokenizer_config.json"
    config = read_json(config_file) if config_file.is_file() else {}
    if "tokenizer_class" not in config:
        roles = {f"{role}_token": vocabulary.surfaces[i] for role, i in vocabulary.roles.items()}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **roles, **config}
        write_json(config_file, config)


def _tokenizer_json(path: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    models = sentencepiece_files(path)
    if models or path.suffix in (".model", ".spm"):
        return sentencepiece_json(models[0] if models else path)
    if path.is_dir() and not (path / "vocab.txt").is_file():
        return byte_level_json(path)
    file = path / "vocab.txt" if path.is_dir() else path
    if file.suffix == ".json":
        return read_json(file)
    lines = read_lines(file)
    if is_wordpiece(lines):
        return wordpiece_json(lines, file.parent)
    return whole_token_json(vocabulary)


def finish_tokenizer(
    directory: Path,
    old: Path,
    successor: Mapping[int, int],
) -> list[str]:
    """Make a tokenizer fit a model like its old one: longest sentence, names of inputs, special tokens.

    If the new tokenizer has its own rule for special tokens around a sentence, that rule stays.

    Args:
        directory: The new tokenizer, as ``save_tokenizer`` wrote it; changed in place.
        old: The old tokenizer.
        successor: Old id -> new id of the tokens that took over.

    Returns:
        Remarks for the user.
    """
    before = _load(old)
    if before is None:
        return [
            f"transformers cannot load the old tokenizer in {old}, so its limits and special tokens are not "
            "taken over"
        ]
    config_file = directory / "tokenizer_config.json"
    config = read_json(config_file) | {"model_input_names": list(before.model_input_names)}
    if before.model_max_length < VERY_LONG:
        config["model_max_length"] = before.model_max_length
    write_json(config_file, config)
    vocabulary = load_vocabulary(directory)
    notes = _take_chat_template(directory, before, vocabulary) if "chat_template" not in config else []
    if not (directory / "tokenizer.json").is_file():
        return notes
    return notes + _put_around(directory / "tokenizer.json", vocabulary, before, successor)


def writes_token(template: str, token: str) -> bool:
    """Return True if a chat template writes a token; white space, which may be a token too, is text."""
    return token in template and not token.isspace()


def _take_chat_template(
    directory: Path,
    before: Any,
    vocabulary: Vocabulary,
) -> list[str]:
    """Take the old chat template over, unless there is a new one or tokens that it writes are lost."""
    file, template = directory / CHAT_TEMPLATE, before.chat_template
    if file.is_file() or not isinstance(template, str):
        return []
    written = {token for token in before.get_added_vocab() if writes_token(template, token)}
    missing = sorted(written - vocabulary.ids_by_surface.keys())
    if missing:
        return [f"the chat template is not taken over, as the new vocabulary lacks {', '.join(missing)}"]
    file.write_text(template, "utf-8")
    return []


def _put_around(
    file: Path,
    vocabulary: Vocabulary,
    before: Any,
    successor: Mapping[int, int],
) -> list[str]:
    """Let a ``tokenizer.json`` put special tokens around a sentence as the old tokenizer did.

    A rule of its own stays, unless it lacks a token that has no role (mBART's languages).
    """
    document = read_json(file)
    if document["model"].get("type") == "WordLevel":
        return []
    template, num_missing = _template(before, successor, vocabulary.surfaces)
    steps = [step for step in processing_steps(document.get("post_processor")) if "processors" not in step]
    adding_steps = [step for step in steps if step.get("type") in ADDING_PROCESSORS]
    present = {text for step in adding_steps for text in step.get("special_tokens") or {}}
    in_roles = {vocabulary.surfaces[i] for i in vocabulary.roles.values()}
    if adding_steps and not template["special_tokens"].keys() - in_roles - present:
        return []
    if template["special_tokens"]:
        kept = [step for step in steps if step not in adding_steps]
        both = {"type": "Sequence", "processors": [*kept, template]}
        document["post_processor"] = both if kept else template
        write_json(file, document)
    return (
        [f"special tokens around a sentence that the new tokenizer lacks: {num_missing}"]
        if num_missing
        else []
    )


def processing_steps(part: Any) -> Iterable[Mapping[str, Any]]:
    """Yield the steps of a post-processor, sequences and their parts."""
    if isinstance(part, Mapping):
        yield part
        for inner in part.get("processors") or []:
            yield from processing_steps(inner)


def _load(directory: Path) -> Any:
    """Load a tokenizer; None when transformers cannot."""
    import transformers

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about optional packages
            return transformers.AutoTokenizer.from_pretrained(directory)
    except Exception:  # `tokenizers` raises no other
        return None


def _template(
    tokenizer: Any, successor: Mapping[int, int], surfaces: Sequence[str]
) -> tuple[dict[str, Any], int]:
    """Write what a tokenizer puts around one sentence and around two as a template of new tokens.

    Returns the template, and the number of tokens without a successor.
    """
    used: dict[str, Any] = {}
    missing: set[int] = set()
    made: dict[str, list[dict[str, Any]]] = {"single": [], "pair": []}
    for name, texts in (("single", ("a",)), ("pair", ("a", "a"))):
        encoded = tokenizer(*texts, return_special_tokens_mask=True, return_token_type_ids=True)
        ids, letters = encoded["input_ids"], iter("AB")
        types = encoded.get("token_type_ids", [0] * len(ids))
        tokens = zip(ids, encoded["special_tokens_mask"], types, strict=True)
        for is_special, run in itertools.groupby(tokens, key=lambda token: bool(token[1])):
            if not is_special:  # a run of text is one sequence
                _, _, type_id = next(run)
                made[name].append({"Sequence": {"id": next(letters), "type_id": type_id}})
                continue
            for identity, _, type_id in run:
                if identity not in successor:
                    missing.add(identity)
                    continue
                text = surfaces[successor[identity]]
                used[text] = {"id": text, "ids": [successor[identity]], "tokens": [text]}
                made[name].append({"SpecialToken": {"id": text, "type_id": type_id}})
    # A tokenizer that does not separate the two sentences shows them as one run of text.
    if sum("Sequence" in entry for entry in made["pair"]) != 2:
        made["pair"] = [*made["single"], {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", **made, "special_tokens": used}, len(missing)
