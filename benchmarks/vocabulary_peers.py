"""Rows of new tokens beside those of the tools that published the methods, from the same vectors.

What is compared is the arithmetic: which tokens are shared, and the vectors, are given to both. A tool that
is not installed is left out by name: mergekit (tokensurgeon), deepfocus (FOCUS), wechsel. Their pins disagree
with ours, so ``pip install --no-deps --target DIR`` puts them where ``PYTHONPATH`` finds them.
"""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from scipy.linalg import orthogonal_procrustes

from benchmarks.measure import interleave
from benchmarks.vocabulary import make_tokens, make_unigram
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.interface import PlanMaterial, TokenVectors
from nlgraft.vocab.methods.neighbours import NUM_TERMS
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from nlgraft.vocab.transfer_plan import Array

NUM_SHARED, NUM_OLD, NUM_NEW, WIDTH, NUM_ROUNDS = 3000, 5000, 4000, 128, 3
TOLERANCE = 1e-5
"""Largest difference of equal rows, by the largest number of the tool's."""


@dataclass(frozen=True)
class World:
    """Two vocabularies that begin with the same tokens, the old table, and vectors of both.

    Attributes:
        old: The vocabulary with rows, [NUM_OLD].
        new: The one that gets them, [NUM_NEW].
        table: Old rows [NUM_OLD, D].
        old_vectors: Vectors of old tokens [NUM_OLD, K].
        new_vectors: Vectors of new tokens [NUM_NEW, K], in another space.
        num_shared: Tokens that both have, with the same ids.
    """

    old: Vocabulary
    new: Vocabulary
    table: Array
    old_vectors: Array
    new_vectors: Array
    num_shared: int

    @staticmethod
    def make(divisor: int = 1) -> World:
        """Draw a world; sizes are divided by ``divisor``."""
        num_shared, num_old, num_new = (size // divisor for size in (NUM_SHARED, NUM_OLD, NUM_NEW))
        tokens = make_tokens(num_old + num_new - num_shared, random.Random(1))
        draw = np.random.default_rng(2)
        vectors, table = (draw.standard_normal((len(tokens), WIDTH), dtype=np.float32) for _ in range(2))
        rotation = np.linalg.qr(draw.standard_normal((WIDTH, WIDTH)))[0].astype(np.float32)
        noise = 0.3 * draw.standard_normal((num_new, WIDTH), dtype=np.float32)
        new = [*range(num_shared), *range(num_old, len(tokens))]
        return World(
            make_unigram(tokens[:num_old]),
            make_unigram([tokens[i] for i in new]),
            table[:num_old],
            vectors[:num_old],
            (vectors[new] @ rotation + noise).astype(np.float32),
            num_shared,
        )


def ours(world: World, method: str) -> Array:
    """Rows of the tokens that only the new vocabulary has, [NUM_NEW - NUM_SHARED, D]."""
    old, new = (
        TokenVectors(vectors, np.ones(len(vectors), dtype=np.int64))
        for vectors in (world.old_vectors, world.new_vectors)
    )
    material = PlanMaterial(old_rows=world.table, new_vectors=new, old_vectors=old, donor=new)
    return build_plan(world.old, world.new, method, material=material).apply(world.table)[world.num_shared :]


def tokensurgeon(world: World) -> Array:
    """OMP of mergekit's tokensurgeon."""
    from mergekit.tokensurgeon.omp import batch_omp  # pyright: ignore[reportMissingImports]

    shared, targets = (torch.from_numpy(part) for part in np.split(world.new_vectors, [world.num_shared]))
    chosen, weights = batch_omp(targets, shared, NUM_TERMS)
    return torch.einsum("nt,ntd->nd", weights, torch.from_numpy(world.table)[chosen]).numpy()


def deepfocus(world: World) -> Array:
    """FOCUS, the part after its fastText vectors."""
    from deepfocus.focus import (  # pyright: ignore[reportMissingImports]
        focus_additional_token_initialization,
    )

    vectors, table = torch.from_numpy(world.new_vectors), torch.from_numpy(world.table)
    shared = {
        i: SimpleNamespace(auxiliary_embedding=vectors[i], source_embedding=table[i])
        for i in range(world.num_shared)
    }
    new = {
        i: SimpleNamespace(auxiliary_embedding=vectors[i], target=SimpleNamespace(id=i))
        for i in range(world.num_shared, len(vectors))
    }
    rows = focus_additional_token_initialization(shared, new, torch.zeros(len(vectors), WIDTH))
    return rows[world.num_shared :].numpy()


def wechsel(world: World) -> Array:
    """WECHSEL, the part after its fastText vectors."""
    from wechsel import create_target_embeddings  # pyright: ignore[reportMissingImports]

    old, new = (
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        for vectors in (world.old_vectors, world.new_vectors)
    )
    rotation, _ = orthogonal_procrustes(new[: world.num_shared], old[: world.num_shared])
    tokenizers = [_Tokenizer(vocabulary.surfaces) for vocabulary in (world.old, world.new)]
    made = create_target_embeddings(old, new @ rotation, *tokenizers, world.table, verbose=False)
    return made[0][world.num_shared :]


class _Tokenizer:
    """What WECHSEL asks of a tokenizer of transformers."""

    def __init__(self, surfaces: Sequence[str]) -> None:
        self.surfaces = surfaces
        self.vocab = {surface: i for i, surface in enumerate(surfaces)}
        self.special_tokens_map: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.surfaces)

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> str | list[str]:
        return self.surfaces[ids] if isinstance(ids, int) else [self.surfaces[i] for i in ids]


PEERS: dict[str, Callable[[World], Array]] = {"omp": tokensurgeon, "focus": deepfocus, "wechsel": wechsel}
"""The tool of each method."""


def _peak_mib(method: str, is_peer: bool) -> float:
    """Measure the memory of one run beyond what stands before it, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run_once, (method, is_peer))


def _run_once(method: str, is_peer: bool) -> float:
    def run(world: World) -> None:
        PEERS[method](world) if is_peer else ours(world, method)

    run(World.make(divisor=20))  # imports, and what is compiled
    world = World.make()
    # The peak begins anew; that of ``getrusage`` would be the parent's or that of the imports.
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory_mib("VmRSS")
    run(world)
    return _memory_mib("VmHWM") - before


def _memory_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def _line(method: str, world: World) -> str:
    peer = PEERS[method]
    try:
        peer_rows = peer(world)
    except ImportError as error:
        return f"| {method} | {peer.__name__} | not installed: {error} | | | |"
    own_rows = ours(world, method)
    differences = np.abs(own_rows - peer_rows).max(axis=1) / np.abs(peer_rows).max()
    is_equal = differences <= TOLERANCE

    def rate(run: Callable[[], Array]) -> Callable[[], float]:
        return lambda: float(len(run()))

    runs = {"ours": rate(lambda: ours(world, method)), "peer": rate(lambda: peer(world))}
    rates = interleave("tokens", runs, NUM_ROUNDS)
    ratio, low, high = rates.ratio("ours", "peer")
    memory = ", ".join(f"{_peak_mib(method, is_peer):.0f}" for is_peer in (False, True))
    return (
        f"| {method} | {peer.__name__} | {is_equal.sum():,}, to {differences[is_equal].max(initial=0):.1e} "
        f"| {rates.median('ours'):,.0f} "
        f"| {ratio:.2f} ({low:.2f}-{high:.2f}) | {memory} |"
    )


def report() -> list[str]:
    """Measure and return lines of Markdown, the first one a heading."""
    torch.set_num_threads(1)
    world = World.make()
    return [
        f"## Rows of {NUM_NEW - NUM_SHARED:,} new tokens beside the tools of the methods",
        "",
        f"{NUM_SHARED:,} of {NUM_OLD:,} old tokens are shared, {WIDTH} wide. Equal: to {TOLERANCE:.0e} of "
        "the largest number. Speeds are medians.",
        "",
        "| method | tool | equal rows, largest difference of these | new tokens per CPU-s "
        "| ratio to the tool (range over rounds) | memory, MiB: ours, the tool's |",
        "|---|---|---|---|---|---|",
        *(_line(method, world) for method in PEERS),
    ]
