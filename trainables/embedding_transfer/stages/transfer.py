"""The stage that exchanges the vocabulary of a pretrained model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.evaluation.sufficient import Direction
from nlgraft.nn.model import Seq2Seq
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.new_rows import TABLES
from nlgraft.training.models import fresh_model, read_model, write_model
from nlgraft.training.weights import carry_over
from nlgraft.vocab.methods.averages import weighted_rows
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.interface import Method, Request, Rows, TokenVectors
from nlgraft.vocab.methods.registry import find_method
from nlgraft.vocab.plans.norms import norm_report
from nlgraft.vocab.plans.plan import Provenance, TransferPlan
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.arms import STREAMS
from trainables.embedding_transfer.generators import EmbeddingGenerator, generator_weights
from trainables.embedding_transfer.stages.generator import (
    old_frequencies,
    read_generators,
    side_vocabularies,
    transferred_sides,
)
from trainables.embedding_transfer.stages.vectors import read_vectors

PRODUCERS = {"random_init": "random", "avg_eg": "avg"}
"""Transfer methods whose name differs from their producer's."""
_TIED_AFTER = {"decoder": "decoder", "encoder": "decoder", "both": "all"}


def exchange_vocabulary(context: StageContext) -> None:
    """Give a pretrained model the vocabulary of the task; everything else is kept bit for bit.

    Args:
        context: Settings of the transfer; inputs ``upstream``, old and new tokenizers, ``generator`` for
            methods that train one, ``new_vectors`` and ``old_vectors`` for those that read them,
            ``upstream_encoded`` where frequent tokens come first.
    """
    config = context.config
    sides = transferred_sides(config["sides"])
    body = read_model(context.inputs["upstream"])
    old, new = (_vocabularies(context, age) for age in ("old", "new"))
    generators = read_generators(context.inputs["generator"]) if "generator" in context.inputs else {}
    frequencies: dict[str, list[int]] = {}
    if "upstream_encoded" in context.inputs:
        frequencies = old_frequencies(
            context.inputs["upstream_encoded"], old, is_table_shared=body.config.tying == "all"
        )
    plans: dict[str, TransferPlan] = {}
    for side in sides:
        table = body.get_parameter(TABLES[side]).detach()
        generator = generators.get(side, generators.get("decoder"))
        vectors = {
            name: read_vectors(context.inputs[name], side)
            for name in ("new_vectors", "old_vectors")
            if name in context.inputs
        }
        # rows drawn as a new model's have the deviation with which a new table is initialised
        noise_std = table.shape[1] ** -0.5
        seed = context.seed or 0
        plans[side] = plan_table(
            config,
            old[side],
            new[side],
            table,
            generator,
            seed,
            vectors,
            noise_std,
            frequencies.get(side),
        )
        plans[side].save(context.directory / f"plan-{side}")
    assert context.seed is not None
    model = exchange_tables(body, plans, config["sides"], context.seed)
    write_model(model, context.directory)
    _write_report(context, body, model, plans)


def _vocabularies(context: StageContext, age: str) -> dict[str, Vocabulary]:
    names = {"encoder": f"{age}_source_tokenizer", "decoder": f"{age}_target_tokenizer"}
    tokenizers = {stream: context.inputs[names[side]] for side, stream in STREAMS.items()}
    return side_vocabularies(tokenizers, context.config["sides"])


def plan_table(
    config: Mapping[str, Any],
    old: Vocabulary,
    new: Vocabulary,
    table: Tensor,
    generator: EmbeddingGenerator | None,
    seed: int,
    vectors: Mapping[str, TokenVectors],
    noise_std: float,
    frequencies: Sequence[float] | None,
) -> TransferPlan:
    """Plan the rows of one table.

    Args:
        config: ``method`` and ``norm_match``; ``cap`` and ``order`` where similar tokens are looked up.
        old: Vocabulary of the table.
        new: Vocabulary that gets rows.
        table: Old rows [V, D].
        generator: A trained generator; None where the method has none.
        seed: Of rows drawn at random.
        vectors: ``new_vectors`` and ``old_vectors`` where the method reads them.
        noise_std: Standard deviation of a new model's rows.
        frequencies: Count of each old token, for order ``frequency``.

    Returns:
        The plan.
    """
    name: str = PRODUCERS.get(config["method"]) or config["method"]
    method = find_method(name) if generator is None else generator_method(name, generator, table)
    options = {key: config[key] for key in ("cap", "order") if key in config}
    return build_plan(
        old,
        new,
        method,
        noise_std=noise_std,
        norm_match=config["norm_match"],
        old_rows=table.float().numpy(),
        seed=seed,
        frequencies=frequencies,
        **options,
        new_vectors=vectors.get("new_vectors"),
        old_vectors=vectors.get("old_vectors"),
    )


def generator_method(name: str, generator: EmbeddingGenerator, table: Tensor) -> Method:
    """Turn a trained generator into a producer of plans.

    Args:
        name: For the plan.
        generator: The generator.
        table: Old embedding table [V, D], whose rows decide the weights.

    Returns:
        A method like any other.
    """

    def produce(request: Request) -> Rows:
        similar = request.similar()
        return weighted_rows(similar, generator_weights(generator, table, similar))

    return Method(name=name, produce=produce, source="Liu et al. (2021), eq. 2 and 3")


def exchange_tables(body: Seq2Seq, plans: Mapping[str, TransferPlan], sides: str, seed: int) -> Seq2Seq:
    """Build a model with new vocabularies and the old body.

    Args:
        body: The pretrained model.
        plans: Plan of each exchanged side, ``encoder`` or ``decoder``.
        sides: ``decoder``, ``encoder`` or ``both``.
        seed: Of the fresh model, all of whose weights are then overwritten.

    Returns:
        The new model. Input and output of the decoder stay tied; one table for both sides stays one only when
        both are exchanged.
    """
    config = body.config
    if config.tying == "all":
        # a side that is exchanged alone cannot share a table with the other any more
        config = config.model_copy(update={"tying": _TIED_AFTER[sides]})
    sizes = {side: body.get_parameter(name).shape[0] for side, name in TABLES.items()}
    sizes |= {side: len(plan) for side, plan in plans.items()}
    model = fresh_model(config, sizes["encoder"], sizes["decoder"], seed)
    weights = dict(body.state_dict())
    for side, plan in plans.items():
        weights[TABLES[side]] = _apply(plan, body.get_parameter(TABLES[side]), stream=0)
    if "decoder" in plans:
        output = body.output_projection
        is_tied = config.tying != "none"
        weights["output_projection.weight"] = (
            weights[TABLES["decoder"]] if is_tied else _apply(plans["decoder"], output.weight, stream=1)
        )
        if output.bias is not None:
            bias = plans["decoder"].apply_bias(output.bias.detach().numpy())
            weights["output_projection.bias"] = torch.from_numpy(bias)
    carry_over(model, weights)
    return model


def _apply(plan: TransferPlan, table: Tensor, stream: int) -> Tensor:
    return torch.from_numpy(plan.apply(table.detach().float().numpy(), stream=stream))


def _write_report(
    context: StageContext, body: Seq2Seq, model: Seq2Seq, plans: Mapping[str, TransferPlan]
) -> None:
    tables = {
        side: tuple(m.get_parameter(TABLES[side]).detach().numpy() for m in (body, model)) for side in plans
    }
    write_transfer_report(context.directory, plans, tables)


def write_transfer_report(
    directory: Path,
    plans: Mapping[str, TransferPlan],
    tables: Mapping[str, tuple[NDArray[np.floating], ...]],
) -> None:
    """Write where the rows came from and what became of their norms.

    Args:
        directory: Artifact being written; gets ``report.json`` and ``metrics.json``.
        plans: Plan of each side.
        tables: Old and new rows of each side.
    """
    report: dict[str, Any] = {}
    for side, plan in plans.items():
        old, new = tables[side]
        norms = norm_report(plan, old, new)
        report[side] = {"rows": plan.counts(), "norms": asdict(norms), "warnings": norms.warnings}
    (directory / "report.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    kinds = np.concatenate([plan.provenance for plan in plans.values()])
    shares = {
        "transfer/copied": np.isin(kinds, [int(Provenance.COPY), int(Provenance.SPECIAL)]).mean(),
        "transfer/drawn": (kinds == int(Provenance.NOISE)).mean(),
    }
    signature = "rows of all exchanged tables"
    directions: dict[str, Direction] = {"transfer/copied": "maximize", "transfer/drawn": "minimize"}
    scores = {
        name: Score(name, float(value), len(kinds), directions[name], signature)
        for name, value in shares.items()
    }
    write_metrics(directory, scores)
