"""Invariants F10, F12, F13, F38 and F39 on the real model: stages, freezing, files."""

import random
from copy import deepcopy

import numpy as np
import pytest
import torch

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.inputs import Inputs, with_foreign_source
from nlgraft.nn.fusion import Dropnet
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import FusionConfig, TransformerConfig
from nlgraft.text.batches import Ragged
from nlgraft.training.loop import make_optimizer, train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.models import read_model, write_model
from nlgraft.training.step import Training
from nlgraft.training.train_config import LearnedParameters, ParameterGroup, Side, TrainConfig, View
from nlgraft.training.train_state import Progress
from nlgraft.training.views import Encoded, Seq2SeqData
from nlgraft.training.weights import carry_over
from tests.tensors import differing
from tests.tiny_models import CASES, VOCAB, batch_of, build, examples, logits_of
from tests.unit.training.toy import make_context

FINE = r"^fine_encoder\."


def two_stages():
    """The plain model of the single-source stage, and the TRICE model of the next."""
    second = build("trice").float()
    first_config = second.config.model_dump() | {
        "num_sources": 1,
        "fine_encoder": {},
        "segments": "none",
        "cross_attention": "joint",
    }
    torch.manual_seed(8)
    return Seq2Seq(TransformerConfig(**first_config), VOCAB, VOCAB), second


def two_sources():
    draw = np.random.default_rng(0)
    roles = ("source 0", "source 1", "target")
    rows = {
        role: [draw.integers(8, VOCAB, draw.integers(2, 7)).tolist() for _ in range(24)] for role in roles
    }
    view = View(sources=(Side(stream="source 0"), Side(stream="source 1")))
    return Seq2SeqData(
        Encoded({role: Ragged.of(stream) for role, stream in rows.items()}), view, batch_tokens=60
    )


def test_the_second_stage_begins_as_the_first_one_ended():
    """Invariant F10: what is carried is bit-equal, new is the fine encoder alone, no optimiser state."""
    first, second = two_stages()
    fresh = deepcopy(second.state_dict())
    report = carry_over(second, first.state_dict(), fresh=[FINE])
    assert report.initialised == sorted(name for name in fresh if name.startswith("fine_encoder."))
    assert report.initialised
    assert report.dropped == []
    assert set(report.carried) == set(first.state_dict())
    for name, tensor in second.state_dict().items():
        assert torch.equal(tensor, fresh[name] if name in report.initialised else first.state_dict()[name])
    assert not make_optimizer(second, TrainConfig()).state
    assert Progress().step == 0


def test_only_the_fine_encoder_learns_ten_times_as_fast(tmp_path):
    """Invariant F12: the trained set is the fine encoder's names; what is frozen keeps its digest."""
    _, model = two_stages()
    config = TrainConfig(max_steps=3, batch_tokens=60, average_last=1, peak_lr=0.01, warmup_steps=0)
    before, fine = deepcopy(model.state_dict()), LearnedParameters(only=(FINE,))
    train(Training(model, Seq2SeqObjective(), two_sources(), config, fine), make_context(tmp_path))
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("fine_encoder.")}
    assert 0 < len(trained) < len(list(model.parameters()))
    assert differing(before, model) == trained


def test_the_fine_encoder_has_its_own_learning_rate(tmp_path, monkeypatch):
    """Invariant F12: two groups, ratio 10 at every step of warm-up and decay."""
    _, model = two_stages()
    ratios = []
    original = torch.optim.AdamW.step

    def watch(self, *args, **kwargs):
        rates = {tuple(group["names"]): group["lr"] for group in self.param_groups}
        fine = {rate for names, rate in rates.items() if names[0].startswith("fine_encoder.")}
        other = {rate for names, rate in rates.items() if not names[0].startswith("fine_encoder.")}
        ratios.append((fine, other))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", watch)
    groups = (ParameterGroup(pattern=FINE, lr_multiplier=10.0),)
    config = TrainConfig(max_steps=5, batch_tokens=60, average_last=1, warmup_steps=2)
    faster = LearnedParameters(groups=groups)
    train(Training(model, Seq2SeqObjective(), two_sources(), config, faster), make_context(tmp_path))
    assert len(ratios) == 5
    for fine, other in ratios:
        assert len(fine) == len(other) == 1
        assert fine.pop() == pytest.approx(10 * other.pop(), rel=1e-12)


def test_adversarial_sources():
    """Invariant F13: one source becomes another example's sentence everywhere, as the seed says."""
    draw = np.random.default_rng(0)
    # few different sentences, so that a foreign row may well have the same words
    streams = [Ragged.of([*draw.integers(4, 7, 1).tolist(), 3] for _ in range(50)) for _ in range(2)]
    inputs = Inputs(streams, {"prlm": streams[0]})
    for seed in range(20):
        foreign = with_foreign_source(inputs, 1, seed)
        assert foreign.sources[0] is streams[0]
        assert foreign.contexts is inputs.contexts
        assert len(foreign) == 50
        assert all(a.tolist() != b.tolist() for a, b in zip(foreign.sources[1], streams[1], strict=True))
        assert {tuple(row.tolist()) for row in foreign.sources[1]} <= {
            tuple(row.tolist()) for row in streams[1]
        }
    again = with_foreign_source(inputs, 1, 19)
    assert again.sources[1].values.tolist() == foreign.sources[1].values.tolist()
    assert with_foreign_source(inputs, 1, 3).sources[1].values.tolist() != again.sources[1].values.tolist()
    pair = Inputs([Ragged.of([[5], [6, 7]])])
    assert [row.tolist() for row in with_foreign_source(pair, 0, 0).sources[0]] == [[6, 7], [5]]


def test_adversarial_sources_that_cannot_be_are_refused():
    with pytest.raises(DataError, match="source 2 of examples with 1"):
        with_foreign_source(Inputs([Ragged.of([[5], [6]])]), 2, 0)
    with pytest.raises(DataError, match="all 3 sentences of source 0 are alike"):
        with_foreign_source(Inputs([Ragged.of([[5, 3]] * 3)]), 0, 0)


@pytest.mark.parametrize("family", list(CASES))
def test_a_saved_model_gives_the_same_logits(family, tmp_path):
    """Invariant F38: built again from its artifact alone, contexts of transformers included."""
    model = build(family).float()
    write_model(model, tmp_path)
    batch = batch_of(examples(model))
    assert torch.equal(logits_of(model, batch), logits_of(read_model(tmp_path).eval(), batch))


def test_dropnet_draws_from_torch_alone():
    """Invariant F39: the trial's seed decides, Python's and numpy's generators neither matter nor move."""
    dropnet = Dropnet(FusionConfig(contexts=("c",), merge="dropnet"), 4).train()
    base, flow = torch.zeros(1, 1, 4), torch.ones(1, 1, 4)

    def draws(seed, noise):
        torch.manual_seed(seed)
        random.seed(noise)
        before = random.getstate()
        values = [float(dropnet(base, [flow])[0, 0, 0]) for _ in range(40)]
        assert random.getstate() == before
        return values

    assert draws(1, noise=1) == draws(1, noise=2)
    assert draws(1, noise=1) != draws(2, noise=1)
