"""A real BERT-type checkpoint on real English text."""

from __future__ import annotations

import torch
import transformers

from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from tests.tensors import assert_near


def test_hidden_states_are_transformers_own(minilm, captions):
    """Equal to 1e-5 at every real token of every layer."""
    tokens = Tokens.from_lists(transformers.AutoTokenizer.from_pretrained(minilm)(captions)["input_ids"])
    encoder = HuggingFaceEncoder.load(HuggingFaceEncoderConfig(checkpoint=str(minilm)))
    released = transformers.AutoModel.from_pretrained(minilm, dtype=torch.float32)
    with torch.no_grad():
        states = encoder(tokens)
        for index, row in enumerate(tokens.ids):
            alone = row[tokens.valid[index]][None]
            expected = released(input_ids=alone, output_hidden_states=True).hidden_states
            assert len(expected) == len(states.layers) == 7
            for layer, reference in zip(states.layers, expected, strict=True):
                real = layer[index, : alone.shape[1]]
                assert_near(real, reference[0], 1e-5)
