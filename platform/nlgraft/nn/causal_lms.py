"""Causal language models of transformers: each token is predicted from those before it.

Shape letters: B sequences, T positions of a sequence, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.nn.checkpoint_files import CAUSAL_TYPES
from nlgraft.nn.model_config import LlamaConfig
from nlgraft.nn.transformers_lms import TransformersLM, build_fresh, load_pretrained
from nlgraft.nn.transformers_loading import position_limit
from nlgraft.text.files import read_json


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
    model, missing = load_pretrained("AutoModelForCausalLM", name, revision, 0, what=what, types=CAUSAL_TYPES)
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
    config: LlamaConfig, vocab_size: int, *, end_id: int, max_tokens: int, seed: int
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
