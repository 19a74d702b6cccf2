"""A training whose state is divided over workers is that of one worker, and so are its checkpoints."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from nlgraft.nn.conversion.checkpoint import from_hugging_face
from nlgraft.nn.model_config import LlamaConfig
from nlgraft.nn.transformers_lms import fresh_llama
from nlgraft.pipeline.stage import TrialStopped
from nlgraft.text.batches import Ragged
from nlgraft.training.causal_text import (
    LineEnds,
    PackedText,
    Prompted,
    PromptedText,
    causal_losses,
    causal_objective,
    target_objective,
)
from nlgraft.training.loop import train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.step import RowsFirst, Training
from nlgraft.training.token_distillation import AlignedText, Contexts, Segmented, TokenDistillation
from nlgraft.training.train_config import (
    ALL_LEARNED,
    FinetunedPart,
    LearnedParameters,
    LoraConfig,
    ParameterGroup,
    TrainConfig,
)
from nlgraft.training.weights import load_weights
from tests.tiny_models import CASES, build, tiny_translator
from tests.unit.training.toy import Recorder, ToyData, dev_loss_of, make_context
from tests.worker_groups import run_group, run_groups_apart

SETTINGS = {
    "max_steps": 6,
    "peak_lr": 0.02,
    "warmup_steps": 2,
    "accumulation": 2,
    "clip_norm": 0.5,
    "eval_every_steps": 3,
    "weight_decay": 0.01,
}
IDS = [[4 + (3 * row + place) % 20 for place in range(1 + row * row % 9)] for row in range(40)]
LINES, DEV_LINES = Ragged.of(IDS), Ragged.of(IDS[:9])
LINE_ENDS = LineEnds(2, 2)


def language_model(*, is_tied, seed):
    """Windows of 1 to 8 tokens; the last batch has fewer than four of them."""
    config = LlamaConfig(d_model=8, num_layers=2, num_heads=2, ffn_dim=12, is_tied=is_tied)
    model = fresh_llama(config, 25, end_id=2, max_tokens=8, seed=seed).double()
    text = PackedText(LINES.lengths + 1, 30, 1, LINES, LINE_ENDS, max_tokens=8)
    return Training(model, causal_objective, text, TrainConfig(**SETTINGS))


def tied_with_new_rows(seed):
    training = language_model(is_tied=True, seed=seed)
    return training, RowsFirst(3, {"model.model.embed_tokens.weight": torch.arange(25) % 3 == 0})


def untied(seed):
    training = language_model(is_tied=False, seed=seed)
    config = training.config.model_copy(update={"activation_checkpointing": True, "average_last": 2})
    group = ParameterGroup(pattern="lm_head", lr_multiplier=3.0, num_frozen_steps=2)
    learned = LearnedParameters(frozen=("mlp",), groups=(group,))
    return Training(training.model, training.objective, training.data, config, learned), None


def distilled(seed):
    """One new token stands for the first two of every line."""
    new = Ragged.of([24, *row[2:]] if len(row) > 1 else row for row in IDS)
    sizes = 1 + (np.arange(25) == 24)
    text = AlignedText(Segmented(LINES, 2, sizes), Segmented(new, 2, sizes))
    edges, _ = text.replaced(sizes > 1)
    data = Contexts(text, (edges - 1, edges), max_tokens=7, num_contexts=5, seed=1)
    teacher, student = (language_model(is_tied=False, seed=number).model for number in (9, seed))
    tables = ("model.model.embed_tokens.weight", "model.lm_head.weight")
    rows_first = RowsFirst(9, dict.fromkeys(tables, torch.arange(25) == 24))
    learned = LearnedParameters(only=tables)
    return Training(student, TokenDistillation(teacher), data, TrainConfig(**SETTINGS), learned), rows_first


def translating(seed):
    """Each line and its reverse, whose loss alone counts."""
    pairs = Prompted(LINE_ENDS.around(LINES), Ragged.of([*row[::-1], 2] for row in IDS))
    text = PromptedText(LINES.lengths + 1, 30, 1, pairs)
    model = language_model(is_tied=False, seed=seed).model
    return Training(model, target_objective, text, TrainConfig(**SETTINGS)), None


def translator(model, learned=ALL_LEARNED):
    return Training(model.train(), Seq2SeqObjective(0.1), ToyData(), TrainConfig(**SETTINGS), learned), None


def with_adapters(seed):
    part = FinetunedPart(lora=LoraConfig(rank=2))
    return translator(build(SEQ2SEQ, seed), LearnedParameters(part=part, part_of=r"^encoder\."))


def without_dropout(case, **settings):
    names = ("dropout", "attention_dropout", "activation_dropout")
    return replace(case, config=case.config.model_copy(update=dict.fromkeys(names, 0.0) | settings))


def language_model_as_encoder(seed):
    case = CASES["lamate"]()
    contexts = {"prlm": case.config.contexts["prlm"].model_copy(update={"is_frozen": False})}
    return translator(build(without_dropout(case, contexts=contexts), seed))


SEQ2SEQ = without_dropout(CASES["dual_transformer"]())
TRAININGS = {
    "tied_with_new_rows": tied_with_new_rows,
    "untied": untied,
    "distilled": distilled,
    "translating": translating,
    "with_adapters": with_adapters,
    "language_model_as_encoder": language_model_as_encoder,
    "seq2seq": lambda seed: translator(build(SEQ2SEQ, seed)),
    "mbart": lambda seed: translator(
        from_hugging_face(tiny_translator("mbart", seed, dropout=0.0))[0].double()
    ),
}


def dev_loss(model):
    if hasattr(model, "encode"):
        return dev_loss_of(model, ToyData(num=12, seed=9), 12)
    nats, tokens = causal_losses(model, DEV_LINES, LINE_ENDS, 8).sum(0)
    return {"dev/loss": float(nats / tokens)}


def train_one(name, root, rank=0, size=1, stop_at=None, *, is_sharded=False):
    training, rows_first = TRAININGS[name](1 + rank)  # unlike initial weights: the first worker's count
    recorder = Recorder(stop_at if rank == 0 else None)
    context = make_context(root, recorder, rank=rank, world_size=size, is_sharded=is_sharded)
    return train(training, context, evaluate=dev_loss, rows_first=rows_first), training.model


def work(rank, size, name, root, stop_at):
    if stop_at:
        with pytest.raises(TrialStopped):
            train_one(name, root, rank, size, stop_at, is_sharded=size > 1)
        return
    outcome, model = train_one(name, root, rank, size, is_sharded=size > 1)
    sums = [float(tensor.sum()) for tensor in model.state_dict().values()]
    (root / f"outcome-{rank}.json").write_text(json.dumps([outcome.curves, outcome.num_tokens, sums]))


def run_groups(root):
    """Begin with one worker, go on with two, end with as many as the directory is named after."""
    [(name, size)] = [path.name.split("-") for path in root.iterdir()]
    TRAININGS[name](1)  # what it imports, each fork has
    run_group(1, work, name, root / f"{name}-{size}", 2)
    run_group(2, work, name, root / f"{name}-{size}", 4)
    shutil.copytree(root / f"{name}-{size}", root / "of two")
    run_group(int(size), work, name, root / f"{name}-{size}", None)


def values(curves, name):
    return [[step, value] for step, value, _ in curves[name]]


@pytest.mark.parametrize(
    ("name", "size"),
    [("tied_with_new_rows", 2), *(pytest.param(name, 4, marks=pytest.mark.slow) for name in TRAININGS)],
)
def test_a_divided_training_is_that_of_one_worker(name, size, tmp_path, monkeypatch):
    """Workers have unequal numbers of tokens, or none; groups go on from states of other sizes."""
    directory = tmp_path / "groups" / f"{name}-{size}"
    directory.mkdir(parents=True)
    run_groups_apart(__name__, directory.parent)
    monkeypatch.setattr("nlgraft.training.loop.REPORT_EVERY_STEPS", 1)
    single, model = train_one(name, tmp_path / "one")
    resumed, same = train_one(name, directory.parent / "of two")
    outcomes = [json.loads((directory / f"outcome-{rank}.json").read_text()) for rank in range(size)]
    for curves, num_tokens in [(resumed.curves, resumed.num_tokens), *(outcome[:2] for outcome in outcomes)]:
        assert num_tokens == single.num_tokens
        for metric in ("train/loss", "train/gradient_norm", "dev/loss"):
            assert values(curves, metric) == [
                [step, pytest.approx(value, rel=1e-9)] for step, value in values(single.curves, metric)
            ]
    weights = load_weights(directory / "artifact-0" / "model.safetensors")
    for key, tensor in model.state_dict().items():
        assert torch.allclose(weights[key], tensor, rtol=1e-8, atol=1e-10), key
        assert torch.allclose(same.state_dict()[key], tensor, rtol=1e-8, atol=1e-10), key
    assert all(outcome[2] == outcomes[0][2] for outcome in outcomes), "all workers end with the whole model"
