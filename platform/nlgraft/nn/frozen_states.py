"""Hidden states of a frozen context, computed once for a corpus and read by every trial that needs them.

One safetensors file: ``states`` [tokens of all sentences, L, H] and ``offsets`` [sentences + 1]. It is memory
mapped, so trials on one machine share its pages.

Shape letters: B sentences, T tokens, H width of the encoder, L layers that the pooling selects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nlgraft.basics.errors import ContractError
from nlgraft.nn.batch import Tokens, truncate_middle
from nlgraft.nn.context_config import Precision
from nlgraft.nn.contextual import Context, ContextualEmbedding
from nlgraft.text.mapped_arrays import header_of, read_mapped

_DTYPES: dict[Precision, tuple[str, str]] = {
    "fp16": ("F16", "<f2"),
    "bf16": ("BF16", "<i2"),  # its bits, since numpy has no such numbers
    "fp32": ("F32", "<f4"),
}


def write_frozen_states(
    path: Path,
    reader: Context | ContextualEmbedding,
    sequences: Sequence[Sequence[int]],
    *,
    precision: Precision = "fp32",
    batch_tokens: int = 8192,
) -> None:
    """Run a frozen encoder over a corpus and store the layers that its pooling selects.

    Args:
        path: File to write.
        reader: The context of a fusion branch, or an embedding made of one.
        sequences: Token ids of every sentence, in the encoder's vocabulary.
        precision: fp32 reproduces the live encoder exactly, fp16 halves the file; bf16 does so too, and the
            encoder runs in bf16 where torch's autocast allows it, as in a training with this precision.
        batch_tokens: Padded tokens per forward pass.

    Raises:
        ContractError: The encoder is finetuned or keeps its dropout, so its states vary.
    """
    context = _context(reader)
    lengths_B = _lengths(context, sequences)
    offsets = np.concatenate([[0], np.cumsum(lengths_B)])
    states: np.memmap | None = None
    is_bf16 = precision == "bf16"
    for rows, _, layers_LBTH in _read(reader, sequences, lengths_B, batch_tokens, is_bf16=is_bf16):
        if states is None:
            states = _create(path, offsets, layers_LBTH.shape[0], layers_LBTH.shape[3], precision)
        kept_LBTH = layers_LBTH.to(torch.bfloat16).view(torch.int16) if is_bf16 else layers_LBTH
        layers_BTLH = kept_LBTH.permute(1, 2, 0, 3).cpu().numpy()
        for place, row in enumerate(rows):
            states[offsets[row] : offsets[row + 1]] = layers_BTLH[place, : lengths_B[row]]
    if states is None:
        states = _create(path, offsets, 1, context.output_dim, precision)
    states.flush()


def state_means(
    reader: Context | ContextualEmbedding,
    sequences: Sequence[Sequence[int]],
    *,
    batch_tokens: int = 8192,
) -> Tensor:
    """Average the layers that a frozen encoder's pooling selects over all tokens of a corpus, [L, H].

    Raises:
        ContractError: As ``write_frozen_states``, or the corpus has no token.
    """
    lengths_B = _lengths(_context(reader), sequences)
    total: Tensor | None = None
    for _, valid_BT, layers_LBTH in _read(reader, sequences, lengths_B, batch_tokens):
        # fp64, since a corpus has millions of tokens to add.
        sums_LH = layers_LBTH[:, valid_BT].double().sum(1)
        total = sums_LH if total is None else total + sums_LH
    if total is None:
        raise ContractError("states of a text without tokens have no mean")
    return (total / int(lengths_B.sum())).float().cpu()


class FrozenStates:
    """Memory-mapped states written by ``write_frozen_states``, by sentence.

    Raises:
        StoreError: The file is missing or holds something else.
    """

    def __init__(self, path: Path) -> None:
        arrays = read_mapped(path, "frozen states", "offsets", "states")
        self.offsets: npt.NDArray[np.int64] = arrays["offsets"]
        self.states = arrays["states"]
        self.is_bf16 = self.states.dtype == _DTYPES["bf16"][1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every sentence, [N]."""
        return np.diff(self.offsets)

    def tokens(self, rows: Sequence[int]) -> Tokens:
        """Make tokens with the layers [L, B, T, H] of some sentences; their ids are zero and not used."""
        lengths = [int(self.offsets[row + 1] - self.offsets[row]) for row in rows]
        _, num_layers, width = self.states.shape
        shape = (len(rows), max(lengths, default=0), num_layers, width)
        layers_BTLH = np.zeros(shape, dtype=self.states.dtype)
        for place, row in enumerate(rows):
            states = self.states[self.offsets[row] : self.offsets[row + 1]]
            layers_BTLH[place, : lengths[place]] = states
        tokens = Tokens.from_lists([[0] * length for length in lengths])
        stored = torch.from_numpy(layers_BTLH)
        layers = (stored.view(torch.bfloat16) if self.is_bf16 else stored).float()
        return tokens.with_layers(layers.permute(2, 0, 1, 3))


def _context(reader: Context | ContextualEmbedding) -> Context:
    context = reader if isinstance(reader, Context) else reader.context
    if not context.config.is_frozen or context.config.has_frozen_dropout:
        raise ContractError(
            "only a frozen encoder without dropout can be precomputed: "
            f"is_frozen is {context.config.is_frozen}, has_frozen_dropout {context.config.has_frozen_dropout}"
        )
    return context


def _lengths(context: Context, sequences: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    limit = context.config.max_tokens
    lengths = np.array([*map(len, sequences)], dtype=np.int64)
    return lengths if limit is None else np.minimum(lengths, limit)


def _read(
    reader: Context | ContextualEmbedding,
    sequences: Sequence[Sequence[int]],
    lengths_B: npt.NDArray[np.int64],
    batch_tokens: int,
    *,
    is_bf16: bool = False,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Run the encoder, the longest sentences first: their numbers, valid [B, T] and layers [L, B, T, H]."""
    limit = _context(reader).config.max_tokens
    device = next(reader.parameters()).device
    for rows in _batches(lengths_B, batch_tokens):
        tokens = Tokens.from_lists([sequences[row] for row in rows]).to(device)
        if limit is not None:
            tokens = truncate_middle(tokens, limit)
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
            layers_LBTH = reader.layers(tokens)
        yield rows, tokens.valid, layers_LBTH


def _batches(lengths_B: npt.NDArray[np.int64], batch_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for row in np.argsort(-lengths_B, kind="stable").tolist():
        # The longest come first, so only empty sentences are left, which have no states.
        if not lengths_B[row]:
            break
        current = batches[-1] if batches else []
        if current and lengths_B[current[0]] * (len(current) + 1) <= batch_tokens:
            current.append(row)
        else:
            batches.append([row])
    return batches


def _create(
    path: Path,
    offsets: npt.NDArray[np.int64],
    num_layers: int,
    width: int,
    precision: Precision,
) -> np.memmap:
    name, dtype = _DTYPES[precision]
    shape = (int(offsets[-1]), num_layers, width)
    header, places = header_of({"offsets": ("I64", offsets.shape), "states": (name, shape)})
    with path.open("wb") as file:
        file.write(header + offsets.astype("<i8").tobytes())
        file.truncate(places["states"] + int(np.prod(shape)) * np.dtype(dtype).itemsize)
    # An empty array cannot be memory mapped.
    if not shape[0]:
        return np.memmap(path, dtype=np.uint8, mode="r+")
    return np.memmap(path, dtype=dtype, mode="r+", offset=places["states"], shape=shape)
