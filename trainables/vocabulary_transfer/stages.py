"""Text of the task: stratified splits, removal of overlapping lines, and statistics of its vocabularies."""

from __future__ import annotations

import timeit
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.modes import synchronize
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.text.corpora import Corpus, read_corpus, write_corpus
from nlgraft.text.corpus_config import SPLITS
from nlgraft.text.tokenizers import TOKENIZER_FILE, encode_words
from nlgraft.training.masked_lm_training import (
    LabelledBatch,
    LabelledData,
    classification_objective,
    index_labels,
    read_classifier,
)
from nlgraft.training.masked_text import TEXT, MaskingIds
from nlgraft.training.seeds import generator_for
from nlgraft.vocab.tokenizers.encoding import self_information
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.vocabulary_transfer.config import SplitConfig
from trainables.vocabulary_transfer.graph import APART, MEASURES, SPEED, SPLIT
from trainables.vocabulary_transfer.metrics import MEASURES as METRICS
from trainables.vocabulary_transfer.metrics import NUM_LENGTHS

SPLIT_SEED = 0
"""Seed of the split, the same in all trials, so that every arm is tested on the same lines."""
SPLIT_SIGNATURE = "of train, dev and test"
TEST_SIGNATURE = "of test"


def split(context: StageContext) -> None:
    """Pool the examples of a corpus and split them again, stratified by label."""
    settings, inputs = SPLIT.read(context)
    corpora = [read_corpus(inputs.pooled / name) for name in SPLITS]
    streams = {}
    for role in corpora[0].streams():
        streams[role] = [line for corpus in corpora for line in corpus.streams()[role]]
    pooled = Corpus.from_streams(streams)
    for name, rows in stratified(streams["label"], streams["source 0"], settings.split).items():
        write_corpus(pooled.at(rows), context.directory / name)


def leave_out(context: StageContext) -> None:
    """Write a corpus without the lines on which another one is evaluated.

    Lines in dev or test of the other corpus are removed from train; lines in its test are removed from dev,
    which selects a model.

    Raises:
        DataError: Nothing is left of train or dev.
    """
    _, inputs = APART.read(context)
    dev = {*read_corpus(inputs.left_out / "dev").sources[0]}
    test = {*read_corpus(inputs.left_out / "test").sources[0]}
    scored = {"train": dev | test, "dev": test, "test": set()}
    for name in SPLITS:
        corpus = read_corpus(inputs.corpus / name)
        kept = [row for row, line in enumerate(corpus.sources[0]) if line not in scored[name]]
        if not kept:
            raise DataError(
                f"data.downstream is scored on every line of {name} of data.unlabelled or data.upstream; "
                "give text there on which nothing is scored, or leave data.unlabelled out"
            )
        write_corpus(corpus.at(kept), context.directory / name)


def stratified(
    labels: Sequence[str],
    lines: Sequence[str],
    config: SplitConfig,
) -> dict[str, list[int]]:
    """Assign examples to train, dev and test in the same proportions for each label, to within one group.

    Examples with the same text form a group that is never divided, so that no test line occurs in train. A
    group belongs to its most frequent label.

    Raises:
        DataError: A label has too few examples to be in every split.
    """
    counts = Counter(labels)
    kept = sorted(label for label, _ in counts.most_common(config.num_labels))
    total = sum(counts[label] for label in kept)
    kept_share = 1.0 if config.num_examples is None else min(1.0, config.num_examples / total)
    edges = np.array([0, config.train, (1 + config.train) / 2, 1.0])
    split_rows: dict[str, list[int]] = {name: [] for name in SPLITS}
    for label, groups in _groups(labels, lines, kept).items():
        order = generator_for(SPLIT_SEED, "split", label).permutation(len(groups))
        shuffled = [groups[index] for index in order]
        sizes = np.cumsum([0, *map(len, shuffled)])
        # for each edge, the number of groups whose cumulated examples come nearest to it
        goals = np.round(kept_share * sizes[-1] * edges)
        ends = np.abs(sizes[None, :] - goals[:, None]).argmin(axis=1)
        if min(np.diff(ends)) < 1:
            raise DataError(
                f"label {label!r} has {sizes[ends[-1]]} examples of {ends[-1]} texts, too few for train, dev "
                "and test; keep fewer labels (data.split.num_labels) or more examples (num_examples)"
            )
        for name, start, end in zip(SPLITS, ends[:-1], ends[1:], strict=True):
            split_rows[name] += [row for group in shuffled[start:end] for row in group]
    return {
        name: generator_for(SPLIT_SEED, "order", name).permutation(rows).tolist()
        for name, rows in split_rows.items()
    }


def _groups(
    labels: Sequence[str],
    lines: Sequence[str],
    kept: Sequence[str],
) -> dict[str, list[list[int]]]:
    """Group the rows of equal text, listed by the most frequent label of each group."""
    rows: dict[str, list[int]] = {}
    for row, (label, line) in enumerate(zip(labels, lines, strict=True)):
        if label in kept:
            rows.setdefault(line, []).append(row)
    groups: dict[str, list[list[int]]] = {label: [] for label in kept}
    for group in rows.values():
        [(label, _)] = Counter(labels[row] for row in group).most_common(1)
        groups[label].append(group)
    return groups


def measure_text(context: StageContext) -> None:
    """Measure the size of the text, and how far the trial's vocabulary compresses it relative to the old one.

    Lines are encoded without truncation, which would make long lines equally long in both vocabularies.
    """
    _, inputs = MEASURES.read(context)
    lines = {name: read_corpus(inputs.corpus / name).sources[0] for name in SPLITS}
    new, old = (
        encode_words(directory / TOKENIZER_FILE, lines["test"]).ids.values
        for directory in (inputs.tokenizer, inputs.old_tokenizer)
    )
    everything = [line for name in SPLITS for line in lines[name]]
    num_bytes = sum(len(line.encode()) for line in lines["test"])
    num_words = sum(len(line.split()) for line in lines["test"])
    information = self_information(np.bincount(new))
    of_all = {
        "text/documents": len(everything),
        "text/bytes": sum(len(line.encode()) for line in everything),
        "text/unique_words": len({word for line in everything for word in line.split()}),
    }
    of_test = {
        "text/tokens_per_line": len(new) / len(lines["test"]),
        "text/tokens_per_word": len(new) / max(1, num_words),
        "text/bits_per_byte": information / max(1, num_bytes),
        "compression/tokens": len(new) / max(1, len(old)),
        "compression/self_information": information / self_information(np.bincount(old)),
    }
    signatures = dict.fromkeys(of_all, SPLIT_SIGNATURE) | dict.fromkeys(of_test, TEST_SIGNATURE)
    write_metrics(
        context.directory,
        {
            name: Score(value, len(lines["test"]), METRICS[name].direction, signatures[name])
            for name, value in (of_all | of_test).items()
        },
    )


# Speed of a classifier by length of the input.


LINES = 16
"""Lines per batch."""
BATCHES = 2
"""Number of timed runs per group; the fastest counts, since other load only slows a run down."""


def measure_speed(context: StageContext) -> None:
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
    tasks = {"inference": infer, "training": learn}
    for group, rows in enumerate(np.array_split(order, NUM_LENGTHS), start=1):
        batch = data.batch(rows[:: max(1, len(rows) // LINES)][:LINES]).to(context.device)
        for task, run in tasks.items():
            name = f"{task}/lines_per_s.length_{group}"

            def timed(run: Callable[[LabelledBatch], None] = run, batch: LabelledBatch = batch) -> None:
                run(batch)
                synchronize(context.device)

            # The first run warms up.
            _, *seconds = timeit.repeat(timed, number=1, repeat=1 + BATCHES)
            scores[name] = Score(len(batch.classes) / min(seconds), len(batch.classes), "maximize", signature)
    write_metrics(context.directory, scores)
