"""A model and data small enough for hand-made tests of the loop; they keep the contracts of nn and data."""

import numpy as np
import torch
from torch import nn

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.stage import NullReporter, Stage, StageContext
from nlgraft.training.losses import segment_losses

VOCABULARY = 11


class ToyModel(nn.Module):
    """Says the next token from the mean source embedding and the token before."""

    def __init__(self, seed=0, dropout=0.0):
        super().__init__()
        torch.manual_seed(seed)
        self.source = nn.Embedding(VOCABULARY, 8)
        self.target = nn.Embedding(VOCABULARY, 8)
        self.mix = nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(8, VOCABULARY, bias=False)
        self.output.weight = self.target.weight

    def forward(self, batch):
        source = batch.sources[0]
        valid = source.valid[..., None].float()
        mean = (self.source(source.ids) * valid).sum(1) / valid.sum(1).clamp(min=1)
        target = self.target(batch.target_input.ids)
        both = torch.cat([mean[:, None].expand(-1, target.shape[1], -1), target], -1)
        return self.norm(self.dropout(torch.tanh(self.mix(both))))

    @property
    def output_projection(self):
        return self.output

    def logits(self, hidden):
        return self.output(hidden)


class ToyData:
    """Pairs whose target repeats the source; lengths 1 to 6; batches of at most six rows."""

    def __init__(self, num=37, seed=3, rows=6):
        rng = np.random.default_rng(seed)
        self.sources = [rng.integers(4, VOCABULARY, rng.integers(1, 7)).tolist() for _ in range(num)]
        self.rows = rows

    def epoch(self, index):
        order = np.random.default_rng([11, index]).permutation(len(self.sources))
        return [order[start : start + self.rows] for start in range(0, len(order), self.rows)]

    def batch(self, rows, epoch):
        sources = [self.sources[row] for row in rows]
        outputs = Tokens.from_lists([[*source, 3] for source in sources])
        return Batch([Tokens.from_lists(sources)], Tokens.from_lists([[2, *s] for s in sources]), outputs.ids)

    def in_order(self):
        rows = np.arange(len(self.sources))
        return [(chunk, self.batch(chunk, 0)) for chunk in np.array_split(rows, 5)]


def dev_loss_of(model, data, num_segments):
    """Nats per token of some data."""
    nats, tokens = segment_losses(model, data.in_order(), num_segments).sum(0)
    return {"dev/loss": float(nats / tokens)}


def dev_loss(model):
    """Nats per token of twelve lines."""
    return dev_loss_of(model, ToyData(num=12, seed=9), 12)


class Recorder(NullReporter):
    """Keeps what is reported; stops or fails at a step when told to."""

    def __init__(self, stop_at=None, fail_at=None):
        self.reports, self.stop_at, self.fail_at = [], stop_at, fail_at

    def report(self, stage, step, metrics):
        self.reports.append((stage, step, dict(metrics)))
        if self.fail_at is not None and step >= self.fail_at:
            raise KeyboardInterrupt

    def should_stop(self):
        is_stopped = self.stop_at is not None and self.reports[-1][1] >= self.stop_at
        return "rung 1: worse than the best third" if is_stopped else None


def make_context(root, reporter=None, seed=5, rank=0, world_size=1, *, is_sharded=False):
    directory = root / f"artifact-{rank}"
    directory.mkdir(parents=True, exist_ok=True)
    return StageContext(
        stage=Stage(name="finetune", run="some.module:train", seed=seed),
        directory=directory,
        checkpoints=Checkpoints(LocalFiles(root), "checkpoints/finetune", is_writable=rank == 0),
        reporter=reporter or NullReporter(),
        rank=rank,
        world_size=world_size,
        is_sharded=is_sharded,
    )
