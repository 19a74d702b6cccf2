"""Contexts: which pretrained encoder feeds the model, how its layers are pooled, whether it is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

PoolingName = Literal["index", "output", "sum", "mean", "scalar_mix", "dynamic_cls", "dynamic_mean"]


class StrictConfig(BaseModel):
    """Base of the model's configs: frozen, unknown keys refused, attribute docstrings kept."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PoolingConfig(StrictConfig):
    """How the L+1 hidden states of an encoder become one (Park and Zhao Table 3a, Edunov et al. 3.2)."""

    kind: PoolingName = "index"
    """One hidden state; the last one before the softmax; sum or mean of layers 1..L; ELMo's mix of all
    layers; weights predicted per sentence from the first token or from the mean of each layer."""
    index: int = -2
    """Which hidden state (0: embeddings, -1: last), for kind index only; -2 is the paper's best."""
    weight_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Scalar mix: dropout on the softmaxed layer weights, whole layers at once (0.2 in the recipe)."""
    is_norm_affine: bool = True
    """Scalar mix: the layer norm shared by all layers has a gain and a bias (--elmo-affine)."""

    @model_validator(mode="after")
    def _check(self) -> PoolingConfig:
        if self.kind != "index" and "index" in self.model_fields_set and self.index != -2:
            raise ValueError(f"index {self.index} does nothing with kind '{self.kind}': set kind to index")
        if self.kind != "scalar_mix" and (self.weight_dropout or not self.is_norm_affine):
            raise ValueError(f"weight_dropout and is_norm_affine do nothing with kind '{self.kind}'")
        return self


class HuggingFaceEncoderConfig(StrictConfig):
    """An encoder, decoder-only or encoder-decoder checkpoint read by transformers."""

    kind: Literal["hugging_face"] = "hugging_face"
    """Which kind of encoder."""
    checkpoint: str
    """Hub name or local directory."""
    is_causal: bool = False
    """The checkpoint is a left-to-right model (GPT-2); checked when it is loaded."""


class UniLMConfig(StrictConfig):
    """Our own left-to-right language model (Edunov et al. 2019: pre-norm, no final norm, tied softmax)."""

    kind: Literal["uni_lm"] = "uni_lm"
    """Which kind of encoder."""
    vocab_size: int = Field(ge=1)
    """Rows of its table."""
    d_model: int = Field(default=1024, ge=2)
    """Width."""
    num_layers: int = Field(default=12, ge=1)
    """Depth."""
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
    def is_causal(self) -> bool:
        """A left-to-right model never sees the future."""
        return True

    @model_validator(mode="after")
    def _check(self) -> UniLMConfig:
        if self.d_model % self.num_heads or self.d_model % 2:
            raise ValueError(
                f"d_model {self.d_model} must be even and divisible by num_heads {self.num_heads}"
            )
        return self


class BiLMConfig(StrictConfig):
    """Our own two-tower bi-directional language model (Edunov et al. 2019; Baevski et al. 2019)."""

    kind: Literal["bi_lm"] = "bi_lm"
    """Which kind of encoder."""
    vocab_size: int = Field(ge=1)
    """Rows of its table."""
    d_model: int = Field(default=1024, ge=2)
    """Width of each tower."""
    num_layers: int = Field(default=12, ge=1)
    """Depth of each tower."""
    num_heads: int = Field(default=16, ge=1)
    """Attention heads."""
    ffn_dim: int = Field(default=4096, ge=1)
    """Inner width of the feed-forward blocks."""
    combiner: Literal["attention", "linear"] = "attention"
    """How the towers predict a token: attention over both, or one linear map of the neighbours' states."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout on embeddings and sublayers."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on attention weights (0.1 in pretraining)."""
    activation_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout after the FFN's non-linearity (0.05 in pretraining)."""

    @property
    def is_causal(self) -> bool:
        """The backward tower sees the future."""
        return False

    @model_validator(mode="after")
    def _check(self) -> BiLMConfig:
        if self.d_model % self.num_heads or self.d_model % 2:
            raise ValueError(
                f"d_model {self.d_model} must be even and divisible by num_heads {self.num_heads}"
            )
        return self


EncoderConfig = Annotated[HuggingFaceEncoderConfig | UniLMConfig | BiLMConfig, Field(discriminator="kind")]


class ContextConfig(StrictConfig):
    """One pretrained encoder in use."""

    encoder: EncoderConfig
    """The model behind it."""
    pooling: PoolingConfig = PoolingConfig()
    """How its layers become one memory."""
    is_frozen: bool = True
    """Frozen: no gradient, evaluation mode always, out of the optimiser. Else it is finetuned."""
    lr_multiplier: float = Field(default=1.0, gt=0)
    """Learning rate of a finetuned encoder relative to the rest."""
    has_frozen_dropout: bool = False
    """Keep a frozen encoder's dropout active while training (the released code of Park and Zhao)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the pooled states (0.3 in the released code of Park and Zhao)."""
    has_memory_norm: bool = False
    """Layer norm on the pooled states, for encoders whose inner states have none (GPT-2, mBART)."""
    prepend_id: int | None = None
    """Embeddings only: token put before every sentence, dropped after pooling (Edunov et al.: the end)."""
    max_tokens: int | None = Field(default=None, ge=2)
    """Longer inputs keep their first and last halves of this many tokens (512 for BERT); none: all."""

    @model_validator(mode="after")
    def _check(self) -> ContextConfig:
        if self.is_frozen and self.lr_multiplier != 1.0:
            raise ValueError(
                f"is_frozen with lr_multiplier {self.lr_multiplier}: a frozen encoder has no learning rate"
            )
        if not self.is_frozen and self.has_frozen_dropout:
            raise ValueError(
                "has_frozen_dropout with is_frozen false: a finetuned encoder has its dropout anyway"
            )
        return self
