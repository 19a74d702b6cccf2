"""The encoder-decoder of which every system is a configuration.

Shape letters: B sentences, R rows = B x hypotheses, T source tokens, J target tokens, D model width,
V target vocabulary, M positions of a context, H its width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from nlgraft.errors import ContractError
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.embedding import InputLayer, TableEmbedding
from nlgraft.nn.fusion import Fusion
from nlgraft.nn.layers import DecoderLayer, EncoderLayer
from nlgraft.nn.memory import Memory, concatenate, split
from nlgraft.nn.state import DecoderState


@dataclass(frozen=True)
class Encoding:
    """All that the decoder reads.

    Attributes:
        bank: One memory [B, T, D] for each source.
        contexts: Pooled states [B, M, H] of each context that feeds a fusion branch.
    """

    bank: list[Memory]
    contexts: dict[str, Memory]


class Seq2Seq(nn.Module):
    """A Transformer encoder-decoder over any number of sources and pretrained contexts.

    **Padding** changes nothing: a sentence gives the same logits alone and in any batch.
    **Decoding** step by step gives the same logits as one pass over the whole target.
    """

    def __init__(self, config: TransformerConfig, source_vocab_size: int, target_vocab_size: int) -> None:
        """Build the model with fresh weights from torch's global generator.

        Args:
            config: Its configuration.
            source_vocab_size: Rows of the source table.
            target_vocab_size: Rows of the target table, V.
        """
        super().__init__()
        if config.tying == "all" and source_vocab_size != target_vocab_size:
            raise ContractError(
                f"tying 'all' with {source_vocab_size} source and {target_vocab_size} target tokens: "
                "one table needs one vocabulary"
            )
        self.config = config
        d_model = config.d_model
        self.source_embedding = TableEmbedding(source_vocab_size, d_model, config.pad_id)
        self.target_embedding = (
            self.source_embedding
            if config.tying == "all"
            else TableEmbedding(target_vocab_size, d_model, config.pad_id)
        )
        self.output_projection = nn.Linear(d_model, target_vocab_size, bias=config.has_output_bias)
        if config.tying == "none":
            nn.init.normal_(self.output_projection.weight, std=d_model**-0.5)
        else:
            self.output_projection.weight = self.target_embedding.table.weight
        if config.has_output_bias:
            nn.init.zeros_(self.output_projection.bias)
        self.source_input = InputLayer(
            config, config.source_positions, has_scale=config.has_source_scale, has_segments=True
        )
        self.target_input = InputLayer(
            config, config.target_positions, has_scale=config.has_target_scale, has_segments=False
        )
        self.encoder = nn.ModuleList(
            EncoderLayer(config, Fusion(config, [])) for _ in range(config.num_encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(config, Fusion(config, [])) for _ in range(config.num_decoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(d_model) if config.norm == "pre" else None
        self.decoder_norm = nn.LayerNorm(d_model) if config.norm == "pre" else None

    def encode(self, sources: Sequence[Tokens], contexts: Mapping[str, Tokens] | None = None) -> Encoding:
        """Encode the sources of each sentence.

        Args:
            sources: At most ``num_sources`` entries [B, T].
            contexts: Input of each fusion context.

        Returns:
            What the decoder reads.
        """
        bank = [
            Memory.of(self.source_input(self.source_embedding(tokens), segment=k), tokens)
            for k, tokens in enumerate(sources)
        ]
        if self.config.encoding == "separate":
            return Encoding([self._encode(memory) for memory in bank], {})
        return Encoding(split(self._encode(concatenate(bank)), bank), {})

    def _encode(self, x: Memory) -> Memory:
        for layer in cast("Iterable[EncoderLayer]", self.encoder):
            x = x.with_states(layer(x, []))
        return x if self.encoder_norm is None else x.with_states(self.encoder_norm(x.states))

    def forward(self, batch: Batch) -> Tensor:
        """Decode given targets in one pass; ``logits`` turns what is needed of it into scores.

        Args:
            batch: Sources and target input [B, J].

        Returns:
            The decoder's last states [B, J, D].
        """
        encoding = self.encode(batch.sources, batch.contexts)
        x_BJD = self.target_input(self.target_embedding(batch.target_input))
        bank = self._cross_bank(encoding)
        for layer in self._decoder_layers():
            x_BJD = layer(x_BJD, layer.project(bank, []))
        return x_BJD if self.decoder_norm is None else self.decoder_norm(x_BJD)

    def logits(self, hidden: Tensor) -> Tensor:
        """Score the target vocabulary.

        Args:
            hidden: Decoder states [..., D]; pass only the rows that are needed.

        Returns:
            Logits [..., V].
        """
        return self.output_projection(hidden)

    def start(self, encoding: Encoding) -> DecoderState:
        """Prepare step-by-step decoding.

        Args:
            encoding: What ``encode`` returned.

        Returns:
            A state before the first token, one hypothesis for each sentence.
        """
        bank = self._cross_bank(encoding)
        memories = [layer.project(bank, []) for layer in self._decoder_layers()]
        return DecoderState(memories, bank[0].valid.shape[0])

    def decode_step(self, state: DecoderState, ids_R: Tensor) -> Tensor:
        """Decode one more token of every row.

        Args:
            state: Updated in place.
            ids_R: The newest token of each row, int64 [R].

        Returns:
            Decoder states [R, D]; ``logits`` scores the next token.
        """
        state.ancestry.step(state.num_sentences, ids_R.device)
        x_R1D = self.target_embedding.step(ids_R[:, None], state.embedding)
        x_R1D = self.target_input(x_R1D, start=state.num_steps - 1)
        for layer, memory, cache in zip(self._decoder_layers(), state.memories, state.caches, strict=True):
            x_R1D = layer(x_R1D, memory, cache)
        x_RD = x_R1D[:, 0]
        return x_RD if self.decoder_norm is None else self.decoder_norm(x_RD)

    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return cast("Iterable[DecoderLayer]", self.decoder)

    def _cross_bank(self, encoding: Encoding) -> list[Memory]:
        separated = self.config.cross_attention == "separated"
        return encoding.bank if separated else [concatenate(encoding.bank)]
