"""What a checkpoint says besides its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from nlgraft.errors import StoreError
from nlgraft.nn.config import GenerationConfig
from nlgraft.nn.conversion.architectures import Architecture
from nlgraft.nn.conversion.decoding import read_generation

_INFO_FILE, _UNREAD_FILE = "hugging_face.json", "hugging_face_unread.safetensors"


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint says besides the weights that are read.

    Attributes:
        architecture: Which one it is.
        config: Its config.json.
        generation: Its generation_config.json.
        unread: Tensors, and leading rows of tensors, that no model reads: kept so that what is written back
            is the same to the bit.
        notes: What our model does not do as transformers would.
    """

    architecture: Architecture
    config: dict[str, Any]
    generation: dict[str, Any]
    unread: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def generation_config(self, start_id: int | None = None) -> tuple[GenerationConfig, list[str]]:
        """How the checkpoint is meant to be decoded.

        Args:
            start_id: First decoder input, where the checkpoint has none of its own (mBART: a language id).

        Returns:
            The nearest configuration of ours, and notes on every way in which it differs.

        Raises:
            ContractError: There is no start token, or no single end token.
        """
        return read_generation(self.generation, start_id)

    def write(self, directory: Path) -> None:
        """Put it beside a model of ours.

        Args:
            directory: Where to; gets ``hugging_face.json`` and, if needed, a safetensors file.
        """
        told = {
            "architecture": self.architecture,
            "config": self.config,
            "generation": self.generation,
            "notes": list(self.notes),
        }
        text = json.dumps(told, indent=1, sort_keys=True)
        (directory / _INFO_FILE).write_text(text + "\n", encoding="utf-8")
        if self.unread:
            save_file(self.unread, directory / _UNREAD_FILE)

    @staticmethod
    def read(directory: Path) -> CheckpointInfo:
        """Read what ``write`` wrote.

        Args:
            directory: Where it is.

        Returns:
            The same information.

        Raises:
            StoreError: It is missing or broken.
        """
        try:
            told = json.loads((directory / _INFO_FILE).read_text(encoding="utf-8"))
            unread = directory / _UNREAD_FILE
            return CheckpointInfo(
                Architecture(told["architecture"]),
                told["config"],
                told["generation"],
                load_file(unread) if unread.exists() else {},
                tuple(told["notes"]),
            )
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{directory}: no information about a checkpoint ({error})") from error
