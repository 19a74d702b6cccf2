"""Random language models in several files, written one after the other."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file


def write_shards(directory: Path, config: Any, shard_bytes: int) -> list[int]:
    """Write a random causal language model in bf16, a file of at most ``shard_bytes`` at a time.

    Returns:
        Size of each file in bytes.
    """
    config.dtype = torch.bfloat16
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    parts: list[dict[str, torch.Size]] = [{}]
    for name, tensor in model.named_parameters():  # tied ones once
        if (
            parts[-1]
            and 2 * (sum(shape.numel() for shape in parts[-1].values()) + tensor.numel()) > shard_bytes
        ):
            parts.append({})
        parts[-1][name] = tensor.shape
    generator = torch.Generator().manual_seed(0)
    weight_map: dict[str, str] = {}
    sizes = []
    for number, part in enumerate(parts, 1):
        file = directory / f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = {
            name: torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02, generator=generator)
            for name, shape in part.items()
        }
        save_file(tensors, file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file.name)
        sizes.append(file.stat().st_size)
    index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config.architectures = [type(model).__name__]
    config.save_pretrained(directory)
    return sizes
