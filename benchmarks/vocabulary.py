"""Plans and their application: 32,000 new tokens against 250,000 old ones, as of a multilingual model.

VIPI's plan also against 30,000 old ones, as of BERT. Each is measured in turns with the plainest way to the
same result, which no change of ours makes faster: the definition of similar tokens, all partitions listed,
reading the rows that a plan names.

The vocabularies are constructed: strings of syllables drawn by a power law, 8 characters on average and 16 at
most; tokens of multilingual models have 6.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import random
import resource
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.measure import Rates, interleave, table
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.similar import DEFAULT_CAP, Relation, Similar, SimilarTokens, hyperword_relation
from nlgraft.vocab.tokenizers.segmenters import UnigramSegmenter
from nlgraft.vocab.tokenizers.vocabulary import SENTENCEPIECE, Kind, Tok, Vocabulary, make_vocabulary
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan

NUM_OLD, NUM_NEW, WIDTH = 250_000, 32_000, 1024
LONGEST_CHARACTERS = 16
NUM_BERT = 30_000
NUM_BY_DEFINITION = 10
NUM_LISTED = 1000
NUM_ROUNDS = 3
PLAN, DEFINITION, LISTING = "VIPI's plan", "the definition", "listing all partitions"
_CHUNK_ROWS = 10_000
METHODS = ("avg", "fvt", "vipi", "random")


@dataclass(frozen=True)
class Application:
    """Cost of applying a plan to a matrix of 250,000 rows.

    Attributes:
        cpu_s: CPU seconds.
        peak_bytes: Peak memory beyond the matrix itself, the new rows included.
        ratio: Speed over that of reading the rows that the plan names; median, lowest, highest.
    """

    cpu_s: float
    peak_bytes: int
    ratio: tuple[float, float, float]


def make_tokens(count: int, rng: random.Random) -> list[str]:
    """Draw distinct tokens in SentencePiece's notation, the frequent ones first as in real vocabularies."""
    spelling = random.Random(0)  # every vocabulary is of the same language
    syllables = [
        "".join(parts) for parts in itertools.product(["", *"bdfghklmnprstvz"], "aeiou", ["", *"nrst"])
    ]
    spelling.shuffle(syllables)
    weights = [1 / (rank + 10) for rank in range(len(syllables))]
    tokens: dict[str, None] = dict.fromkeys("▁abcdefghijklmnopqrstuvwxyz")
    while len(tokens) < count:
        lengths = rng.choices([1, 2, 3, 4, 5], [2, 9, 4, 1, 0.5], k=count)
        flat = iter(rng.choices(syllables, weights, k=sum(lengths)))
        for length in lengths:
            text = "".join(itertools.islice(flat, length))[:LONGEST_CHARACTERS]
            tokens.setdefault(f"▁{text}" if rng.random() < 0.6 else text)
    return [*tokens][:count]


def make_unigram(tokens: list[str]) -> Vocabulary:
    """Make a unigram vocabulary; later tokens are less probable."""
    ids = {token: i for i, token in enumerate(tokens)}
    scores = {token: -math.log(i + 2) for token, i in ids.items()}
    segmenter = UnigramSegmenter(ids, scores, SENTENCEPIECE)
    return make_vocabulary(tokens, [Kind.NORMAL] * len(tokens), SENTENCEPIECE, segmenter)


def measure_application(plan: TransferPlan) -> Application:
    """Apply a plan for 250,000 old rows in a process of its own, which has a peak memory of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_apply, (plan,))


def _apply(plan: TransferPlan) -> Application:
    matrix = np.empty((NUM_OLD, WIDTH), dtype=np.float32)
    generator = np.random.default_rng(0)
    for start in range(0, NUM_OLD, 1000):
        generator.standard_normal(out=matrix[start : start + 1000], dtype=np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.process_time()
    new = plan.apply(matrix)
    cpu_s = time.process_time() - began_s
    assert np.isfinite(new).all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = plan.matrix.indices

    def apply() -> float:
        plan.apply(matrix)
        return 1.0

    def read() -> float:
        for start in range(0, len(rows), _CHUNK_ROWS):
            matrix[rows[start : start + _CHUNK_ROWS]]
        return 1.0

    rates = interleave("plans", {"apply": apply, "read": read}, NUM_ROUNDS)
    return Application(cpu_s, (peak - before) * 1024, rates.ratio("apply", "read"))


def _hyperwords_by_definition(tok: Tok, old: Vocabulary) -> list[tuple[int, Relation]]:
    relations = ((i, hyperword_relation(tok, old.token(i))) for i in range(len(old)))
    return [(i, relation) for i, relation in relations if relation is not None]


def _listed(core: str, pieces: dict[str, int]) -> list[list[str]]:
    """List all spellings of a text in pieces."""
    if not core:
        return [[]]
    heads = [core[:size] for size in range(1, len(core) + 1) if core[:size] in pieces]
    return [[head, *rest] for head in heads for rest in _listed(core[len(head) :], pieces)]


def _by_listing(surface: str, old: Vocabulary) -> dict[int, float]:
    """Weights of VIPI from the list of all partitions."""
    partitions = _listed(surface, old.ids_by_surface)
    fewest = min(map(len, partitions))
    partitions = [pieces for pieces in partitions if len(pieces) == fewest]
    longest = max(len(piece) for pieces in partitions for piece in pieces)
    partitions = [pieces for pieces in partitions if max(map(len, pieces)) == longest]
    weights: dict[int, float] = {}
    for piece in itertools.chain.from_iterable(partitions):
        identity = old.ids_by_surface[piece]
        weights[identity] = weights.get(identity, 0.0) + 1 / (len(partitions) * fewest)
    return weights


def _partition_lines(old: Vocabulary, new: Vocabulary) -> list[str]:
    """Measure VIPI's plan against a vocabulary of BERT's size, and check it on a sample."""
    plan = build_plan(old, new, "vipi")
    composed = plan.rows(Provenance.COMPOSED).tolist()
    sample = random.Random(4).sample(composed, min(NUM_LISTED, len(composed)))

    def planned() -> float:
        build_plan(old, new, "vipi")
        return len(composed)

    def listed() -> float:
        for row in sample:
            planned_row = plan.matrix[row]
            expected = _by_listing(new.surfaces[row], old)
            weights = dict(zip(planned_row.indices.tolist(), planned_row.data.tolist(), strict=True))
            assert weights.keys() == expected.keys()
            assert all(math.isclose(weights[i], expected[i], rel_tol=1e-6) for i in expected)
        return len(sample)

    rates = interleave("tokens", {PLAN: planned, LISTING: listed}, NUM_ROUNDS)
    return [
        "",
        f"{len(composed):,} tokens partitioned of {NUM_NEW:,}, against {NUM_BERT:,} old ones, in "
        f"{len(composed) / rates.median(PLAN):.1f} CPU-s; {len(sample):,} listed, the same weights:",
        "",
        *table(rates, LISTING),
    ]


def _similar_rates(old: Vocabulary, queries: list[Tok]) -> tuple[Rates, int]:
    """Measure the search for similar tokens, check it on a sample, and count the pairs."""

    def search() -> list[Similar]:
        index = SimilarTokens(old)
        return [index.of(tok) for tok in queries]

    similar = search()
    sample = random.Random(3).sample(range(len(queries)), min(NUM_BY_DEFINITION, len(queries)))

    def searched() -> float:
        search()
        return len(queries)

    def defined() -> float:
        for i in sample:
            expected = _hyperwords_by_definition(queries[i], old)
            hyperwords = [pair for pair in similar[i] if pair[1] >= Relation.HYP_PREFIX]
            assert hyperwords == expected[: len(hyperwords)]
            assert len(hyperwords) == len(expected) or len(similar[i]) >= DEFAULT_CAP
        return len(sample)

    rates = interleave("tokens", {"similar tokens": searched, DEFINITION: defined}, NUM_ROUNDS)
    return rates, sum(map(len, similar))


def report() -> list[str]:
    """Measure and return lines of Markdown, the first one a heading."""
    old = make_unigram(make_tokens(NUM_OLD, random.Random(1)))
    new = make_unigram(make_tokens(NUM_NEW, random.Random(2)))
    rates, num_pairs = _similar_rates(old, [new.token(i) for i in range(NUM_NEW)])
    lines = [
        f"## Vocabulary transfer, {NUM_NEW:,} new tokens against {NUM_OLD:,} old ones",
        "",
        f"Similar tokens of all in {NUM_NEW / rates.median('similar tokens'):.1f} CPU-s:",
        "",
        *table(rates, DEFINITION),
        "",
        "| method | plan, CPU-s | apply, CPU-s | apply, peak GiB beyond the matrix "
        "| ratio to reading its rows (range over rounds) |",
        "|---|---|---|---|---|",
    ]
    described = ""
    for method in METHODS:
        began_s = time.process_time()
        plan = build_plan(old, new, method)
        plan_s = time.process_time() - began_s
        cost = measure_application(plan)
        described = ", ".join(f"{count} {name}" for name, count in plan.counts().items())
        ratio, low, high = cost.ratio
        lines.append(
            f"| {method} | {plan_s:.1f} | {cost.cpu_s:.1f} | {cost.peak_bytes / 2**30:.2f} "
            f"| {ratio:.2f} ({low:.2f}-{high:.2f}) |"
        )
    lines += _partition_lines(make_unigram(make_tokens(NUM_BERT, random.Random(1))), new)
    lengths = np.array([len(tok.text) for tok in (old.token(i) for i in range(NUM_OLD))])
    lines += [
        "",
        f"Old tokens: {lengths.mean():.1f} characters on average, {lengths.max()} at most. "
        f"Last plan: {described}; {num_pairs} pairs of similar tokens. "
        f"The matrix has {NUM_OLD:,} x {WIDTH} numbers ({NUM_OLD * WIDTH * 4 / 2**30:.2f} GiB).",
    ]
    return lines
