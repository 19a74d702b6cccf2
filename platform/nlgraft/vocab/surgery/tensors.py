"""Find the tensors of a Hugging Face model that have a row or an entry for each token.

Tensors are compared by identity, so that models without values (on PyTorch's meta device) serve as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.basics.errors import DataError


@dataclass(frozen=True)
class VocabularyTensors:
    """The tensors of a model that have a row or an entry for each token.

    Attributes:
        encoder: Names of tables that encoder ids index; empty without an encoder.
        decoder: Names of tables that decoder ids index; of the single table of a one-sided model.
        output: Names of output tables.
        bias: Names of output biases, entries in the last dimension.
    """

    encoder: frozenset[str]
    decoder: frozenset[str]
    output: frozenset[str]
    bias: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """All names."""
        return self.encoder | self.decoder | self.output | self.bias


class TensorRows:
    """Rows [R, d] of a tensor of any precision, read in single precision part by part."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self.shape = tuple(tensor.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> NDArray[np.floating]:
        return self._tensor[key].float().cpu().numpy()


def find_vocabulary_tensors(model: Any) -> VocabularyTensors:
    """Find the tensors that depend on the vocabulary, from the model's own accessors and not by shape.

    A tensor with several names is listed under each.

    Raises:
        DataError: The model has no input embeddings.
    """
    head = model.get_output_embeddings()
    output = [] if head is None else [head.weight]
    bias = [] if head is None or getattr(head, "bias", None) is None else [head.bias]
    names = dict(named_tensors(model))
    # Marian and BART add this buffer to the logits.
    bias += [tensor for name, tensor in names.items() if name.split(".")[-1] == "final_logits_bias"]
    has_two_sides = is_encoder_decoder(model)
    encoder = [input_table(model, "encoder")] if has_two_sides else []
    decoder = [input_table(model, "decoder")]
    if has_two_sides:
        # BART and T5 keep the shared table even when neither side reads it any more
        shared = model.get_input_embeddings().weight
        decoder += [shared] if shared is not encoder[0] and shared is not decoder[0] else []
    sides = _names_of(names, encoder), _names_of(names, decoder), _names_of(names, output)
    return VocabularyTensors(*sides, bias=_with_ties(model, _names_of(names, bias)))


def input_table(model: Any, side: str) -> Tensor:
    """Return the input embeddings [V, d] of one side, ``encoder`` or ``decoder``.

    Both are the one table of a one-sided model.

    Raises:
        DataError: The model does not provide them.
    """
    try:
        module = getattr(model, f"get_{side}")() if is_encoder_decoder(model) else model
        return module.get_input_embeddings().weight
    except (AttributeError, NotImplementedError) as error:
        raise DataError(
            f"{type(model).__name__} provides no get_input_embeddings, so its table is unknown"
        ) from error


def is_encoder_decoder(model: Any) -> bool:
    """Return True for models with two sides."""
    return bool(getattr(model.config, "is_encoder_decoder", False))


def named_tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint, without buffers that the model computes itself."""
    yield from model.state_dict(keep_vars=True).items()


def _names_of(names: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> frozenset[str]:
    # Compared by identity: equal shapes or values do not make a tie.
    tensor_ids = {id(tensor) for tensor in tensors}
    return frozenset(name for name, tensor in names.items() if id(tensor) in tensor_ids)


def _with_ties(model: Any, names: frozenset[str]) -> frozenset[str]:
    """Add names that the architecture can tie to these, tied now or not (BERT's head bias has two)."""
    tied_names = set(names)
    for prefix, module in model.named_modules():
        pairs = getattr(module, "_tied_weights_keys", None)
        for pair in pairs.items() if isinstance(pairs, dict) else ():
            both = {f"{prefix}.{name}" if prefix else name for name in pair}
            if both & tied_names:
                tied_names |= both
    return frozenset(tied_names)


def count_embedding_parameters(model: Any) -> int:
    """Count the parameters of all vocabulary tables, tied ones once."""
    names = find_vocabulary_tensors(model)
    tables = names.encoder | names.decoder | names.output
    sizes = {id(tensor): tensor.numel() for name, tensor in named_tensors(model) if name in tables}
    return sum(sizes.values())
