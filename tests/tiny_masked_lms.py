"""Hand-made WordPiece vocabularies, text that they cut in known ways, and tiny masked language models."""

from pathlib import Path
from typing import NamedTuple

import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers

from nlgraft.nn.masked_lm_models import MaskedLM, TransformersMaskedLM
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.text.tokenizers import TOKENIZER_FILE, encode_words
from nlgraft.training.masked_lm_training import fresh_encoder
from nlgraft.training.masked_text import TEXT, WORD_SIZES, WORDS, MaskingIds
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary

WIDTH = 16
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    "a",
    "b",
    "ab",
    "the",
    "ima",
    "##gine",
    "nothing",
    "motor",
    "##cycle",
    "sing",
    "##er",
    ".",
    "'",
    "s",
]
LETTERS = "abcdefghilmnorsty"
LINES = [
    "the imagine nothing",
    "motorcycle singer. a b",
    "nothing singer's the ab",
    "imagine motorcycle the b",
]
KINDS = ("bert", "roberta", "distilbert", "electra", "modernbert", "ours")
"""Kinds of masked language models."""
_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


class Words(NamedTuple):
    """A tokenizer with its vocabulary."""

    directory: Path
    vocabulary: Vocabulary
    ids: MaskingIds

    def encode(self, lines: list[str], max_tokens: int = 60) -> Encoded:
        encoded = encode_words(self.directory / TOKENIZER_FILE, lines, max_tokens)
        return Encoded({TEXT: encoded.ids, WORDS: encoded.words, WORD_SIZES: encoded.word_sizes})


def write_words(directory: Path, surfaces: list[str]) -> Words:
    made = tokenizers.Tokenizer(models.WordPiece({s: i for i, s in enumerate(surfaces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(SPECIALS)
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / TOKENIZER_FILE))
    vocabulary = load_vocabulary(directory)
    return Words(directory, vocabulary, MaskingIds.of(vocabulary))


def pieces(directory: Path) -> Words:
    """A vocabulary of words, pieces of words and all single characters."""
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    return write_words(directory, [*SPECIALS, *PIECES, *(x for x in letters if x not in PIECES)])


def letters(directory: Path) -> Words:
    """Another vocabulary of the same text: single characters."""
    return write_words(directory, [*SPECIALS, ".", "'", *LETTERS, *(f"##{x}" for x in LETTERS)])


def masked_lm(size: int, kind: str = "bert", seed: int = 0, pad_id: int = 0) -> MaskedLM:
    """A model with random weights and biases, in evaluation mode."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": size, "pad_token_id": pad_id}
    if kind == "ours":
        config = TransformerConfig(
            preset="tiny", d_model=WIDTH, ffn_dim=32, num_heads=2, num_decoder_layers=1, has_output_bias=True
        )
        model: MaskedLM = fresh_encoder(config, size, has_head=True, seed=seed)
    elif kind == "distilbert":
        architecture = transformers.DistilBertConfig(dim=WIDTH, n_layers=2, n_heads=2, hidden_dim=32, **sizes)
        model = TransformersMaskedLM(transformers.DistilBertForMaskedLM(architecture))
    elif kind == "electra":
        architecture = transformers.ElectraConfig(embedding_size=WIDTH, hidden_size=24, **_SIZES, **sizes)
        model = TransformersMaskedLM(transformers.ElectraForMaskedLM(architecture))
    else:
        name = {"bert": "Bert", "roberta": "Roberta", "modernbert": "ModernBert"}[kind]
        architecture = getattr(transformers, f"{name}Config")(hidden_size=WIDTH, **_SIZES, **sizes)
        model = TransformersMaskedLM(getattr(transformers, f"{name}ForMaskedLM")(architecture))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()
