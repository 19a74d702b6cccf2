"""The encoder-decoder of which every system is a configuration.

Shape letters: B sentences, R rows = B x hypotheses, T source tokens, J target tokens, D model width,
V target vocabulary, M positions of a context, H its width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Memory, concatenate, split
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.contextual import (
    Context,
    ContextualEmbedding,
    ContextualEncoder,
    OwnEmbeddings,
    build_contexts,
)
from nlgraft.nn.decoder_state import DecoderState
from nlgraft.nn.embedding import InputLayer, TableEmbedding
from nlgraft.nn.fusion import Fusion
from nlgraft.nn.layers import DecoderLayer, EncoderLayer, FineEncoder
from nlgraft.nn.linear import Linear
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.modes import isolated_rng


@dataclass(frozen=True)
class Encoding:
    """The encoded input of the decoder.

    Attributes:
        bank: One memory [B, T, D] per source.
        contexts: Pooled states [B, M, H] of each context that feeds a fusion branch.
    """

    bank: list[Memory]
    contexts: dict[str, Memory]


class Seq2Seq(nn.Module):
    """A Transformer encoder-decoder over any number of sources and pretrained contexts.

    **Padding** changes nothing: a sentence gives the same logits alone and in any batch.
    **Decoding** step by step gives the same logits as one pass over the whole target.
    **Initialisation** draws from torch's global generator.

    Args:
        config: Its configuration.
        source_vocab_size: Rows of the source table.
        target_vocab_size: Rows of the target table, V.
        encoders: Contexts' encoders that are already built, by the context's name; the others are loaded
            (checkpoints) or made afresh (our own language models).

    Raises:
        ContractError: Vocabularies do not fit the tying or the contexts.
    """

    def __init__(
        self,
        config: TransformerConfig,
        source_vocab_size: int,
        target_vocab_size: int,
        encoders: Mapping[str, ContextualEncoder] | None = None,
    ) -> None:
        super().__init__()
        if config.tying == "all" and source_vocab_size != target_vocab_size:
            raise ContractError(
                f"tying 'all' with {source_vocab_size} source and {target_vocab_size} target tokens: "
                "one table needs one vocabulary"
            )
        self.config = config
        d_model = config.d_model
        with isolated_rng():
            # Built from a separate random stream: the other weights are those of a model without contexts.
            contexts = build_contexts(config.contexts, d_model, encoders)
        self.source_embedding = _embedding(config, "source_context", source_vocab_size, contexts)
        self.target_embedding = (
            self.source_embedding
            if config.tying == "all"
            else _embedding(config, "target_context", target_vocab_size, contexts)
        )
        self.output_projection = Linear(d_model, target_vocab_size, bias=config.has_output_bias)
        if config.tying == "none":
            nn.init.normal_(self.output_projection.weight, std=d_model**-0.5)
        else:
            assert isinstance(self.target_embedding, TableEmbedding), "the configuration refuses other ties"
            self.output_projection.weight = self.target_embedding.table.weight
        if config.has_output_bias:
            nn.init.zeros_(self.output_projection.bias)
        self.source_input = InputLayer(
            config, config.source_positions, has_scale=config.has_source_scale, has_segments=True
        )
        self.target_input = InputLayer(
            config, config.target_positions, has_scale=config.has_target_scale, has_segments=False
        )
        self.contexts = nn.ModuleDict({name: contexts[name] for name in config.fusion.contexts})
        dims = [contexts[name].output_dim for name in config.fusion.contexts]
        source_dims = dims if config.fusion.side in ("source", "both") else []
        target_dims = dims if config.fusion.side in ("target", "both") else []
        self.encoder = _encoder(config, source_dims)
        num_further = config.num_sources - 1 if config.encoding == "own" else 0
        self.further_encoders = nn.ModuleList(_encoder(config, source_dims) for _ in range(num_further))
        self.fine_encoder = FineEncoder(config)
        self.decoder = nn.ModuleList(
            DecoderLayer(config, Fusion(config, target_dims)) for _ in range(config.num_decoder_layers)
        )
        self.encoder_norm = _final_norm(config)
        self.further_norms = nn.ModuleList(
            norm for _ in range(num_further) if (norm := _final_norm(config)) is not None
        )
        self.decoder_norm = _final_norm(config)

    def encode(self, sources: Sequence[Tokens], contexts: Mapping[str, Tokens] | None = None) -> Encoding:
        """Encode the sources of each sentence.

        Args:
            sources: At most ``num_sources`` entries [B, T].
            contexts: Input of each fusion context, [B, M]; own embeddings have none.
        """
        contexts = contexts or {}
        self._check_inputs(len(sources), contexts)
        bank = [
            Memory.of(self.source_input(self.source_embedding(tokens), segment=k), tokens)
            for k, tokens in enumerate(sources)
        ]
        read = {
            name: module(concatenate(bank) if isinstance(module, OwnEmbeddings) else contexts[name])
            for name, module in self.contexts.items()
        }
        if self.config.encoding == "joint":
            coarse = split(self._encode(concatenate(bank), read), bank)
        else:
            coarse = [self._encode(memory, read, source) for source, memory in enumerate(bank)]
        return Encoding(self.fine_encoder(coarse), read)

    def _encode(
        self,
        x: Memory,
        contexts: Mapping[str, Memory],
        source: int = 0,
    ) -> Memory:
        read = list(contexts.values()) if self.config.fusion.side in ("source", "both") else []
        encoder, norm = self.encoder, self.encoder_norm
        if source and self.config.encoding == "own":
            encoder = cast("nn.ModuleList", self.further_encoders[source - 1])
            # Post-norm stacks have no final norm, and then ``further_norms`` is empty.
            norm = norm and self.further_norms[source - 1]
        for index, layer in enumerate(cast("Iterable[EncoderLayer]", encoder)):
            x = x.with_states(self.fine_encoder.after_layer(index, layer(x, read)))
        if norm is None:
            return x
        return x.with_states(norm(x.states))

    def _check_inputs(self, num_sources: int, contexts: Mapping[str, Tokens]) -> None:
        if not 1 <= num_sources <= self.config.num_sources:
            raise ContractError(
                f"the batch has {num_sources} sources, the model takes 1 to {self.config.num_sources}: "
                "raise num_sources or change the data view"
            )
        missing = [
            name
            for name, module in self.contexts.items()
            if name not in contexts and not isinstance(module, OwnEmbeddings)
        ]
        if missing:
            raise ContractError(
                f"the batch lacks contexts {missing}, it has: {', '.join(contexts) or 'none'}; "
                "add their tokenisation to the data view"
            )

    def forward(self, batch: Batch) -> Tensor:
        """Decode given targets in one pass; returns the decoder's last states [B, J, D] for ``logits``."""
        encoding = self.encode(batch.sources, batch.contexts)
        x_BJD = self.target_input(self.target_embedding(batch.target_input))
        bank, contexts = self._decoder_reads(encoding)
        for layer in self._decoder_layers():
            x_BJD = layer(x_BJD, bank, contexts)
        return x_BJD if self.decoder_norm is None else self.decoder_norm(x_BJD)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., V] over the target vocabulary from decoder states [..., D]."""
        return self.output_projection(hidden)

    def start(self, encoding: Encoding) -> DecoderState:
        """Prepare step-by-step decoding: a state before the first token, one hypothesis per sentence."""
        bank, contexts = self._decoder_reads(encoding)
        memories = [layer.project(bank, contexts) for layer in self._decoder_layers()]
        return DecoderState(memories, self.target_embedding.new_cache())

    def decode_step(self, state: DecoderState, ids_R: Tensor) -> Tensor:
        """Decode one more token per row.

        Args:
            state: Updated in place.
            ids_R: The newest token of each row, int64.

        Returns:
            Decoder states [R, D]; ``logits`` scores the next token.
        """
        position = state.own.step(len(ids_R), ids_R.device)
        x_R1D = self.target_embedding.step(ids_R[:, None], state.embedding)
        x_R1D = self.target_input(x_R1D, start=position)
        for layer, memory, cache in zip(
            self._decoder_layers(), state.memories, state.own.layers, strict=True
        ):
            x_R1D = layer.step(x_R1D, memory, cache)
        x_RD = x_R1D[:, 0]
        return x_RD if self.decoder_norm is None else self.decoder_norm(x_RD)

    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return cast("Iterable[DecoderLayer]", self.decoder)

    def _decoder_reads(self, encoding: Encoding) -> tuple[list[Memory], list[Memory]]:
        is_joint = self.config.cross_attention == "joint"
        is_fused = self.config.fusion.side in ("target", "both")
        # One softmax over all sources, or one per source.
        bank = [concatenate(encoding.bank)] if is_joint else encoding.bank
        return bank, list(encoding.contexts.values()) if is_fused else []

    def room(self, side: str) -> int | None:
        """Look up the longest input of a side that has a position for every token; None: any."""
        embedding = getattr(self, f"{side}_embedding")
        is_learned = getattr(self.config, f"{side}_positions") == "learned"
        rooms = [self.config.max_positions] if is_learned else []
        if isinstance(embedding, ContextualEmbedding) and embedding.max_tokens is not None:
            rooms.append(embedding.max_tokens)
        return min(rooms, default=None)

    def named_contexts(self) -> dict[str, Context]:
        """Find the pretrained encoders in use by the names that the configuration gives them."""
        contexts = {name: module for name, module in self.contexts.items() if isinstance(module, Context)}
        for name, embedding in (
            (self.config.source_context, self.source_embedding),
            (self.config.target_context, self.target_embedding),
        ):
            if name is not None and isinstance(embedding, ContextualEmbedding):
                contexts[name] = embedding.context
        return contexts

    def lr_multipliers(self) -> dict[str, float]:
        """Return the learning-rate multipliers of finetuned contexts, by prefix of parameter names."""
        multipliers = {}
        for name, module in self.named_modules():
            if isinstance(module, Context) and module.config.lr_multiplier != 1.0:
                multipliers[f"{name}.encoder."] = module.config.lr_multiplier
        return multipliers


def _encoder(config: TransformerConfig, branch_dims: Sequence[int]) -> nn.ModuleList:
    layers = (EncoderLayer(config, Fusion(config, branch_dims)) for _ in range(config.num_encoder_layers))
    return nn.ModuleList(layers)


def _final_norm(config: TransformerConfig) -> nn.LayerNorm | None:
    if config.norm == "pre":
        return nn.LayerNorm(config.d_model, eps=config.norm_eps)
    return None


def _embedding(
    config: TransformerConfig,
    setting: Literal["source_context", "target_context"],
    vocab_size: int,
    contexts: Mapping[str, Context | OwnEmbeddings],
) -> TableEmbedding | ContextualEmbedding:
    name = getattr(config, setting)
    if name is None:
        return TableEmbedding(vocab_size, config.d_model, config.pad_id)
    context = contexts[name]
    assert isinstance(context, Context), "the configuration refuses own embeddings here"
    if context.vocab_size != vocab_size:
        raise ContractError(
            f"{setting} '{name}' has {context.vocab_size} tokens but the {setting[:6]} vocabulary has "
            f"{vocab_size}: that side must use the encoder's own tokenizer"
        )
    return ContextualEmbedding(context, config.d_model)
