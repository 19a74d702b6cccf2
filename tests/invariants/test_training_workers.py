"""One and two workers with the same global batches give the same training to floating point."""

import json

import numpy as np
import pytest
import torch

from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.shares import SHARE, Share
from nlgraft.evaluation.translation import translate
from nlgraft.nn.context_config import BiLMConfig
from nlgraft.nn.language_models import BiLM
from nlgraft.nn.masked_lm_models import Classifier
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import ClassifierConfig, GenerationConfig, TransformerConfig
from nlgraft.pipeline.stage import TrialStopped
from nlgraft.text.batches import Ragged
from nlgraft.training.language_model_training import (
    TextData,
    evaluate_language_model,
    language_model_objective,
)
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.masked_lm_training import LabelledData, classification_objective, fresh_encoder
from nlgraft.training.masked_text import MaskingIds
from nlgraft.training.step import RowsFirst, Training
from nlgraft.training.train_config import TrainConfig
from nlgraft.training.weights import load_weights
from tests.unit.training.toy import VOCABULARY, Recorder, ToyData, ToyModel, dev_loss, make_context
from tests.worker_groups import run_group, run_groups_apart

SETTINGS = {
    "max_steps": 14,
    "peak_lr": 0.02,
    "warmup_steps": 4,
    "accumulation": 2,
    "eval_every_steps": 5,
}
LAST = TrainConfig(**SETTINGS, average_last=1)


def train_worker(root, rank, world_size, stop_at=None):
    # 37 rows in batches of 6 end with a batch of one row: the second worker has none of it
    model = ToyModel(1 + rank).double()  # unlike initial weights: the first worker's count
    context = make_context(
        root,
        Recorder(stop_at=stop_at if rank == 0 else None),
        rank=rank,
        world_size=world_size,
    )
    config = TrainConfig(**SETTINGS)
    # the first half with some rows alone: stopped and resumed within it
    first = RowsFirst(7, {"target.weight": torch.arange(VOCABULARY) % 2 == 0})
    training = Training(model, Seq2SeqObjective(0.1), ToyData(), config)
    outcome = train(training, context, evaluate=dev_loss, rows_first=first)
    return outcome, model


def train_language_model(root, rank, world_size):
    sentences = Ragged.of([[4 + (row + place) % 8 for place in range(1 + row % 5)] for row in range(37)])
    torch.manual_seed(1 + rank)
    config = BiLMConfig(vocab_size=12, d_model=8, num_layers=1, num_heads=2, ffn_dim=8, dropout=0.0)
    model, data = BiLM(config).double(), TextData(sentences, batch_tokens=30)
    context = make_context(root / "lm", rank=rank, world_size=world_size)
    return train(Training(model, language_model_objective, data, LAST), context)


def train_classifier(root, rank, world_size):
    """Of two classes of lines; the head of the masked language model gets no gradient."""
    lines = Ragged.of([[5 + (row + place) % 6 for place in range(1 + row % 5)] for row in range(37)])
    torch.manual_seed(1 + rank)
    body = fresh_encoder(
        TransformerConfig(preset="tiny", d_model=8, ffn_dim=8, num_heads=2, dropout=0.0), 12, has_head=True
    )
    model = Classifier(body, 2, ClassifierConfig(dropout=0.0)).double()
    ids = MaskingIds(pad=0, unk=1, mask=4, begin=2, end=3, normal=np.arange(5, 12))
    data = LabelledData(lines, np.arange(37) % 2, ids, batch_tokens=30)
    context = make_context(root / "classifier", rank=rank, world_size=world_size)
    return train(Training(model, classification_objective, data, LAST), context, save=lambda *_: None)


class CountedInputs(Inputs):
    """Inputs that tell how many batches were made of them."""

    num_batches = 0

    def pack(self, rows):
        object.__setattr__(self, "num_batches", self.num_batches + 1)
        return super().pack(rows)


def decode_worker(rank, size, root):
    """Decode and measure 37 lines in 8 batches of at most 5, as one worker of a group."""
    torch.manual_seed(1)
    sizes = {"d_model": 16, "ffn_dim": 16, "num_heads": 2, "preset": "tiny"}
    model = Seq2Seq(TransformerConfig(**sizes), 12, 12).eval()
    lines = Ragged.of([[4 + (row + place) % 8 for place in range(1 + row % 6)] for row in range(37)])
    inputs = CountedInputs([lines])
    token = SHARE.set(Share(rank, size))
    translations = translate(model, inputs, GenerationConfig(beam=3, batch_sentences=5, max_length_offset=4))
    data = TextData(lines, batch_tokens=30)
    language_model = BiLM(BiLMConfig(vocab_size=12, d_model=8, num_layers=1, num_heads=2, ffn_dim=8))
    losses = evaluate_language_model(language_model, data).statistics["loss"].tolist()
    SHARE.reset(token)
    scored = [[[best.ids, best.score] for best in line] for line in translations.hypotheses]
    result = [scored, losses, inputs.num_batches]
    (root / f"decoded-{size}-{rank}.json").write_text(json.dumps(result))
    return result


GROUPS = (("two", 2, 6, True), ("many", 2, 4, False), ("many", 3, 9, False))
"""Directory, size, step at which the first worker is asked to stop, and whether they go on then."""


def work(rank, size, root, stop_at, is_continued):
    """Train as one worker of a group; write what came out."""
    with pytest.raises(TrialStopped) as stopped:
        train_worker(root, rank, size, stop_at)
    result = [stopped.value.reason]
    if is_continued:
        outcome, model = train_worker(root, rank, size)
        others = [train_other(root, rank, size) for train_other in (train_language_model, train_classifier)]
        others = [[other.curves, other.num_tokens] for other in others]
        result += [outcome.curves, outcome.num_tokens, model.mix.bias.tolist(), others]
    (root / f"outcome-{size}-{rank}.json").write_text(json.dumps(result))


def run_groups(root):
    """Run all groups, one after another."""
    for name, size, stop_at, is_continued in GROUPS:
        (root / name).mkdir(exist_ok=True)
        run_group(size, work, root / name, stop_at, is_continued)
    run_group(2, decode_worker, root)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Where all groups have trained."""
    root = tmp_path_factory.mktemp("groups")
    run_groups_apart(__name__, root)
    return root


def outcomes_of(directory, size):
    return [json.loads((directory / f"outcome-{size}-{rank}.json").read_text()) for rank in range(size)]


def losses(curves, name="train/loss"):
    return [value for _, value, _ in curves[name]]


def test_two_workers_equal_one(root, tmp_path, monkeypatch):
    """Invariant R2: the loss curve, the dev curve, the tokens counted and the weights.

    On the way the first worker is asked to stop: both do, and both resume from the checkpoint that it left.
    Language models and classifiers likewise.
    """
    monkeypatch.setattr("nlgraft.training.loop.REPORT_EVERY_STEPS", 1)
    outcomes = outcomes_of(root / "two", 2)
    single, model = train_worker(tmp_path / "one", 0, 1)
    further_singles = [
        train_other(tmp_path, 0, 1) for train_other in (train_language_model, train_classifier)
    ]
    for reason, curves, num_tokens, _, further in outcomes:
        assert reason.startswith("rung 1")
        assert losses(curves) == pytest.approx(losses(single.curves), rel=1e-10)
        assert losses(curves, "dev/loss") == pytest.approx(losses(single.curves, "dev/loss"), rel=1e-10)
        assert num_tokens == single.num_tokens
        for (curves, num_tokens), further_single in zip(further, further_singles, strict=True):
            assert losses(curves) == pytest.approx(losses(further_single.curves), rel=1e-10)
            assert num_tokens == further_single.num_tokens
    weights = load_weights(root / "two" / "artifact-0" / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.allclose(weights[name], tensor, rtol=1e-8, atol=1e-10), name
    # every worker ends with the same weights, and only the first one writes
    assert outcomes[0][3] == outcomes[1][3]
    assert not list((root / "two" / "artifact-1").iterdir())


def test_two_workers_decode_half_each_and_have_all(root, tmp_path):
    """Invariant R2: the same hypotheses, scores and losses of all lines on each of them."""
    hypotheses, alone_losses, num_batches = decode_worker(0, 1, tmp_path)
    assert num_batches == 8
    for rank in (0, 1):
        shared = json.loads((root / f"decoded-2-{rank}.json").read_text())
        assert shared == [hypotheses, alone_losses, 4]


def test_a_training_goes_on_with_another_number_of_workers(root, tmp_path, monkeypatch):
    """Invariant R2: begun by two, continued by three and ended by one, as when nodes come and go."""
    monkeypatch.setattr("nlgraft.training.loop.REPORT_EVERY_STEPS", 1)
    for size in (2, 3):
        stopped = [["rung 1: worse than the best third"]] * size
        assert outcomes_of(root / "many", size) == stopped
    resumed, model = train_worker(root / "many", 0, 1)
    alone, same = train_worker(tmp_path / "one", 0, 1)
    for name in ("train/loss", "dev/loss"):
        assert [step for step, _, _ in resumed.curves[name]] == [step for step, _, _ in alone.curves[name]]
        assert losses(resumed.curves, name) == pytest.approx(losses(alone.curves, name), rel=1e-10)
    assert (resumed.num_tokens, resumed.num_examples) == (alone.num_tokens, alone.num_examples)
    for name, tensor in same.state_dict().items():
        assert torch.allclose(model.state_dict()[name], tensor, rtol=1e-8, atol=1e-10), name
