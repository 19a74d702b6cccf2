"""Checks of released checkpoints by their files alone, without torch and transformers."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from nlgraft.basics.errors import DataError
from nlgraft.nn.architectures import REFUSED
from nlgraft.text.files import expand, file_digest, read_index, read_json

Reader = Literal["mbart", "multilingual", "marian", "bert", "masked_lm", "causal_lm", "encoder"]
"""What a checkpoint becomes: our encoder-decoder (an mBART, one whose lines name their language, or an
OPUS-MT), the BERT encoder of our model, a masked or a causal language model, or a context, which any model of
transformers can be."""
LanguagePlace = Literal["first", "last"]
TYPES: dict[Reader, tuple[str, ...]] = {
    "mbart": ("mbart",),
    "multilingual": ("mbart", "m2m_100"),
    "marian": ("marian",),
    "bert": ("bert",),
    "masked_lm": (
        "bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert",
    ),
    "causal_lm": (),
    "encoder": (),
}  # fmt: skip
"""Model types of config.json that a reader takes; none: any, of causal models all but the following."""
ENCODERS = (
    *TYPES["masked_lm"], "albert", "big_bird", "convbert", "data2vec-text", "deberta", "deberta-v2", "ernie",
    "eurobert", "longformer", "megatron-bert", "mpnet", "nomic_bert", "rembert", "roberta-prelayernorm",
    "roformer", "xlm-roberta-xl", "xmod",
)  # fmt: skip
"""Model types whose positions read later ones: transformers builds some as causal models without a word."""
CAUSAL_TYPES = "Llama, Qwen, Gemma, Mistral, Phi or GPT-2 type"
TOKENIZERS: dict[Reader, tuple[str, ...]] = {
    "mbart": ("sentencepiece.bpe.model",),
    "multilingual": ("sentencepiece.bpe.model",),
    "marian": ("source.spm",),
    "bert": ("tokenizer.json", "vocab.txt"),
    "masked_lm": ("tokenizer.json", "vocab.txt", "vocab.json", "*.model"),
    "causal_lm": ("tokenizer.json", "vocab.json", "*.model"),
    "encoder": ("tokenizer.json", "vocab.txt", "vocab.json", "*.model"),
}
"""Files one of which holds the tokenizer."""
WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files of weights, or the list of several, as transformers looks for them."""
HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
_PICKLE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # first bytes of torch's format before 1.6
_POINTER = b"version https://git-lfs"


def checkpoint_problems(checkpoint: str, reader: Reader) -> list[str]:
    """Find everything that prevents a checkpoint from being read; names on the hub are not checked.

    Args:
        checkpoint: A directory, or a name on the Hugging Face hub.
        reader: What it becomes.

    Returns:
        A line for each problem, each with the path and what to do.
    """
    directory = expand(checkpoint)
    if directory.is_dir():
        return [
            *_config_problems(directory, reader),
            *_weight_problems(directory),
            *_tokenizer_problems(directory, reader),
        ]
    # The stages of encoder-decoders open SentencePiece files themselves, so they need a directory.
    needs_directory = reader in ("mbart", "multilingual", "marian")
    if not needs_directory and HUB_NAME.fullmatch(checkpoint):
        return []
    also = "" if needs_directory else " and no name on the Hugging Face hub (organisation/model)"
    return [f"checkpoint {checkpoint}: no such directory{also}; download the checkpoint, or correct the path"]


def _config_problems(directory: Path, reader: Reader) -> Iterator[str]:
    path = directory / "config.json"
    settings = _read_json(path)
    if not isinstance(settings, dict):
        yield f"{path}: missing or not a JSON object; every checkpoint has one beside its weights"
        return
    model_type, taken = settings.get("model_type"), TYPES[reader]
    if not isinstance(model_type, str) or (taken and model_type not in taken):
        allowed = " or ".join(taken) or "any of transformers"
        why = f" ({model_type} has {REFUSED[model_type]})" if model_type in REFUSED else ""
        if reader == "marian" and model_type in TYPES["multilingual"]:
            why = f", or {model_type} with upstream.languages"
        yield (
            f"{path}: model_type is {model_type!r}, allowed is {allowed}{why}; give a checkpoint of that type"
        )
    elif reader == "causal_lm" and (kind := _not_causal(settings)):
        yield (
            f"{path}: model_type is {model_type!r}, {kind}, allowed is a decoder alone; give a checkpoint of "
            f"{CAUSAL_TYPES}"
        )
    elif reader == "mbart" and _is_mbart_50(directory, settings):
        yield (
            f"{directory}: an mBART-50, whose lines begin with their language, while texts have none here; "
            "give mbart-large-cc25, name the languages of one that translates in upstream.languages, or "
            "train with multi_source, which takes both"
        )


def _not_causal(settings: dict[str, Any]) -> str | None:
    """Name the kind of a model that is not causal; None for one that is."""
    if settings.get("is_encoder_decoder"):
        return "an encoder-decoder"
    return "an encoder" if settings["model_type"] in ENCODERS else None


def language_place(directory: Path) -> LanguagePlace:
    """Find where a multilingual encoder-decoder expects the language token of a line.

    mBART expects it at the end of sources and at the start of targets; mBART-50, M2M-100 and NLLB expect it
    at the start on both sides, in targets after an end-of-sentence token.
    """
    settings = _read_json(directory / "config.json")
    config = settings if isinstance(settings, dict) else {}
    if config.get("model_type") == "m2m_100" or _is_mbart_50(directory, config):
        return "first"
    return "last"


def _is_mbart_50(directory: Path, settings: dict[str, Any]) -> bool:
    tokenizer = _read_json(directory / "tokenizer_config.json")
    tokenizer_config = tokenizer if isinstance(tokenizer, dict) else {}
    name = str(tokenizer_config.get("tokenizer_class", ""))
    # 52 languages and a mask behind the pieces of cc25, which has 25
    return (
        name.startswith("MBart50")
        or tokenizer_config.get("language_codes") == "ML50"
        or settings.get("vocab_size") == 250_054
    )


def _weight_problems(directory: Path) -> Iterator[str]:
    path = next((directory / name for name in WEIGHTS if (directory / name).is_file()), None)
    if path is None:
        yield f"{directory}: no weights; a checkpoint has {' or '.join(WEIGHTS)}"
        return
    if path.suffix != ".json":
        yield from _file_problems(path)
        return
    try:
        names = read_index(path)["weight_map"].values()
    except DataError as error:
        yield str(error)
        return
    for name in sorted(set(names)):
        if (directory / name).is_file():
            yield from _file_problems(directory / name)
        else:
            yield f"{directory / name}: missing, though {path.name} names it; download it"


def _file_problems(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        head = file.read(len(_POINTER))
    if head.startswith(_POINTER):
        yield f"{path}: a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"
    elif path.suffix == ".safetensors":
        if not _is_safetensors(path):
            yield f"{path}: not a whole safetensors file with weights; download it again"
    elif not zipfile.is_zipfile(path) and not head.startswith(_PICKLE):
        yield f"{path}: not a whole file of torch's weights; download it again"


def _is_safetensors(path: Path) -> bool:
    """Return True for a whole file with a tensor; one that broke off is shorter than its header says."""
    from safetensors import SafetensorError, safe_open  # a native library, as below

    try:
        with safe_open(path, framework="numpy") as file:
            return bool(file.keys())
    except SafetensorError:
        return False


def _tokenizer_problems(directory: Path, reader: Reader) -> Iterator[str]:
    if reader == "marian":
        missing = [name for name in ("target.spm", "vocab.json") if not (directory / name).is_file()]
        if missing and (directory / "source.spm").is_file():
            yield f"{directory}: no {' and no '.join(missing)} beside source.spm; download it again"
    files = [path for pattern in TOKENIZERS[reader] for path in sorted(directory.glob(pattern))]
    if not files:
        yield f"{directory}: no tokenizer; there must be {' or '.join(TOKENIZERS[reader])}"
    elif files[0].suffix == ".json" and not isinstance(_read_json(files[0]), dict):
        yield f"{files[0]}: no JSON object; download the tokenizer again"
    elif files[0].suffix in (".model", ".spm") and not _is_sentencepiece(files[0]):
        yield f"{files[0]}: not a SentencePiece model; download the tokenizer again"


def _is_sentencepiece(path: Path) -> bool:
    import sentencepiece  # a native library: only where there is such a file

    try:
        return bool(sentencepiece.SentencePieceProcessor().LoadFromSerializedProto(path.read_bytes()))
    except RuntimeError:
        return False


def _read_json(path: Path) -> Any:
    try:
        return read_json(path)
    except DataError:
        return None


# The identity of a pretrained checkpoint. Imports no torch, since fingerprints need it.


def checkpoint_identity(checkpoint: str) -> dict[str, Any]:
    """Identify a checkpoint, for a stage's settings and for models that are saved without it.

    Returns:
        For a directory ``files``, the SHA-256 of every file, wherever the directory lies. For a hub name
        ``checkpoint``, the name: its content may change on the hub, whereas a directory pins it.

    Raises:
        DataError: A file of the directory cannot be read.
    """
    directory = expand(checkpoint)
    if not directory.is_dir():
        return {"checkpoint": checkpoint}
    digests = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        digests[path.relative_to(directory).as_posix()] = file_digest(str(path))
    return {"files": digests}
