"""Exchange of the vocabulary of our encoder-decoders and of language models of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor

from nlgraft.basics.errors import ContractError
from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.transformers_lms import TransformersLM, is_causal_lm, load_causal_lm
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text_stages import REPORT_FILE, read_encoded
from nlgraft.stages.stage_kind import EXCHANGE, PLAN, SIDE, VECTORS, PlanInputs, PlanSettings
from nlgraft.text.files import write_json
from nlgraft.training.masked_lm_training import read_masked_lm
from nlgraft.training.models import DESCRIPTION, fresh_model, read_model, write_model
from nlgraft.training.seeds import derive_seed
from nlgraft.training.weights import carry_over
from nlgraft.vocab.methods.building import build_plan, donor_rows
from nlgraft.vocab.methods.interface import Method, PlanChoices, PlanMaterial, TokenVectors
from nlgraft.vocab.methods.token_vectors import VectorOptions, learn_vectors
from nlgraft.vocab.surgery.exchange import exchange_vocabulary
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan, norm_report

TABLES = {"encoder": "source_embedding.table.weight", "decoder": "target_embedding.table.weight"}
"""Name of each side's embedding table in an encoder-decoder."""
_TIED_AFTER = {"decoder": "decoder", "encoder": "decoder", "both": "all"}
"""Tables of a model with one table for both sides, after some side's vocabulary was exchanged."""


Exchangeable = Seq2Seq | TransformersLM
"""Models whose vocabulary can be exchanged."""


def read_exchangeable(directory: Path) -> Exchangeable:
    """Read a model that a training, a released checkpoint or an exchange has written, on the CPU."""
    if (directory / DESCRIPTION).is_file():
        return read_model(directory)
    if is_causal_lm(directory):
        return load_causal_lm(str(directory), None)
    model = read_masked_lm(directory)
    if not isinstance(model, TransformersLM):
        raise ContractError(f"{directory}: the vocabulary of a bare encoder of ours cannot be exchanged")
    return model


def embedding_tables(model: Exchangeable) -> dict[str, Tensor]:
    """Find the embedding table of each side, [V, D]; one that sides share stands under both names."""
    if isinstance(model, TransformersLM):
        return {SIDE: model.input_table.detach()}
    return {side: model.get_parameter(name).detach() for side, name in TABLES.items()}


def _noise_std(model: Exchangeable) -> float:
    """Standard deviation with which a new model's rows are drawn."""
    if isinstance(model, TransformersLM):
        return model.noise_std
    return model.config.d_model**-0.5


def exchange_tables(model: Exchangeable, plans: Mapping[str, TransferPlan]) -> Exchangeable:
    """Build a model with new vocabularies by side; everything else is kept bit for bit."""
    if isinstance(model, TransformersLM):
        return type(model)(exchange_vocabulary(model.model, plans[SIDE]))
    return _exchange_seq2seq(model, plans)


def _exchange_seq2seq(body: Seq2Seq, plans: Mapping[str, TransferPlan]) -> Seq2Seq:
    """Input and output of the decoder stay tied; one table for both sides stays one if both are exchanged."""
    config = body.config
    if config.tying == "all":
        # a side that is exchanged alone cannot share a table with the other any more
        sides = "both" if len(plans) > 1 else next(iter(plans))
        config = config.model_copy(update={"tying": _TIED_AFTER[sides]})
    sizes = {side: body.get_parameter(name).shape[0] for side, name in TABLES.items()}
    sizes |= {side: len(plan) for side, plan in plans.items()}
    # the seed decides nothing: all fresh weights are overwritten
    model = fresh_model(config, sizes["encoder"], sizes["decoder"], 0)
    weights = dict(body.state_dict())
    for side, plan in plans.items():
        weights[TABLES[side]] = _apply(plan, body.get_parameter(TABLES[side]), stream=0)
    if "decoder" in plans:
        output = body.output_projection
        # An untied output table draws other noise than the input table.
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


# --- vectors --------------------------------------------------------------------------------------------


def learn_token_vectors(context: StageContext) -> None:
    """Learn vectors of each side's tokens from its training text."""
    settings, inputs = VECTORS.read(context)
    tables = embedding_tables(read_exchangeable(inputs.model))
    encoded = read_encoded(inputs.encoded, "train")
    for side, stream in settings.streams.items():
        options = VectorOptions(
            kind=settings.kind, width=tables[side].shape[1], **settings.vectors.model_dump()
        )
        text = encoded.stream(stream)
        sentences = [text[row].tolist() for row in range(len(text))]
        size = len(load_vocabulary(inputs.tokenizers[side]))
        seed = derive_seed(context.seed, "vectors", side) % 2**31
        token_vectors = learn_vectors(sentences, size, options, seed)
        arrays = {
            "vectors": token_vectors.vectors,
            "counts": token_vectors.counts,
            "min_count": np.array([token_vectors.min_count]),
        }
        save_file(arrays, context.directory / f"vectors-{side}.safetensors")


def read_vectors(directory: Path, side: str) -> TokenVectors:
    """Read the vectors of a side's tokens."""
    arrays = load_file(directory / f"vectors-{side}.safetensors")
    return TokenVectors(arrays["vectors"], arrays["counts"], int(arrays["min_count"][0]))


# --- plans ----------------------------------------------------------------------------------------------


def plan(context: StageContext) -> None:
    """Plan the rows of each side's new vocabulary by a method."""
    settings, inputs = PLAN.read(context)
    write_plans(context, settings, inputs, lambda side, table: settings.method)


def write_plans(
    context: StageContext,
    settings: PlanSettings,
    inputs: PlanInputs[Path],
    method: Callable[[str, Tensor], Method | str],
) -> None:
    """Plan the rows of each side's new vocabulary and write the plans.

    Args:
        context: Context of the stage, whose seed draws rows.
        settings: How many similar tokens are chosen.
        inputs: Model and vocabularies.
        method: Chooses the method of a side from its name and its old table, [V, D].
    """
    model = read_exchangeable(inputs.model)
    tables = embedding_tables(model)
    for side in inputs.new:
        old, new = (load_vocabulary(tokenizers[side]) for tokenizers in (inputs.old, inputs.new))
        choices = PlanChoices(cap=settings.cap, noise_std=_noise_std(model), seed=context.stage.seed or 0)
        material = PlanMaterial(
            old_rows=tables[side].float().numpy(),
            new_vectors=inputs.new_vectors and read_vectors(inputs.new_vectors, side),
            old_vectors=inputs.old_vectors and read_vectors(inputs.old_vectors, side),
            donor=_donor(inputs, new),
        )
        made = build_plan(old, new, method(side, tables[side]), choices, material)
        made.save(context.directory / f"plan-{side}")


def _donor(inputs: PlanInputs[Path], new: Vocabulary) -> TokenVectors | None:
    if inputs.donor is None or inputs.donor_tokenizer is None:
        return None
    table = embedding_tables(read_exchangeable(inputs.donor))[SIDE].float().numpy()
    return donor_rows(new, load_vocabulary(inputs.donor_tokenizer), table)


# --- exchange -------------------------------------------------------------------------------------------


def exchange(context: StageContext) -> None:
    """Exchange a model's vocabularies as planned; everything else is kept bit for bit."""
    _, inputs = EXCHANGE.read(context)
    model = read_exchangeable(inputs.model)
    before = embedding_tables(model)
    plans = {
        side: TransferPlan.load(directory)
        for side in before
        if (directory := inputs.plans / f"plan-{side}").is_dir()
    }
    exchanged = exchange_tables(model, plans)
    after = embedding_tables(exchanged)
    if isinstance(exchanged, Seq2Seq):
        write_model(exchanged, context.directory)
    else:
        exchanged.write(context.directory)
    report: dict[str, Any] = {}
    for side, made in plans.items():
        # Kept beside the model: the training that follows may train the new rows first.
        made.save(context.directory / f"plan-{side}")
        norms = norm_report(made, before[side].numpy(), after[side].numpy())
        report[side] = {"rows": made.counts(), "norms": asdict(norms), "warnings": norms.warnings}
    write_json(context.directory / REPORT_FILE, report)
    # Over all tables, since a trial reports one share.
    kinds = np.concatenate([made.provenance for made in plans.values()])
    copied = float(np.isin(kinds, [int(Provenance.COPY), int(Provenance.SPECIAL)]).mean())
    drawn = float((kinds == int(Provenance.NOISE)).mean())
    signature = "rows of all exchanged tables"
    scores = {
        "transfer/copied": Score(copied, len(kinds), "maximize", signature),
        "transfer/drawn": Score(drawn, len(kinds), "minimize", signature),
    }
    write_metrics(context.directory, scores)
