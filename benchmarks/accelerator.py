"""Training and decoding on a GPU, against transformers, by the clock: ``python -m benchmarks.accelerator``.

The same stages of a study as in ``benchmarks.training`` and ``benchmarks.decoding``, on the base model of
Vaswani et al. (2017), and the training of a causal language model of 100 million parameters. The result is
written beside the others, with the date and the name of the device.
"""

from __future__ import annotations

import datetime
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, supported_activities

from benchmarks import decoding, training
from benchmarks.material import Material, load_material, our_config, our_model
from benchmarks.measure import Rates, Turns, interleave, table
from benchmarks.peers import exported_marian, marian_model
from nlgraft.nn.modes import synchronize
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.trial import RecordingReporter
from nlgraft.runs.device_trials import current_device, device_name, peak_flops, small_trial, trial_in
from nlgraft.stages.seq2seq_graph import TrainSettings

BASE: dict[str, Any] = {
    "d_model": 512,
    "num_encoder_layers": 6,
    "num_decoder_layers": 6,
    "num_heads": 8,
    "ffn_dim": 2048,
}
BATCH_TOKENS = (16384, 4096)
STEPS = 10
"""Optimiser steps of a turn."""
NUM_ROUNDS = 3
NUM_SENTENCES, BATCH_SENTENCES = 1000, 250
LANGUAGE_MODEL: dict[str, Any] = {"d_model": 768, "num_layers": 12, "num_heads": 12, "ffn_dim": 2048}
WINDOW, WINDOWS = 512, 32
LM_STEPS = 60


def seq2seq_training(material: Material, batch_tokens: int, device: str) -> tuple[Rates, dict[str, str]]:
    """Measure trainings in both precisions against Marian's on the same batches.

    Returns:
        Target tokens per second, and what is known of each contestant: the share of the time in which the
        device computes, and MFU.
    """
    contestants: dict[str, Callable[[], float]] = {}
    for precision in ("fp32", "bf16"):
        config = training.training_config(batch_tokens, precision)
        stage = training.training_stage(material, TrainSettings(train=config, model=our_config(**BASE)))
        contestants[f"nlgraft, {precision}"] = training.ours(material, stage, device=device, steps=STEPS)
        contestants[f"Marian, {precision}"] = training.marian(
            training.endless(training.data_of(material, stage)),
            marian_model(material.vocab_size, BASE),
            device,
            STEPS,
            precision,
        )
    size = sum(parameter.numel() for parameter in our_model(material.vocab_size, **BASE).parameters())
    notes = {}
    rates = interleave("target tokens", contestants, NUM_ROUNDS, device, is_closing=False)
    for name, work in contestants.items():
        notes[name] = f"{busy_share(work, device):.0%}, MFU {mfu(size, rates.median(name), device)}"
        if isinstance(work, Turns):
            work.close()
    return rates, notes


def busy_share(work: Callable[[], float], device: str) -> float:
    """Measure the share of the time in which some kernel runs."""
    activities = supported_activities() - {ProfilerActivity.CPU}
    with profile(activities=activities, acc_events=True) as profiler:
        synchronize(device)
        began_s = time.perf_counter()
        work()
        synchronize(device)
        seconds = time.perf_counter() - began_s
    return sum(event.self_device_time_total for event in profiler.key_averages()) / 1e6 / seconds


def mfu(num_parameters: float, tokens_per_s: float, device: str) -> str:
    """Give the share of the device's peak in 16 bits: 6 operations per parameter and token."""
    peak = peak_flops(device)
    return "unknown" if peak is None else f"{6 * num_parameters * tokens_per_s / peak:.1%}"


def search(material: Material, device: str, beam: int) -> Rates:
    """Measure the translation stage and the search alone against generate, at equal length.

    Returns:
        Sentences per second.
    """
    model = our_model(material.vocab_size, position_layout="marian", **BASE).eval()
    chunks = decoding.chunks_of(material, NUM_SENTENCES, BATCH_SENTENCES)
    with tempfile.TemporaryDirectory() as place:
        marian = exported_marian(model, Path(place, "marian")).to(device)
        Path(place, "model").mkdir()
        stage = decoding.ours(
            material, model, Path(place, "model"), device, (beam, NUM_SENTENCES, BATCH_SENTENCES)
        )
        on_device = [chunk.to(device) for chunk in chunks]
        ours = decoding.searched(model.to(device), on_device, beam)
        peer = decoding.hugging_face(marian, on_device, beam)
        contestants: dict[str, Callable[[], float]] = {
            "nlgraft, stage": stage,
            "nlgraft, search": lambda: float(len(ours())),
            decoding.HUGGING_FACE: lambda: float(len(peer())),
        }
        return interleave("sentences", contestants, NUM_ROUNDS, device)


def language_model_training(device: str) -> list[str]:
    """Measure the training of llm_vocabulary against a plain loop over the same model and shapes, in bf16."""
    changes = {
        "causal_lm.model": LANGUAGE_MODEL,
        "causal_lm.max_tokens": WINDOW,
        "upstream.train.max_steps": LM_STEPS,
        "upstream.train.eval_every_steps": LM_STEPS // 2,
        "upstream.train.batch_characters": None,
        "upstream.train.batch_tokens": WINDOW * WINDOWS,
        "upstream.train.precision": "bf16",
        "data.upstream.train": 20_000,
    }
    reporter = RecordingReporter(NullReporter())
    with tempfile.TemporaryDirectory() as place:
        graph = small_trial("trainables.llm_vocabulary", 0, changes)
        metrics = trial_in(place, graph, device=device, reporter=reporter).metrics
    curves = max(
        (curves for curves in reporter.curves.values() if "train/tokens_per_s" in curves),
        key=lambda curves: curves["train/tokens_per_s"][-1][0],
    )
    ours = curves["train/tokens_per_s"][-1][1]
    peer = max(_plain_steps(device) for _ in range(2))
    size = metrics["parameters/total"]
    return [
        f"| nlgraft | {ours:,.0f} | {ours / peer:.2f} | {mfu(size, ours, device)} |",
        f"| plain loop of transformers | {peer:,.0f} | 1.00 | {mfu(size, peer, device)} |",
    ]


def _plain_steps(device: str) -> float:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=500,
        hidden_size=LANGUAGE_MODEL["d_model"],
        num_hidden_layers=LANGUAGE_MODEL["num_layers"],
        num_attention_heads=LANGUAGE_MODEL["num_heads"],
        intermediate_size=LANGUAGE_MODEL["ffn_dim"],
        max_position_embeddings=WINDOW,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, 500, (WINDOWS, WINDOW), device=device)
    began_s = 0.0
    for step in range(LM_STEPS):
        if step == LM_STEPS // 2:
            synchronize(device)
            began_s = time.perf_counter()
        with torch.autocast(device.partition(":")[0], torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    synchronize(device)
    return ids.numel() * (LM_STEPS - LM_STEPS // 2) / (time.perf_counter() - began_s)


def report(device: str) -> Iterator[str]:
    """Write what was measured, a part at a time."""
    yield f"# {datetime.date.today().isoformat()}, {device_name(device)}"
    yield ""
    yield f"torch {torch.__version__}. Tokens and sentences per second by the clock."
    yield from ("", f"## A language model {LANGUAGE_MODEL}, {WINDOWS} windows of {WINDOW}, bf16", "")
    yield from ("| system | tokens/s | ratio | MFU |", "|---|---|---|---|", *language_model_training(device))
    material = load_material()
    yield from ("", f"{material.name}, vocabulary {material.vocab_size}, base model {BASE}:")
    for beam in (1, decoding.BEAM):
        steps = decoding.NUM_STEPS
        yield from ("", f"## Decoding, beam {beam}, {steps} steps, {BATCH_SENTENCES} sentences", "")
        yield from table(search(material, device, beam), decoding.HUGGING_FACE)
    for batch_tokens in BATCH_TOKENS:
        rates, notes = seq2seq_training(material, batch_tokens, device)
        yield from ("", f"## Training, {batch_tokens} tokens a batch", "")
        for precision in ("fp32", "bf16"):
            names = [name for name in rates.rates if name.endswith(precision)]
            part = Rates(rates.unit, {name: rates.rates[name] for name in names}, rates.second)
            yield from (*table(part, f"Marian, {precision}"), "")
        yield "The device computes in so much of the time: " + "; ".join(
            f"{name} {note}" for name, note in notes.items()
        )


def main() -> int:
    """Measure and print, and write what was measured so far.

    Returns:
        2 if there is no accelerator.
    """
    device = current_device()
    if device == "cpu":
        sys.stderr.write("torch finds no accelerator on this machine\n")
        return 2
    name = re.sub(r"\W+", "-", device_name(device)).strip("-").lower()
    file = Path(__file__).parent / "results" / f"{datetime.date.today().isoformat()}-{name}.md"
    lines = []
    for line in report(device):
        lines.append(line + "\n")
        sys.stdout.write(lines[-1])
        sys.stdout.flush()
        file.write_text("".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
