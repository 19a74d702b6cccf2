"""The stage that puts new embedding layers in front of a pretrained model and trains them first.

Source: Lewis et al. (2020), BART, section 3.4, as a baseline of Liu et al. (2021): the pretrained embeddings
are replaced by a new table followed by a small encoder; these are trained with the model frozen, then the
whole model is finetuned. Deviations: Lewis et al. replace the encoder's embeddings and in the first phase
also train positions and the first self-attention. On the decoder's side the new layers are causal, and the
output rows are a separate table, since the input table of an encoder cannot be tied to the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nlgraft.nn.model_config import TransformerConfig
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.seq2seq_stages import table_sizes, training_task
from nlgraft.text.tokenizers import EOS
from nlgraft.training.models import fresh_model, read_model
from nlgraft.training.train_config import LearnedParameters
from nlgraft.training.weights import carry_over
from trainables.embedding_transfer.kinds import NEW_LAYERS

REPLACED = {
    "encoder": ("^source_embedding\\.",),
    "decoder": ("^target_embedding\\.", "^output_projection\\."),
}
"""Parameters that the new layers of each side replace."""


def attach_embeddings(context: StageContext) -> None:
    """Add new embedding layers to a pretrained model on the exchanged sides and train only these."""
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
    training_task(model, alone, inputs, context).train(context)


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
        # the small encoder scales its own table; scaling its output again would be twice
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
    # our two-tower encoder expects an end token on both sides of every sentence
    return context | ({"prepend_id": EOS} if side == "encoder" else {})
