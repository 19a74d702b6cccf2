"""The stage that puts new embedding layers before a pretrained model and lets them learn first.

Source: Lewis et al. (2020), BART, section 3.4, as a baseline of Liu et al. (2021): the pretrained embeddings
are discarded for a new table with a small encoder behind it; while that learns the model is frozen, then all
of it is finetuned. Differs: Lewis et al. replace the encoder's embeddings and let positions and the first
self-attention learn too. On the decoder's side the new layers are causal, and the output rows, which cannot
be those of an encoder's input, are a new table of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.seq2seq_stages import table_sizes, train_model
from nlgraft.text.tokenizers import EOS
from nlgraft.training.models import fresh_model, read_model
from nlgraft.training.train_config import LearnedParameters
from nlgraft.training.weights import carry_over
from trainables.embedding_transfer.kinds import NEW_LAYERS

REPLACED = {
    "encoder": ("^source_embedding\\.",),
    "decoder": ("^target_embedding\\.", "^output_projection\\."),
}
"""Parts of the model that each side's new layers take the place of."""


def attach_embeddings(context: StageContext) -> None:
    """Give a pretrained model new embedding layers on the exchanged sides and train these alone."""
    settings, inputs = NEW_LAYERS.read(context)
    assert inputs.start is not None
    assert context.seed is not None
    sides = settings.sides
    body = read_model(inputs.start)
    sizes = table_sizes(inputs.encoded, settings.view)
    config = independent_config(body.config, sides, sizes, settings.num_layers)
    model = fresh_model(config, *sizes, context.seed)
    replaced = tuple(pattern for side in sides for pattern in REPLACED[side])
    carry_over(model, body.state_dict(), fresh=replaced, drop=replaced)
    alone = settings.model_copy(update={"learned": LearnedParameters(only=replaced)})
    train_model(model, alone, inputs, context)


def independent_config(
    config: TransformerConfig, sides: tuple[str, ...], vocab_sizes: tuple[int, int], num_layers: int
) -> TransformerConfig:
    """Describe a model whose embeddings on some sides are small encoders.

    Args:
        config: The pretrained model.
        sides: Among ``encoder`` and ``decoder``.
        vocab_sizes: Tokens of the source and of the target vocabulary.
        num_layers: Layers behind each new table.

    Returns:
        The configuration.
    """
    document: dict[str, Any] = config.model_dump()
    contexts: dict[str, Mapping[str, Any]] = {}
    for side, name, size in zip(("encoder", "decoder"), ("source", "target"), vocab_sizes, strict=True):
        if side not in sides:
            continue
        contexts[f"{name}_layers"] = _layers(config, side, size, num_layers)
        # the layers scale their own table
        document |= {f"{name}_context": f"{name}_layers", f"has_{name}_scale": False}
    tying = "none" if "decoder" in sides else config.tying
    document |= {"contexts": contexts, "tying": "decoder" if tying == "all" else tying}
    return TransformerConfig(**document)


def _layers(config: TransformerConfig, side: str, vocab_size: int, num_layers: int) -> dict[str, Any]:
    encoder = {
        "kind": "bi_lm" if side == "encoder" else "uni_lm",
        "vocab_size": vocab_size,
        "d_model": config.d_model,
        "num_layers": num_layers,
        "num_heads": config.num_heads,
        "ffn_dim": config.ffn_dim,
        "dropout": config.dropout,
    }
    context = {"encoder": encoder, "pooling": {"kind": "output"}, "is_frozen": False}
    # our own two-tower encoder reads every sentence between two end tokens
    return context | ({"prepend_id": EOS} if side == "encoder" else {})
