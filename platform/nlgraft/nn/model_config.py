"""Typed, frozen configurations of models and of decoding. Imports no torch: studies are read with it.

A study sets an architecture (`ArchitectureConfig`); the graph of its system adds what the method needs
beyond it (`TransformerConfig`): several sources, pretrained encoders, fusion branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from nlgraft.basics.strict_config import Condition, ReadWhen, StrictConfig, as_read
from nlgraft.nn.context_config import ContextConfig

Site = Literal["self", "self_norm", "ffn", "ffn_norm"]
MergeName = Literal["sum", "average", "gate", "dropnet"]
Init = Literal["xavier", "zero"]


class MergeConfig(StrictConfig):
    """A merge strategy, and the settings that only one strategy reads; their names begin with its name."""

    merge: Any
    """How flows are merged (Table 3b); sources in ``nlgraft.nn.fusion``."""
    dropnet_probability: float | None = Field(default=None, ge=0, le=1)
    """Dropnet: probability p_net (Zhu et al. 2020, Eq. 5) that training uses a single flow, each of the two
    with p_net/2; null: 1.0."""

    def _problems(self) -> Iterator[str]:
        for name, strategy in MERGE_SETTINGS.items():
            if getattr(self, name) is not None and self.merge != strategy:
                yield (
                    f"{name} has no effect with merge '{self.merge}': leave it out, or set merge to "
                    f"{strategy}"
                )


MERGE_SETTINGS: Mapping[str, MergeName] = {
    name: strategy
    for name in MergeConfig.model_fields
    for strategy in sorted(get_args(MergeName), key=len)  # of two that fit, the longer one
    if name.startswith(f"{strategy}_")
}
"""Settings that only one merge strategy reads, and that strategy; null stands for its default."""


class FusionConfig(MergeConfig):
    """Parallel branches from pretrained language models inside the layers (Park and Zhao 2021)."""

    merge: MergeName = "sum"
    """How the flows are merged (Table 3b); sources in ``nlgraft.nn.fusion``."""
    contexts: tuple[str, ...] = ()
    """Names of the contexts, each of which feeds one branch (several: Table 4); empty: no fusion."""
    side: Literal["source", "target", "both"] = "source"
    """Layers with branches: the encoder's, the decoder's (parallel to cross-attention), or both (Table
    3d)."""
    site: Site = "ffn"
    """Merge site: output of attention or of the FFN, before or after the norm that follows it (Table 3c)."""
    init: Init = "xavier"
    """Initial weights of each branch's last projection: as elsewhere, or zero (ours, after Houlsby et al.
    2019). A sum at the sites self and ffn then begins as the plain model."""
    # A constant: fingerprints of stored trainings hold it.
    dropnet_probabilities: None = None

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if len(set(self.contexts)) != len(self.contexts):
            yield f"contexts {list(self.contexts)} names one context twice"


Activation = Literal["relu", "gelu", "silu"]
Norm = Literal["pre", "post"]
Positions = Literal["none", "sinusoidal", "learned"]
Preset = Literal["tiny", "small", "base", "big"]
Encoding = Literal["joint", "separate", "own"]
CrossAttention = Literal["joint", "separated", "serial"]
Segments = Literal["none", "halves", "interleaved", "learned"]

NORM_EPS = 1e-5
"""Default epsilon of layer norms, added to the variance."""

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "d_model": 128,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
        "num_heads": 4,
        "ffn_dim": 512,
    },
    "small": {
        "d_model": 256,
        "num_encoder_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "ffn_dim": 1024,
    },
    "base": {
        "d_model": 512,
        "num_encoder_layers": 6,
        "num_decoder_layers": 6,
        "num_heads": 8,
        "ffn_dim": 2048,
    },
    "big": {
        "d_model": 1024,
        "num_encoder_layers": 6,
        "num_decoder_layers": 6,
        "num_heads": 16,
        "ffn_dim": 4096,
    },
}
"""Sizes of each preset; explicit fields override them."""
MAX_FINE_LAYERS = 12
"""Most layers of a fine encoder."""
_FINE_LAYERS: Condition = {"num_layers": tuple(range(1, MAX_FINE_LAYERS + 1))}
_ADAPTERS: Condition = {"ffn_adapter": ("per_layer", "top")}


def tupled(value: Any) -> Any:
    """Turn lists into tuples, which strict pydantic demands behind a before-validator."""
    if isinstance(value, dict):
        return {key: tupled(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return tuple(tupled(entry) for entry in value)
    return value


class FineEncoderConfig(StrictConfig):
    """The TRICE fine encoder over the coarse encoder's bank (Huang et al. 2021, Eqs. 11-14)."""

    READ_WHEN: ClassVar[ReadWhen] = {
        "cross_memory": (_FINE_LAYERS,),
        "norm": (_FINE_LAYERS,),
        "activation": (_FINE_LAYERS, _ADAPTERS),
        "dropout": (_FINE_LAYERS, _ADAPTERS),
        "init": (_FINE_LAYERS, _ADAPTERS),
    }

    num_layers: int = Field(default=0, ge=0, le=MAX_FINE_LAYERS)
    """Depth N_f; 0 leaves the coarse bank unchanged (Table 5)."""
    cross_memory: Literal["same_layer", "coarse", "none"] = "same_layer"
    """What the attention to other sources reads: their states in the same layer (paper), the coarse encoder's
    output in every layer (released code), or nothing (Table 5, without cross-attention)."""
    ffn_adapter: Literal["none", "per_layer", "top"] = "none"
    """Residual FFN blocks as a control for the added parameters (Table 5): one after every coarse layer,
    which matches the table's parameter count, or one on the encoder's output (released code)."""
    norm: Norm = "post"
    """Post-norm or pre-norm residual connections; pre-norm adds one final norm."""
    activation: Activation = "relu"
    """Non-linearity of the fine encoder's FFNs."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Residual, attention and activation dropout (0.1 each in the released code)."""
    init: Init = "xavier"
    """Initial weights of the last projection of every sublayer: as elsewhere, or zero (ours, after Houlsby et
    al. 2019), so that a residual connection begins as the identity, up to its norm."""


class WholeFineEncoderConfig(FineEncoderConfig):
    """The fine encoder as a part of the whole model."""

    # A constant: fingerprints of stored trainings hold it.
    self_scope: Literal["per_source"] = "per_source"


class LayersConfig(StrictConfig):
    """Layers and input embeddings of an encoder-decoder."""

    d_model: int = Field(default=512, ge=2)
    """Width of the residual stream."""
    num_encoder_layers: int = Field(default=6, ge=0)
    """Depth of the (coarse) encoder."""
    num_decoder_layers: int = Field(default=6, ge=1)
    """Depth of the decoder."""
    num_heads: int = Field(default=8, ge=1)
    """Attention heads; divides d_model."""
    ffn_dim: int = Field(default=2048, ge=1)
    """Inner width of the feed-forward blocks."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on embeddings and on every sublayer's output."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on attention weights."""
    activation_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout after the FFN's non-linearity."""
    activation: Activation = "relu"
    """Non-linearity of the feed-forward blocks (BERT, mBART: gelu)."""
    norm: Norm = "post"
    """Post-norm LN(x + f(x)), or pre-norm x + f(LN(x)) with one final norm per stack."""
    source_positions: Positions = "sinusoidal"
    """Position embeddings of the source (BERT, mBART: learned); positions restart at 0 for every source
    (TRICE, Eq. 8)."""
    target_positions: Positions = "sinusoidal"
    """Position embeddings of the target."""
    position_layout: Literal["halves", "interleaved", "marian", "fairseq"] = "halves"
    """Layout of sinusoids: halves (sines, then cosines; tensor2tensor), interleaved (Vaswani et al. 2017),
    marian (halves with Vaswani's frequencies), or fairseq (halves that count from 2, as in M2M-100 and
    NLLB)."""
    max_positions: int = Field(default=1024, ge=1)
    """Number of learned positions, in tokens; sinusoids have no limit."""
    has_source_scale: bool = True
    """If true, multiply source embeddings by sqrt(d_model)."""
    has_target_scale: bool = True
    """If true, multiply target embeddings by sqrt(d_model)."""
    has_embedding_norm: bool = False
    """If true, layer norm after the sum of the input embeddings (mBART, BERT)."""
    tying: Literal["none", "decoder", "all"] = "decoder"
    """Shared embedding tables: none; decoder input and output (SHDEMB, Edunov et al. 2019); or these and the
    source (SHARED)."""

    @property
    def num_encoder_parameters(self) -> int:
        """Weights of the matrices of the encoder's layers, without tables, fine encoder and contexts."""
        return self.num_encoder_layers * (4 * self.d_model**2 + 2 * self.d_model * self.ffn_dim)

    @property
    def num_layer_parameters(self) -> int:
        """Weights of the matrices of encoder and decoder, without tables, fine encoder and contexts."""
        decoder_layer = 8 * self.d_model**2 + 2 * self.d_model * self.ffn_dim
        return self.num_encoder_parameters + self.num_decoder_layers * decoder_layer

    @model_validator(mode="before")
    @classmethod
    def _fill_sizes(cls, data: Any) -> Any:  # pydantic hands over whatever was written
        if not isinstance(data, dict):
            return data
        preset = str(data.get("preset", "base"))
        filled = SIZES.get(preset, {}) | tupled(data)
        if preset in SIZES and "preset" not in cls.model_fields:
            filled.pop("preset", None)
        return filled

    def _problems(self) -> Iterator[str]:
        if self.d_model % self.num_heads:
            yield f"num_heads {self.num_heads} does not divide d_model {self.d_model}"
        if self.d_model % 2:
            yield f"d_model {self.d_model} is odd: sinusoids need an even width"


class ArchitectureConfig(LayersConfig):
    """Architecture of the encoder-decoder as a study sets it; its system adds what the method needs."""

    READ_WHEN: ClassVar[ReadWhen] = {
        "position_layout": ({"source_positions": ("sinusoidal",)}, {"target_positions": ("sinusoidal",)}),
        "max_positions": ({"source_positions": ("learned",)}, {"target_positions": ("learned",)}),
    }

    preset: Preset = "base"
    """Preset that supplies the sizes which are not given."""

    def transformer(self, **wiring: Any) -> TransformerConfig:
        """Describe the whole model.

        Args:
            **wiring: Fields of `TransformerConfig` that the method decides; they win over the study's.
        """
        architecture = as_read(self).model_dump(exclude={"preset"})
        return TransformerConfig(**(architecture | wiring))


class TransformerConfig(LayersConfig):
    """The encoder-decoder of which every system is a configuration.

    Besides the architecture it holds what the graph of a system decides and what released checkpoints need. A
    ``preset`` may be given instead of sizes.
    """

    norm_eps: float = Field(default=NORM_EPS, gt=0)
    """Added to the variance in the layer norms of the model's own layers (BERT: 1e-12)."""
    has_output_bias: bool = False
    """If true, the output projection has a bias (Marian's final_logits_bias)."""
    pad_id: int = Field(default=0, ge=0)
    """Padding token; its embedding starts at zero and stays there. Our tokenizers have 0."""
    num_sources: int = Field(default=1, ge=1)
    """Largest number of sources of an example (K)."""
    encoding: Encoding = "joint"
    """Self-attention over all sources at once; the encoder once per source (TRICE Table 6); or an encoder of
    its own for every source."""
    cross_attention: CrossAttention = "joint"
    """One attention over all memories (DualBART); one per memory with shared weights and the mean over the
    sources that are present (TRICE); or a sublayer of its own for each source, in their order (Dual
    Transformer, Junczys-Dowmunt and Grundkiewicz 2018)."""
    segments: Segments = "none"
    """Embedding of the source's index k: constant, the sinusoid of 1000k with sines then cosines and k from 0
    (released code), or alternating and k from 1 (paper, Eq. 8); or learned, initialised with halves."""
    fine_encoder: WholeFineEncoderConfig = WholeFineEncoderConfig()
    """The TRICE fine encoder."""
    contexts: dict[str, ContextConfig] = Field(default_factory=dict)
    """Pretrained encoders by name; each feeds fusion branches or replaces an embedding table."""
    fusion: FusionConfig = FusionConfig()
    """Branches from contexts inside the layers."""
    source_context: str | None = None
    """Context whose pooled states replace the source table (SRC-ELMO, SRC-FT, Direct); none: a table."""
    target_context: str | None = None
    """Causal context whose pooled states replace the target table (TGT-ELMO, TGT-FT); none: a table."""

    def _problems(self) -> Iterator[str]:
        """Find wiring that would train a model which sees the future, or skip a branch, without an error."""
        yield from super()._problems()
        if self.cross_attention == "serial" and self.fusion.contexts and self.fusion.side != "source":
            yield (
                f"cross_attention serial with fusion.side '{self.fusion.side}': a branch runs beside one "
                "attention; set fusion.side to source"
            )
        named = {self.source_context, self.target_context, *self.fusion.contexts}
        for name in named - {None, *self.contexts}:
            yield f"'{name}' is no context of the model; it has {', '.join(self.contexts) or 'none'}"
        target = self.contexts.get(self.target_context or "")
        if target and target.encoder.kind != "uni_lm":
            yield (
                f"target_context '{self.target_context}' with a bi-directional encoder "
                f"({target.encoder.kind}): it would see the future; use a causal one"
            )
        if target and target.pooling.kind.startswith("dynamic"):
            yield (
                f"target_context '{self.target_context}' with pooling.kind '{target.pooling.kind}': its "
                "weights depend on the whole target; use index, output or scalar_mix"
            )


class _SmallModelConfig(StrictConfig):
    """Sizes of a model of transformers that is trained from scratch."""

    d_model: int = Field(default=64, ge=2)
    """Width."""
    num_layers: int = Field(default=2, ge=1)
    """Depth."""
    num_heads: int = Field(default=2, ge=1)
    """Attention heads."""
    ffn_dim: int = Field(default=256, ge=1)
    """Inner width of the feed-forward blocks."""

    NUM_FFN_MATRICES: ClassVar[int] = 2

    @property
    def num_layer_parameters(self) -> int:
        """Weights of the matrices of all layers, without tables."""
        ffn = self.NUM_FFN_MATRICES * self.d_model * self.ffn_dim
        return self.num_layers * (4 * self.d_model**2 + ffn)


class BertConfig(_SmallModelConfig):
    """A BERT that is trained from scratch."""

    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on embeddings, attention weights and sublayers."""

    def _problems(self) -> Iterator[str]:
        if self.d_model % self.num_heads:
            yield f"num_heads {self.num_heads} does not divide d_model {self.d_model}"


class LlamaConfig(_SmallModelConfig):
    """A Llama that is trained from scratch."""

    NUM_FFN_MATRICES = 3

    ffn_dim: int = Field(default=192, ge=1)
    """Inner width of the feed-forward blocks, which have three matrices."""
    is_tied: bool = True
    """If true, input and output share one table."""

    def _problems(self) -> Iterator[str]:
        if self.d_model % (2 * self.num_heads):
            yield (
                f"d_model {self.d_model} is not an even multiple of num_heads {self.num_heads}, as rotary "
                "positions need"
            )


class ClassifierConfig(StrictConfig):
    """A sequence classifier on the body of a masked language model."""

    pooling: Literal["first", "mean"] = "first"
    """Classified state: that of the first token, or the mean over all tokens of the line."""
    has_hidden_layer: bool = True
    """If true, a dense layer with tanh precedes the output (BERT's pooler); if false, the head is linear."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout before the output."""
    is_body_trained: bool = True
    """If true, the body is finetuned; if false, it is frozen and only the head is trained."""


class BeamSearchConfig(StrictConfig):
    """Beam search as a study sets it; beam 1 is greedy search."""

    beam: int = Field(default=5, ge=1)
    """Hypotheses kept for each sentence."""
    max_length_ratio: float = Field(default=1.0, ge=0)
    """Longest hypothesis = ratio x (tokens of the translated source) + offset, without the end token."""
    max_length_offset: int = Field(default=50, ge=0)
    """Tokens added to the ratio (TRICE: source + 50; fairseq: ratio 0, offset 200)."""
    min_length: int = Field(default=0, ge=0)
    """Smallest number of tokens before the end token (Edunov et al. 2019: 60 for summaries)."""
    length_penalty: Literal["gnmt", "average", "none"] = "gnmt"
    """Divide the log-probability by ((5+n)/6)^alpha, by n^alpha, or not; n counts the end token."""
    alpha: float = Field(default=0.6, ge=0)
    """Strength of the length penalty (TRICE: 1.0 post-editing, 0.6 multi-source, 0 document; fairseq: 1)."""
    no_repeat_ngram: int = Field(default=0, ge=0)
    """Forbid n-grams of this size to occur twice in one hypothesis (3 for summaries); 0: allow them."""
    stopping: Literal["first", "exact"] = "first"
    """When the search for a sentence stops: first, once ``beam`` hypotheses have ended (fairseq); exact, once
    no live hypothesis can beat the worst of these (tensor2tensor, THUMT)."""
    batch_sentences: int = Field(default=128, ge=1)
    """Sentences that are decoded at once, after sorting the corpus by length."""

    def _problems(self) -> Iterator[str]:
        if self.length_penalty == "none" and self.alpha != type(self).model_fields["alpha"].default:
            yield (f"alpha {self.alpha} has no effect with length_penalty 'none': choose gnmt or average")
        if self.max_length_ratio == 0 and self.min_length > self.max_length_offset:
            yield (
                f"min_length {self.min_length} is more than the longest hypothesis, max_length_offset "
                f"{self.max_length_offset} with max_length_ratio 0"
            )


class GenerationConfig(BeamSearchConfig):
    """Beam search with a model's start and end tokens and the number of hypotheses to return."""

    num_return: int = Field(default=1, ge=1)
    """Hypotheses returned for each sentence, best first; at most beam."""
    start_id: int = 2
    """First decoder input."""
    end_id: int = 3
    """Token that ends a hypothesis."""
    forced_ids: tuple[int, ...] = ()
    """Decoder inputs that follow the first one and are given as well, such as a language (mBART-50, NLLB);
    they count as tokens in the length penalty, as in transformers, and are no part of a hypothesis."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.num_return > self.beam:
            yield f"num_return {self.num_return} is more than beam {self.beam}"

    @property
    def prompt(self) -> tuple[int, ...]:
        """All decoder inputs that are given."""
        return (self.start_id, *self.forced_ids)
