"""A tiny released BERT with its tokenizer."""

from collections import Counter

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from tests.tiny_models import tiny_bert
from tests.unit.embedding_transfer.bert_configs import corpus


def wordpiece_of(lines):
    """Characters, inner characters and the most frequent words, behind BERT's special tokens."""
    words = Counter(word for line in lines for word in line.lower().split())
    characters = sorted({character for word in words for character in word})
    tokens = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens += [*characters, *(f"##{character}" for character in characters)]
    tokens += [word for word, _ in words.most_common(40) if word not in tokens]
    whole = tokenizers.Tokenizer(
        models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    )
    whole.normalizer = normalizers.BertNormalizer(lowercase=True)
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    whole.decoder = decoders.WordPiece()
    whole.add_special_tokens(tokens[:1] + tokens[2:6])
    return whole


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A directory as released ones are: a tokenizer that lower-cases, weights with a prediction head."""
    directory = tmp_path_factory.mktemp("bert")
    whole = wordpiece_of(corpus("train").text())
    whole.save(str(directory / "tokenizer.json"))
    size = whole.get_vocab_size()
    tiny_bert(vocab_size=size, max_position_embeddings=128).save_pretrained(directory)
    return directory
