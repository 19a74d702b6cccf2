"""Tiny models of many architectures of transformers, and a plan for their 30 tokens."""

from functools import partial

import torch
import transformers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    GPT2Config,
    GPT2LMHeadModel,
    MarianConfig,
    MarianMTModel,
    MBartConfig,
    MBartForConditionalGeneration,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.tokenizers.tokenizer_json import read_tokenizer_json

V = 30
SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def bert_config(**changes):
    return BertConfig(
        **({"vocab_size": V, "max_position_embeddings": 32, **SMALL, "pad_token_id": 0} | changes)
    )


def seq2seq_options():
    return {
        "vocab_size": V,
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 16,
        "decoder_ffn_dim": 16,
        "max_position_embeddings": 32,
        "bos_token_id": 2,
        "forced_eos_token_id": 1,
        **IDS,
    }


def marian(**changes):
    options = seq2seq_options() | {"share_encoder_decoder_embeddings": True} | changes
    return MarianMTModel(MarianConfig(**options))


def t5(**changes):
    options = {"vocab_size": V, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2, **IDS}
    return T5ForConditionalGeneration(T5Config(**(options | changes)))


def bert2bert():
    config = EncoderDecoderConfig.from_encoder_decoder_configs(bert_config(), bert_config())
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 2, 0, 1
    return EncoderDecoderModel(config)


def gpt2(**changes):
    options = {"vocab_size": V, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**(options | {"bos_token_id": 1, "eos_token_id": 1} | changes)))


ROPE = {
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": V,
    "pad_token_id": 0,
    "max_position_embeddings": 32,
}
DECODERS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2", "gemma3": "Gemma3"}
"""Families of large language models."""


def decoder(name, **changes):
    kind = f"{DECODERS[name]}TextConfig" if name == "gemma3" else f"{DECODERS[name]}Config"
    options = SMALL | ROPE | {"bos_token_id": 2, "eos_token_id": [1, 4]} | changes
    return getattr(transformers, f"{DECODERS[name]}ForCausalLM")(getattr(transformers, kind)(**options))


def gemma3_with_vision():
    """Tables and ids lie in a part of the configuration, and files have names of an earlier version."""
    text = SMALL | ROPE | {"bos_token_id": 2, "eos_token_id": 1}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=SMALL | {"image_size": 8, "patch_size": 4},
        mm_tokens_per_image=4,
        boi_token_index=5,
        eoi_token_index=6,
        image_token_index=7,
    )
    return transformers.Gemma3ForConditionalGeneration(config)


MODERNBERT_IDS = [f"{role}_token_id" for role in ("pad", "bos", "eos", "cls", "sep")]
MODELS = {
    "bert": lambda: BertForMaskedLM(bert_config()),
    "bert_untied": lambda: BertForMaskedLM(bert_config(tie_word_embeddings=False)),
    "bert_without_head": lambda: BertModel(bert_config(), add_pooling_layer=False),
    "roberta": lambda: RobertaForMaskedLM(
        RobertaConfig(vocab_size=V, max_position_embeddings=32, **SMALL, pad_token_id=1)
    ),
    "gpt2": gpt2,
    "gpt2_untied": lambda: gpt2(tie_word_embeddings=False),
    "marian": marian,
    "marian_two_tables": lambda: marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=20),
    "mbart": lambda: MBartForConditionalGeneration(MBartConfig(**seq2seq_options())),
    "t5": t5,
    "t5_untied": lambda: t5(tie_word_embeddings=False),
    "bert2bert": bert2bert,
    "gemma3_with_vision": gemma3_with_vision,
}
for name in DECODERS:
    MODELS[f"{name}_tied"] = partial(decoder, name, tie_word_embeddings=True)
    MODELS[f"{name}_untied"] = partial(decoder, name, tie_word_embeddings=False)


MORE_MODELS = {
    "t5_encoder": lambda: transformers.T5EncoderModel(t5().config),
    "bert_two_heads": lambda: transformers.BertForPreTraining(bert_config()),
    "albert": lambda: transformers.AlbertForMaskedLM(
        transformers.AlbertConfig(vocab_size=V, embedding_size=4, **SMALL)
    ),
    "electra": lambda: transformers.ElectraForMaskedLM(
        transformers.ElectraConfig(vocab_size=V, embedding_size=4, **SMALL)
    ),
    "modernbert": lambda: transformers.ModernBertForMaskedLM(
        transformers.ModernBertConfig(vocab_size=V, **SMALL, **dict.fromkeys(MODERNBERT_IDS, 0))
    ),
    "mpnet": lambda: transformers.MPNetForMaskedLM(transformers.MPNetConfig(vocab_size=V, **SMALL)),
    "m2m100": lambda: transformers.M2M100ForConditionalGeneration(
        transformers.M2M100Config(**seq2seq_options() | {"pad_token_id": 1})
    ),
}
"""Architectures that hide their tables elsewhere, or compute positions from a padding id that must stay."""
EVERY = MODELS | MORE_MODELS


def noisy(name):
    """A model of an architecture whose every weight and bias matters, as it is after a reload."""
    torch.manual_seed(0)
    model = EVERY[name]().eval()
    if isinstance(model, BertModel):
        model = BertModel(bert_config()).eval()  # what was built without its pooler is loaded with one
    with torch.no_grad():
        for part, tensor in model.state_dict(keep_vars=True).items():
            if tensor.requires_grad or part == "final_logits_bias":
                tensor.add_(0.1 * torch.randn_like(tensor))
    return model


def size_of(model, side):
    module = getattr(model, f"get_{side}")() if model.config.is_encoder_decoder else model
    return module.get_input_embeddings().weight.shape[0]


def has_one_size(model):
    return not model.config.is_encoder_decoder or size_of(model, "encoder") == size_of(model, "decoder")


def tokenizer(tokens):
    return read_tokenizer_json(
        {"model": {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(tokens)}}}
    )


OLD_TOKENS = ["[PAD]", "</s>", "<s>", *(f"w{i}" for i in range(V - 3))]
NEW_TOKENS = ["<s>", *(f"w{i}" for i in range(10)), "w1w2", "[PAD]", "w3w4", "</s>", "##zz"]


def toy_plan(size, new=NEW_TOKENS):
    return build_plan(tokenizer(OLD_TOKENS[:size]), tokenizer(new), "random")
