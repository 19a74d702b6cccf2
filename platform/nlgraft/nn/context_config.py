"""Contexts: pretrained encoders that feed a model, the pooling of their layers, and their training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from nlgraft.basics.strict_config import StrictConfig

Precision = Literal["fp16", "bf16", "fp32"]
PoolingName = Literal[
    "index", "output", "cloze", "towers", "mean", "scalar_mix", "dynamic_cls", "dynamic_mean", "groups"
]


class PoolingConfig(StrictConfig):
    """Pooling of an encoder's L+1 hidden states (Park and Zhao, Table 3a; Edunov et al., section 2.1)."""

    kind: PoolingName = "index"
    """index: one hidden state; output: the last one before the softmax; cloze: that of pretraining, which
    does not see its own token (bi_lm); towers: the output plus the last states of both towers (bi_lm); mean:
    of layers 1..L; scalar_mix: ELMo's mixture of all states; dynamic_cls, dynamic_mean: layer weights
    predicted per sentence from the first token or from the mean of each layer; groups: LaMaTE's mixture of
    the last states of groups of layers. Sources in ``nlgraft.nn.pooling``."""
    index: int = -2
    """Hidden state that kind index reads (0: embeddings, -1: last); -2 is the best one in Park and Zhao
    (2021)."""
    weight_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Scalar mix: dropout on the layer weights after the softmax, which removes whole layers (0.2 in the
    recipe of Edunov et al. 2019)."""
    num_last: int | None = Field(default=None, ge=1)
    """Mean: number of layers, counted from the last; null: all of them, without the embeddings."""
    # Left out of fingerprints where it is null: these are older.
    group_size: int | None = Field(default=None, ge=1, exclude_if=lambda size: size is None)
    """Groups: layers of each; must divide the number of layers."""
    # A constant: fingerprints of stored trainings hold it.
    is_norm_affine: Literal[True] = True
    is_centred: bool = False
    """Scalar mix of a frozen encoder: subtract each layer's mean over the training text before the norm
    (ours, not in the paper)."""

    def _problems(self) -> Iterator[str]:
        if self.kind != "index" and "index" in self.model_fields_set and self.index != -2:
            yield f"index {self.index} has no effect with kind '{self.kind}': set kind to index"
        if self.kind != "scalar_mix" and (self.weight_dropout or self.is_centred):
            yield f"weight_dropout and is_centred have no effect with kind '{self.kind}'"
        if self.num_last is not None and self.kind != "mean":
            yield (f"num_last {self.num_last} has no effect with kind '{self.kind}': set kind to mean")
        if (self.group_size is not None) != (self.kind == "groups"):
            yield f"group_size {self.group_size} with kind '{self.kind}': kind groups alone has it"

    def selection(self) -> PoolingConfig:
        """Reduce the pooling to the layers that it reads; poolings that read the same layers become equal."""
        kind = "mean" if self.kind.startswith("dynamic") else self.kind
        if kind == "index":
            return PoolingConfig(kind=kind, index=self.index)
        return PoolingConfig(kind=kind, num_last=self.num_last, group_size=self.group_size)


class HuggingFaceEncoderConfig(StrictConfig):
    """An encoder, decoder-only or encoder-decoder checkpoint read by transformers."""

    kind: Literal["hugging_face"] = "hugging_face"
    """Kind of encoder."""
    checkpoint: str | None = None
    """Hub name or local directory; null if an earlier stage provides the model."""
    revision: str | None = None
    """Commit, tag or branch of a hub name; null: main."""
    # A constant: stored models hold it. Only language models of ours are read token by token.
    is_causal: Literal[False] = False


class _LanguageModelSizes(StrictConfig):
    """Sizes and dropouts of our own language models (Edunov et al. 2019)."""

    vocab_size: int | None = Field(default=None, ge=1)
    """Number of tokens; null: that of the tokenizer or of the trained model."""
    d_model: int = Field(default=1024, ge=2)
    """Width, of each tower if there are two."""
    num_layers: int = Field(default=12, ge=1)
    """Depth, of each tower if there are two."""
    num_heads: int = Field(default=16, ge=1)
    """Attention heads."""
    ffn_dim: int = Field(default=4096, ge=1)
    """Inner width of the feed-forward blocks."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on embeddings and sublayers."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on attention weights (0.1 in pretraining)."""
    activation_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout after the FFN's non-linearity (0.05 in pretraining)."""

    @property
    def num_layer_parameters(self) -> int:
        """Weights of the matrices of all layers, without tables."""
        return self.num_layers * (4 * self.d_model**2 + 2 * self.d_model * self.ffn_dim)

    def _problems(self) -> Iterator[str]:
        if self.d_model % self.num_heads or self.d_model % 2:
            yield (f"d_model {self.d_model} must be even and divisible by num_heads {self.num_heads}")


class UniLMConfig(_LanguageModelSizes):
    """Our own left-to-right language model: pre-norm, no final norm, tied softmax (Edunov et al. 2019)."""

    kind: Literal["uni_lm"] = "uni_lm"
    """Kind of encoder."""


class BiLMConfig(_LanguageModelSizes):
    """Our own two-tower bi-directional language model (Edunov et al. 2019; Baevski et al. 2019)."""

    kind: Literal["bi_lm"] = "bi_lm"
    """Kind of encoder."""
    combiner: Literal["attention", "linear"] = "attention"
    """How the two towers predict a token: attention over their states, or one linear map of the neighbouring
    states."""

    @property
    def num_layer_parameters(self) -> int:
        """Weights of the matrices of both towers and of the combiner, without tables."""
        towers = 2 * super().num_layer_parameters
        if self.combiner == "linear":
            return towers + 2 * self.d_model**2
        return towers + 4 * self.d_model**2 + 2 * self.d_model * self.ffn_dim


class OwnEmbeddingsConfig(StrictConfig):
    """The model's own source embeddings, with their positions, in place of a pretrained encoder.

    A control: a branch that reads them has the parameters of one that reads an encoder of the same width, but
    nothing that the model does not know.
    """

    kind: Literal["own_embeddings"] = "own_embeddings"
    """Kind of encoder."""
    width: int = Field(ge=1)
    """Width of the states. If the model's differs, a fixed random map with orthogonal rows or columns
    converts between them."""


LanguageModelConfig = Annotated[UniLMConfig | BiLMConfig, Field(discriminator="kind")]
EncoderConfig = Annotated[
    HuggingFaceEncoderConfig | UniLMConfig | BiLMConfig | OwnEmbeddingsConfig, Field(discriminator="kind")
]


class ContextConfig(StrictConfig):
    """A pretrained encoder and how a model uses it."""

    encoder: EncoderConfig
    """The pretrained model."""
    pooling: PoolingConfig = PoolingConfig()
    """Pooling of its layers into one state per token."""
    is_frozen: bool = True
    """If true, the encoder gets no gradient and stays in evaluation mode; if false, it is finetuned."""
    lr_multiplier: float = Field(default=1.0, gt=0)
    """Learning rate of a finetuned encoder relative to the rest of the model."""
    has_frozen_dropout: bool = False
    """If true, a frozen encoder's dropout stays active in training (released code of Park and Zhao 2021)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the pooled states (0.3 in the released code of Park and Zhao)."""
    # Left out of fingerprints where it is false: these are older.
    has_mlp: bool = Field(default=False, exclude_if=lambda has_mlp: not has_mlp)
    """In place of embeddings: if true, the states pass through a perceptron with one hidden layer (LaMaTE);
    if false, through a linear map where the widths differ."""
    # A constant, as in `PoolingConfig`.
    has_memory_norm: Literal[False] = False
    prepend_id: int | None = None
    """Embeddings only: id of a token put before every sentence and dropped after pooling (Edunov et al. 2019:
    EOS)."""
    max_tokens: int | None = Field(default=None, ge=2)
    """Longest input; longer ones are truncated to their first and last halves of this many tokens in all (512
    for BERT). Null: no limit."""

    def _problems(self) -> Iterator[str]:
        if isinstance(self.encoder, OwnEmbeddingsConfig):
            read = {"encoder", "dropout"}
            idle = [
                name
                for name, info in type(self).model_fields.items()
                if name not in read and getattr(self, name) != info.default
            ]
            if idle:
                yield f"{', '.join(idle)} have no effect with encoder.kind 'own_embeddings'"
        if self.is_frozen and self.lr_multiplier != 1.0:
            yield (
                f"is_frozen with lr_multiplier {self.lr_multiplier}: a frozen encoder has no learning rate"
            )
        if not self.is_frozen and self.pooling.is_centred:
            yield (
                "pooling.is_centred with is_frozen false: a finetuned encoder's states move away from the "
                "means, which are taken before training; leave is_centred out"
            )
        if not self.is_frozen and self.has_frozen_dropout:
            yield ("has_frozen_dropout with is_frozen false: a finetuned encoder always has its dropout")
