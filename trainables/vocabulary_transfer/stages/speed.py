"""Speed of a classifier by length of the input."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.classifier import Classifier
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.text.corpora import read_corpus
from nlgraft.training.classification_training import (
    LabelledBatch,
    LabelledData,
    classification_objective,
    index_labels,
    read_classifier,
)
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.vocabulary_transfer.kinds import SPEED
from trainables.vocabulary_transfer.metrics import NUM_LENGTHS

LINES = 16
"""Lines per batch."""
BATCHES = 2
"""Number of timed runs per group; the fastest counts, since other load only slows a run down."""


def measure(context: StageContext) -> None:
    """Time inference and training on quarters of dev by length in characters, the same lines in all arms."""
    _, inputs = SPEED.read(context)
    model, labels = read_classifier(inputs.classifier, inputs.body)
    model = model.to(context.device)
    corpus = read_corpus(inputs.corpus / "dev")
    assert corpus.labels is not None
    lines = read_encoded(inputs.encoded, "dev").stream(TEXT)
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))
    data = LabelledData(lines, index_labels(corpus.labels, labels, "dev"), ids, batch_tokens=1)
    order = np.argsort([len(line) for line in corpus.sources[0]], kind="stable")

    def infer(batch: LabelledBatch) -> None:
        with torch.inference_mode():
            model.eval()(batch.tokens)

    def learn(batch: LabelledBatch) -> None:
        classification_objective(model.train(), batch).loss_sum.backward()
        model.zero_grad()

    scores = {}
    signature = f"batch:{LINES}|best-of:{BATCHES}|device:{torch.device(context.device).type}"
    tasks: dict[str, Callable[[LabelledBatch], None]] = {"inference": infer, "training": learn}
    for group, rows in enumerate(np.array_split(order, NUM_LENGTHS), start=1):
        batch = data.batch(rows[:: max(1, len(rows) // LINES)][:LINES]).to(context.device)
        for task, run in tasks.items():
            name = f"{task}/lines_per_s.length_{group}"
            value = len(batch.classes) / _fastest_s(lambda run=run, batch=batch: run(batch), model)
            scores[name] = Score(name, value, len(batch.classes), "maximize", signature)
    write_metrics(context.directory, scores)


def _fastest_s(run: Callable[[], None], model: Classifier) -> float:
    """Return the time of the fastest run in seconds, after one warm-up run."""
    device = next(model.parameters()).device
    seconds = []
    for _ in range(1 + BATCHES):
        began_s = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began_s)
    return min(seconds[1:])
