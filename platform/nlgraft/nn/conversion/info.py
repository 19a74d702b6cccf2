"""Information of a checkpoint besides its weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from nlgraft.basics.errors import StoreError
from nlgraft.nn.conversion.architectures import Architecture
from nlgraft.nn.conversion.decoding import read_generation
from nlgraft.nn.model_config import GenerationConfig

_INFO_FILE, _UNREAD_FILE = "hugging_face.json", "hugging_face_unread.safetensors"


@dataclass(frozen=True)
class CheckpointInfo:
    """Information of a checkpoint besides the weights that are converted.

    Attributes:
        architecture: Its architecture.
        config: Its config.json.
        generation: Its generation_config.json.
        unread: Tensors, and leading rows of tensors, that no model reads; kept so that writing the checkpoint
            back reproduces it to the bit.
        notes: Notes on how our model differs from transformers'.
    """

    architecture: Architecture
    config: dict[str, Any]
    generation: dict[str, Any]
    unread: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def generation_config(self, start_id: int | None = None) -> tuple[GenerationConfig, list[str]]:
        """Translate the checkpoint's decoding settings into ours; see ``read_generation``."""
        return read_generation(self.generation, start_id)

    def write(self, directory: Path) -> None:
        """Write ``hugging_face.json`` and, if needed, a safetensors file beside one of our models."""
        values = {
            "architecture": self.architecture,
            "config": self.config,
            "generation": self.generation,
            "notes": list(self.notes),
        }
        text = json.dumps(values, indent=1, sort_keys=True)
        (directory / _INFO_FILE).write_text(text + "\n", encoding="utf-8")
        if self.unread:
            save_file(self.unread, directory / _UNREAD_FILE)

    @staticmethod
    def read(directory: Path) -> CheckpointInfo:
        """Read the files of ``write``.

        Raises:
            StoreError: They are missing or broken.
        """
        try:
            values = json.loads((directory / _INFO_FILE).read_text(encoding="utf-8"))
            unread = directory / _UNREAD_FILE
            return CheckpointInfo(
                Architecture(values["architecture"]),
                values["config"],
                values["generation"],
                load_file(unread) if unread.exists() else {},
                tuple(values["notes"]),
            )
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{directory}: no information about a checkpoint ({error})") from error
