"""Tiny random models of every family, and examples for them."""

import random
from dataclasses import dataclass

import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.context_config import BiLMConfig, HuggingFaceEncoderConfig, OwnEmbeddingsConfig, UniLMConfig
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig

VOCAB = 40
SOURCES = [[5, 6, 7, 8, 3], [9, 4, 3], [4, 5, 6, 3], [8, 3]]
SIZES = {"d_model": 16, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 2, "ffn_dim": 24}
LM = {"vocab_size": VOCAB, "d_model": 12, "num_layers": 2, "num_heads": 2, "ffn_dim": 20}
UNI = UniLMConfig(**LM)
BI = BiLMConfig(**LM)
HIDDEN = 20


def hugging_face(kind: str = "bert") -> torch.nn.Module:
    """A tiny random base model of transformers; hidden width 20, weights large enough to matter."""
    import transformers

    plain = {"hidden_size": HIDDEN, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 24}
    many = {"vocab_size": VOCAB, "max_position_embeddings": 64, "initializer_range": 0.3}
    two_sides = {
        "d_model": HIDDEN,
        "encoder_layers": 3,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "init_std": 0.3,
        "vocab_size": VOCAB,
        "max_position_embeddings": 64,
    }
    config = {
        "bert": lambda: transformers.BertConfig(**plain, **many),
        "electra": lambda: transformers.ElectraConfig(embedding_size=8, **plain, **many),
        "xlm_roberta": lambda: transformers.XLMRobertaConfig(**plain, **many),
        "distilbert": lambda: transformers.DistilBertConfig(
            dim=HIDDEN, n_heads=2, n_layers=3, hidden_dim=24, **many
        ),
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=HIDDEN,
            n_head=2,
            n_layer=3,
            vocab_size=VOCAB,
            n_positions=64,
            initializer_range=0.3,
            bos_token_id=2,
            eos_token_id=3,
        ),
        "llama": lambda: transformers.LlamaConfig(**plain, **many, pad_token_id=0),
        "mbart": lambda: transformers.MBartConfig(**two_sides),
        "marian": lambda: transformers.MarianConfig(**two_sides, pad_token_id=0),
        "pegasus": lambda: transformers.PegasusConfig(**two_sides),
    }[kind]()
    return transformers.AutoModel.from_config(config).eval()


def checkpoint(kind: str) -> HuggingFaceEncoderConfig:
    """A configuration's description of such a model; the weights are handed over beside it."""
    return HuggingFaceEncoderConfig(checkpoint=f"tiny-{kind}")


@dataclass(frozen=True)
class Case:
    """A configuration and which transformers models stand behind its contexts."""

    config: TransformerConfig
    kinds: dict[str, str]


TWO_SOURCES = {"num_sources": 2}
TRICE = {
    **TWO_SOURCES,
    "fine_encoder": {"num_layers": 1},
    "segments": "halves",
    "cross_attention": "separated",
}


def family_config(family: str, encoder=None, **settings) -> TransformerConfig:
    """The wiring of a published family, around a pretrained encoder if it has one."""
    index = {"encoder": encoder, "pooling": {"kind": "index", "index": -1 if family == "bert_fused" else -2}}
    mix = {"encoder": encoder, "pooling": {"kind": "scalar_mix"}}
    groups = {"encoder": encoder, "pooling": {"kind": "groups", "group_size": 1}, "has_mlp": True}
    tuned = {"encoder": encoder, "pooling": {"kind": "output"}, "is_frozen": False}
    # our own models begin every sentence with the end token, as fairseq's do
    first = {"prepend_id": 3} if encoder is not None and encoder.kind != "hugging_face" else {}
    source, target = ({"tying": "none", f"{side}_context": "lm"} for side in ("source", "target"))
    families = {
        "transformer": {},
        "dualbart": TWO_SOURCES,
        "trice": TRICE,
        "prlm": {"contexts": {"prlm": index}, "fusion": {"contexts": ("prlm",)}},
        "bert_fused": {
            "contexts": {"prlm": index},
            "fusion": {"contexts": ("prlm",), "side": "both", "site": "self", "merge": "dropnet"},
        },
        "direct": {"contexts": {"prlm": index}, "source_context": "prlm", "has_source_scale": False},
        "lamate": {"contexts": {"prlm": groups}, "source_context": "prlm", "has_source_scale": False},
        "src_elmo": {**source, "contexts": {"lm": mix | first}, "source_positions": "none"},
        "src_ft": {**source, "contexts": {"lm": tuned | first}},
        "tgt_elmo": {**target, "contexts": {"lm": mix}},
        "tgt_ft": {**target, "contexts": {"lm": tuned}},
    }
    return TransformerConfig(**{**families[family], **settings})


def _case(family: str, kind: str | None = None, **settings) -> Case:
    encoders = {"uni": UNI, "bi": BI, "own_embeddings": OwnEmbeddingsConfig(width=HIDDEN)}
    encoder = encoders.get(kind) or (checkpoint(kind) if kind else None)
    config = family_config(family, encoder, **{**SIZES, **settings})
    is_own = kind is None or kind in encoders
    return Case(config, {} if is_own else dict.fromkeys(config.contexts, kind))


def _several() -> Case:
    contexts = {name: {"encoder": checkpoint(name)} for name in ("bert", "gpt2")}
    contexts["uni"] = {"encoder": UNI, "pooling": {"kind": "index", "index": -1}}
    fusion = {"contexts": ("bert", "gpt2", "uni"), "merge": "gate", "side": "both"}
    config = family_config("trice", **SIZES, contexts=contexts, fusion=fusion, norm="pre")
    return Case(config, {"bert": "bert", "gpt2": "gpt2"})


MBART_STYLE = {
    "norm": "pre",
    "activation": "gelu",
    "source_positions": "learned",
    "target_positions": "learned",
    "has_embedding_norm": True,
    "tying": "all",
}
"""Settings that make a model an mBART in all but size (Liu et al. 2020)."""

CASES = {
    "transformer": lambda: _case("transformer"),
    "transformer_pre": lambda: _case("transformer", norm="pre", has_output_bias=True),
    "dualbart": lambda: _case("dualbart", **MBART_STYLE),
    "dualbart_separate": lambda: _case("dualbart", encoding="separate"),
    "dual_transformer": lambda: _case(
        "dualbart", num_sources=3, encoding="own", cross_attention="serial", norm="pre"
    ),
    "trice": lambda: _case("trice"),
    "trice_mbart": lambda: _case("trice", num_sources=3, **MBART_STYLE),
    "trice_coarse_joint": lambda: _case(
        "trice",
        fine_encoder={"num_layers": 2, "cross_memory": "coarse", "norm": "pre"},
    ),
    "ffn_adapter": lambda: _case("trice", fine_encoder={"ffn_adapter": "per_layer"}),
    "prlm": lambda: _case("prlm", "electra"),
    "own_embeddings": lambda: _case("prlm", "own_embeddings"),
    "bert_fused": lambda: _case("bert_fused", "bert"),
    "several": _several,
    "direct": lambda: _case("direct", "distilbert"),
    "lamate": lambda: _case("lamate", "llama"),
    "src_elmo": lambda: _case("src_elmo", "bi"),
    "src_ft": lambda: _case("src_ft", "bi"),
    "src_elmo_bert": lambda: _case("src_elmo", "xlm_roberta"),
    "src_elmo+shdemb": lambda: _case("src_elmo", "bi", tying="decoder"),
    "src_ft+shdemb": lambda: _case("src_ft", "bi", tying="decoder"),
    "tgt_elmo": lambda: _case("tgt_elmo", "uni"),
    "tgt_ft": lambda: _case("tgt_ft", "uni"),
    "one_lm_both_sides": lambda: _case("tgt_ft", "uni", source_context="lm"),
}
"""Every family of presets, most of them twice."""


def build(case: Case | str, seed: int = 0) -> Seq2Seq:
    """A model in float64 and evaluation mode with weights that make every part matter."""
    case = CASES[case]() if isinstance(case, str) else case
    torch.manual_seed(seed)
    encoders = {name: HuggingFaceEncoder(hugging_face(kind)) for name, kind in case.kinds.items()}
    model = Seq2Seq(case.config, VOCAB, VOCAB, encoders).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and "mix" not in name:  # biases and gains start at 0 and 1
                parameter += 0.1 * torch.randn_like(parameter)
    return model


@dataclass(frozen=True)
class Example:
    """One example as token lists; the target has its start but not its end."""

    sources: list[list[int]]
    target: list[int]
    contexts: dict[str, list[int]]


def examples(model: Seq2Seq, count: int = 3, seed: int = 0, num_sources: int | None = None) -> list[Example]:
    """Examples of mixed lengths."""
    draw = random.Random(seed)

    def words() -> list[int]:
        return [draw.randrange(8, VOCAB) for _ in range(draw.randrange(2, 7))]

    k = num_sources or model.config.num_sources
    return [
        Example(
            [[*words(), 3] for _ in range(k)],
            [2, *words()],
            {name: [4, *words(), 5] for name in model.config.fusion.contexts},
        )
        for _ in range(count)
    ]


def batch_of(rows: list[Example], extra_padding: int = 0) -> Batch:
    """Examples as a batch; extra columns of padding go to the first source."""
    sources = [Tokens.from_lists(list(column)) for column in zip(*(row.sources for row in rows), strict=True)]
    if extra_padding:
        parts = (sources[0].ids, sources[0].valid)
        ids, valid = (torch.nn.functional.pad(part, (0, extra_padding)) for part in parts)
        sources[0] = Tokens(ids, valid)
    target = Tokens.from_lists([row.target for row in rows])
    contexts = {name: Tokens.from_lists([row.contexts[name] for row in rows]) for name in rows[0].contexts}
    return Batch(sources, target, target.ids, contexts)


def logits_of(model: Seq2Seq, batch: Batch) -> torch.Tensor:
    """Logits of the whole target, [B, J, V]."""
    return model.logits(model(batch))


def tiny_translator(architecture: str, seed: int = 0, **settings) -> torch.nn.Module:
    """A tiny random encoder-decoder of transformers, set as released ones are; every tensor matters."""
    import transformers

    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 32}
    sizes |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")}
    sizes |= {"vocab_size": VOCAB, "scale_embedding": True, "init_std": 0.3}
    torch.manual_seed(seed)
    kind, options = {
        "mbart": ("MBart", {"activation_function": "gelu", "decoder_start_token_id": 6}),
        "marian": (
            "Marian",
            {
                "activation_function": "swish",
                "pad_token_id": 29,
                "decoder_start_token_id": 29,
                "eos_token_id": 3,
                "forced_eos_token_id": 3,
            },
        ),
        "bart": ("Bart", {"scale_embedding": False}),
        "m2m_100": ("M2M100", {"encoder_layerdrop": 0, "decoder_layerdrop": 0}),
        "pegasus": ("Pegasus", {"activation_function": "relu"}),
    }[architecture]
    model_class = "MarianMTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration"
    config = getattr(transformers, f"{kind}Config")(**sizes | options | settings)
    model = getattr(transformers, model_class)(config)
    if architecture == "marian":
        model.final_logits_bias.normal_()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # biases and gains start at 0 and 1
                parameter += 0.1 * torch.randn_like(parameter)
            if "embed_positions" in name and architecture in ("mbart", "bart"):
                parameter[:2] = torch.randn_like(parameter[:2])  # rows that nothing reads
    return model.eval()


def tiny_decoder(
    vocab: int = 12, seed: int = 0, sharpness: float = 3.0, end_bias: float | None = None
) -> Seq2Seq:
    """A tiny random model for `SOURCES`: its logits are so many times larger, its end has this bias."""
    torch.manual_seed(seed)
    sizes = {"d_model": 16, "num_encoder_layers": 1, "num_decoder_layers": 2, "num_heads": 2, "ffn_dim": 24}
    config = TransformerConfig(**sizes, has_output_bias=end_bias is not None)
    model = Seq2Seq(config, 12, vocab).double().eval().requires_grad_(False)
    model.output_projection.weight.data *= sharpness
    if end_bias is not None:
        model.output_projection.bias.data[3] = end_bias
    return model


def tiny_bert(seed: int = 0, **settings) -> torch.nn.Module:
    """A tiny random BERT of transformers with its prediction head; every tensor matters."""
    import transformers

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    sizes |= {"vocab_size": VOCAB, "max_position_embeddings": 64, "initializer_range": 0.3}
    torch.manual_seed(seed)
    model = transformers.BertForMaskedLM(transformers.BertConfig(**sizes | settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and gains start at 0 and 1
                parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()
