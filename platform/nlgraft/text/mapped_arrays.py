"""Arrays of safetensors files, mapped into memory: processes of a machine share the pages that they read."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import StoreError

_DTYPES = {
    "I64": "<i8",
    "I32": "<i4",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<i2",  # its bits, since numpy has no such numbers
}


def read_mapped(
    path: Path,
    content: str,
    *names: str,
) -> dict[str, NDArray[Any]]:
    """Map the arrays of a file, which cannot be written; only what is looked at is read.

    Args:
        path: The file.
        content: What it should hold, for errors.
        names: Arrays that it must have.

    Raises:
        StoreError: The file is missing or holds something else.
    """
    try:
        with path.open("rb") as file:
            # The header's length, a JSON header, raw bytes. The library's loaders would copy these.
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        whole = np.asarray(np.memmap(path, mode="r"))[8 + size :]
        header.pop("__metadata__", None)
        arrays = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            numbers = whole[start:stop].view(_DTYPES[entry["dtype"]])
            arrays[name] = numbers.reshape(entry["shape"])
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise StoreError(f"{path} holds no {content} ({error}): run its stage again") from error
    missing = [name for name in names if name not in arrays]
    if missing:
        raise StoreError(f"{path} holds no {content} ({', '.join(missing)} is missing): run its stage again")
    return arrays


def header_of(arrays: Mapping[str, tuple[str, Sequence[int]]]) -> tuple[bytes, dict[str, int]]:
    """Make the beginning of a file: type and shape of each array, in the order in which they follow.

    Returns:
        The bytes, and the place of each array in the file.
    """
    entries, places, end = {}, {}, 0
    for name, (dtype, shape) in arrays.items():
        places[name] = end
        item_bytes = np.dtype(_DTYPES[dtype]).itemsize
        end += int(np.prod(shape, dtype=np.int64)) * item_bytes
        entries[name] = {"dtype": dtype, "shape": [*shape], "data_offsets": [places[name], end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    # Aligned to 8 bytes, as by the library's own writer.
    text += b" " * (-len(text) % 8)
    beginning = struct.pack("<Q", len(text)) + text
    return beginning, {name: len(beginning) + place for name, place in places.items()}
