"""What language models of transformers have in common, masked or left to right."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.nn.checkpoint_files import CAUSAL_TYPES
from nlgraft.nn.model_config import LlamaConfig
from nlgraft.nn.modes import seeded
from nlgraft.text.files import read_json
from nlgraft.vocab.surgery.exchange import find_vocabulary_tensors

_REPORTED = ("missing_keys", "unexpected_keys", "mismatched_keys")


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
    model_class: str,
    name: str,
    revision: str | None = None,
    *,
    seed: int = 0,
    what: str = "a model of transformers",
    types: str = "readable",
) -> tuple[Any, dict[str, list[str]]]:
    """Read a checkpoint of transformers in fp32.

    Args:
        model_class: Class of transformers that reads it, e.g. ``AutoModelForMaskedLM``.
        name: Hub name or directory.
        revision: Commit, tag or branch of a hub name; None: main.
        seed: Seed of parameters that the checkpoint lacks, such as a prediction head.
        what: What it is read as, for messages.
        types: Types of checkpoints that can be, for messages.

    Returns:
        The model, and the names of tensors that are ``missing_keys``, ``unexpected_keys`` and
        ``mismatched_keys`` of its class.

    Raises:
        DataError: It cannot be read so.
    """
    import transformers

    try:
        with seeded(seed), quiet_transformers():
            model, report = getattr(transformers, model_class).from_pretrained(
                name, revision=revision or "main", dtype=torch.float32, output_loading_info=True
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name}: not readable as {what} ({error}); give the name or directory of a {types} checkpoint"
        ) from error
    return model, {kind: sorted(map(str, report[kind])) for kind in _REPORTED}


def read_checkpoint_config(checkpoint: str, revision: str | None = None) -> dict[str, Any]:
    """Read a checkpoint's config.json with the defaults of its model type filled in.

    Args:
        checkpoint: Hub name or local directory.
        revision: Commit, tag or branch of a hub name; None: main.

    Raises:
        ContractError: It is missing or of an unknown model type.
    """
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(checkpoint, revision=revision or "main")
    except (OSError, ValueError) as error:
        raise ContractError(f"{checkpoint}: no readable config.json ({error})") from error
    return json.loads(config.to_json_string(use_diff=False))


def load_language_model(
    model_class: str,
    name: str,
    revision: str | None,
    *,
    seed: int,
    what: str,
    types: str,
) -> tuple[Any, list[str]]:
    """Read a language model as ``load_pretrained`` does; also returns the parameters that were drawn.

    Raises:
        DataError: It cannot be read so, or part of its body is missing.
    """
    model, report = load_pretrained(model_class, name, revision, seed=seed, what=what, types=types)
    missing = report["missing_keys"]
    refuse_missing(name, [key for key in missing if key.startswith(f"{model.base_model_prefix}.")])
    return model, missing


def build_fresh(model_class: Any, config: Any, seed: int) -> Any:
    """Build a model of transformers with fresh weights, drawn with a seed."""
    with seeded(seed):
        return model_class(config)


def fresh_like(
    model: Any,
    vocab_size: int,
    *,
    pad_id: int | None,
    seed: int,
) -> Any:
    """Build a model of the same architecture with fresh weights and another vocabulary."""
    config = copy.deepcopy(model.config)
    config.vocab_size, config.pad_token_id = vocab_size, pad_id
    return build_fresh(type(model), config, seed)


# Loading of released checkpoints through transformers, which is imported only then.


def position_limit(model: nn.Module) -> int | None:
    """Look up the longest input, special tokens included, that a model of transformers has positions for."""
    settings: Any = model.config
    limit = getattr(settings, "max_position_embeddings", None)
    # RoBERTa counts positions from the padding id on
    is_offset = any(
        getattr(module, "padding_idx", None) is not None and name.endswith("position_embeddings")
        for name, module in model.named_modules()
    )
    return limit if limit is None or not is_offset else limit - settings.pad_token_id - 1


def refuse_missing(checkpoint: str, names: Iterable[str]) -> None:
    """Refuse weights that a model needs and a checkpoint lacks; poolers, which nothing reads, may be missing.

    Raises:
        DataError: Some are missing, by these names.
    """
    missing = sorted(name for name in names if "pooler." not in name)
    if missing:
        raise DataError(
            f"{checkpoint}: its weights lack {len(missing)} of the model in config.json, such as "
            f"{', '.join(missing[:3])}; fetch the checkpoint again"
        )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars and warnings about missing weights; callers report them."""
    from transformers.utils import logging as library

    level, has_bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity(logging.CRITICAL)
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if has_bars:
            library.enable_progress_bar()


# Causal language models of transformers: each token is predicted from those before it.
#
# Shape letters: B sequences, T positions of a sequence, V vocabulary.


class TransformersCausalLM(TransformersLM):
    """A causal language model of transformers, whatever its architecture."""

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Compute the logits [B, T, V] of the token after each position.

        Padding on the right needs no mask: no real position attends to it.
        """
        return self.model(input_ids=ids_BT, use_cache=False).logits

    @property
    def max_tokens(self) -> int | None:
        """Number of positions; None: any."""
        return position_limit(self.model)


def load_causal_lm(name: str, revision: str | None) -> TransformersCausalLM:
    """Read a checkpoint of transformers in fp32.

    Raises:
        DataError: It cannot be read as a causal language model, or parameters are missing.
    """
    what = "a causal language model"
    model, missing = load_language_model(
        "AutoModelForCausalLM", name, revision, seed=0, what=what, types=CAUSAL_TYPES
    )
    if missing:
        raise DataError(f"{name}: the checkpoint lacks {', '.join(missing[:3])}, so it is not {what}")
    return TransformersCausalLM(model)


def is_causal_lm(directory: Path) -> bool:
    """Tell if a directory holds a causal language model of transformers, by its configuration."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    file = directory / "config.json"
    names = read_json(file).get("architectures") if file.is_file() else None
    return bool(names) and names[0] in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()


def fresh_llama(
    config: LlamaConfig,
    vocab_size: int,
    *,
    end_id: int,
    max_tokens: int,
    seed: int,
) -> TransformersCausalLM:
    """Build a Llama of transformers with fresh weights; ``end_id`` stands at both ends of a text."""
    import transformers

    settings = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_heads,
        intermediate_size=config.ffn_dim,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=config.is_tied,
        bos_token_id=end_id,
        eos_token_id=end_id,
    )
    return TransformersCausalLM(build_fresh(transformers.LlamaForCausalLM, settings, seed))
