"""Load checkpoints with the class that their configuration names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nlgraft.errors import DataError
from nlgraft.vocab.plans.moments import Array
from nlgraft.vocab.surgery.tensors import input_table


def load_checkpoint(directory: str | Path, *, keeps_dtype: bool = False) -> Any:
    """Load a checkpoint, a directory or a name on the hub, with the class that its configuration names.

    The model is in evaluation mode and in single precision; with ``keeps_dtype`` in the stored precision.

    Raises:
        DataError: The directory holds no checkpoint that transformers knows, or the configuration does not
            name the class of the weights.
    """
    import transformers  # takes seconds

    try:
        config = transformers.AutoConfig.from_pretrained(directory)
        names = getattr(config, "architectures", None) or []
        model_type = getattr(transformers, names[0]) if names else transformers.AutoModel
        model, info = model_type.from_pretrained(
            directory, dtype="auto" if keeps_dtype else torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{directory}: not a checkpoint that transformers can load ({reason})") from error
    if not names and info["unexpected_keys"]:
        lost = sorted(info["unexpected_keys"])[0]
        raise DataError(
            f"{directory}: config.json names no architecture, and {type(model).__name__} has no '{lost}'; "
            'write the class into config.json ("architectures": ["..."])'
        )
    return model.eval()


def embedding_rows(model: str) -> Array:
    """Read the input embeddings of a checkpoint, the decoder's if there are two sides; float32, [R, d]."""
    return input_table(load_checkpoint(model), "decoder").detach().numpy()
