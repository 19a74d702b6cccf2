"""What language models of transformers have in common, masked or left to right."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import DataError
from nlgraft.nn.transformers_loading import quiet_transformers, refuse_missing
from nlgraft.vocab.surgery.tensors import find_vocabulary_tensors


class TransformersLM(nn.Module):
    """A language model of transformers, whatever its architecture."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    @property
    def input_table(self) -> Tensor:
        """The table of input embeddings, [V, D]."""
        return self.model.get_input_embeddings().weight

    @property
    def vocabulary_tensors(self) -> frozenset[str]:
        """Names of tables and biases, each under all its names."""
        return frozenset(f"model.{name}" for name in find_vocabulary_tensors(self.model).all)

    @property
    def noise_std(self) -> float:
        """Standard deviation with which a new model's rows are drawn."""
        return float(getattr(self.model.config.get_text_config(), "initializer_range", 0.02))

    def write(self, directory: Path) -> None:
        """Write the model in its own format."""
        with quiet_transformers():
            self.model.save_pretrained(directory)


def load_pretrained(
    auto_class: str, name: str, revision: str | None, seed: int, *, what: str, types: str
) -> tuple[Any, list[str]]:
    """Read a checkpoint of transformers in fp32.

    Args:
        auto_class: Class of transformers that reads it, e.g. ``AutoModelForMaskedLM``.
        name: Hub name or directory.
        revision: Commit, tag or branch of a hub name.
        seed: Seed of parameters that the checkpoint lacks, such as a prediction head.
        what: What it is read as, for messages.
        types: Types of checkpoints that can be, for messages.

    Returns:
        The model, and the names of the parameters that were drawn.

    Raises:
        DataError: It cannot be read so, or part of its body is missing.
    """
    import transformers

    options = {} if revision is None else {"revision": revision}
    try:
        with torch.random.fork_rng(devices=[]), quiet_transformers():
            torch.manual_seed(seed)
            model, report = getattr(transformers, auto_class).from_pretrained(
                name, dtype=torch.float32, output_loading_info=True, **options
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name}: not readable as {what} ({error}); give the name or directory of a {types} checkpoint"
        ) from error
    missing = sorted(report["missing_keys"])
    refuse_missing(name, [key for key in missing if key.startswith(f"{model.base_model_prefix}.")])
    return model, missing


def build_fresh(model_class: Any, config: Any, seed: int) -> Any:
    """Build a model of transformers with fresh weights, drawn with a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config)


def fresh_like(model: Any, vocab_size: int, *, pad_id: int | None, seed: int) -> Any:
    """Build a model of the same architecture with fresh weights and another vocabulary."""
    config = copy.deepcopy(model.config)
    config.vocab_size, config.pad_token_id = vocab_size, pad_id
    return build_fresh(type(model), config, seed)
