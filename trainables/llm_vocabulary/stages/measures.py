"""What a vocabulary makes of a text, how fast a model writes with it, and when it has caught up."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch

from nlgraft.evaluation.artifact import read_metrics, write_lines, write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.causal_lms import TransformersCausalLM, load_causal_lm
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.kinds.exchange_kinds import SIDE
from nlgraft.stages.run.new_rows import KEPT
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.text.word_tokenizers import TOKENIZER_FILE
from nlgraft.training.causal_text import LineEnds
from nlgraft.training.loop import CURVES_FILE
from nlgraft.training.seeds import derive_seed
from nlgraft.vocab.plans.transfer_plan import TransferPlan
from nlgraft.vocab.tokenizers.encoding import open_tokenizer
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.llm_vocabulary.kinds import CATCH_UP, GENERATION, MEASURES, TEXT, MeasureInputs
from trainables.llm_vocabulary.metrics import METRICS
from trainables.llm_vocabulary.stages.text import bytes_of, lines_of
from trainables.llm_vocabulary.stages.training import tokens_read

NUM_TEXTS, NUM_TOKENS = 8, 32
"""Texts that are sampled together, and tokens of each."""
NUM_RUNS = 2
"""Number of timed runs; the fastest counts, since other load only slows a run down."""


def measure_text(context: StageContext) -> None:
    """Measure test in the trial's vocabulary."""
    _, inputs = MEASURES.read(context)
    ids = read_encoded(inputs.encoded, "test").stream(TEXT).values
    lines = lines_of(inputs.corpus, "test")
    unknown = load_vocabulary(inputs.tokenizer).roles.get("unk", -1)
    num_words = sum(len(line.split()) for line in lines)
    measured = {
        "text/tokens_per_word": len(ids) / max(1, num_words),
        "text/tokens_per_byte": len(ids) / max(1, int(bytes_of(inputs.corpus, "test").sum())),
        "text/unknown_tokens": float((ids == unknown).mean()),
        "text/untrained_tokens": float(np.isin(ids, _untrained(inputs)).mean()),
    }
    write_metrics(
        context.directory,
        {
            name: Score(name, value, len(lines), METRICS[name].direction, "of test")
            for name, value in measured.items()
        },
    )


def _untrained(inputs: MeasureInputs[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """List the new tokens that the training never read."""
    if inputs.plans is None:
        return np.zeros(0, dtype=np.int64)
    plan = TransferPlan.load(inputs.plans / f"plan-{SIDE}")
    new = np.setdiff1d(np.arange(len(plan)), plan.rows(*KEPT))
    counts = tokens_read(inputs.model)
    return new if counts is None else new[counts[new] == 0]


def generate(context: StageContext) -> None:
    """Sample texts from the trial's model by transformers, and measure the speed."""
    _, inputs = GENERATION.read(context)
    model = load_causal_lm(str(inputs.model), None).to(context.device).eval()
    ends = LineEnds.of(load_vocabulary(inputs.tokenizer))
    texts = _sample(model, ends)  # warm-up
    seconds = []
    for _ in range(NUM_RUNS):
        began_s = time.perf_counter()
        texts = _sample(model, ends)
        seconds.append(time.perf_counter() - began_s)
    tokenizer = open_tokenizer(inputs.tokenizer / TOKENIZER_FILE)
    write_lines(context.directory / "samples.txt", tokenizer.decode_batch(texts.tolist()))
    speed = texts.numel() / min(seconds)
    num_tokens = len(read_encoded(inputs.encoded, "dev").stream(TEXT).values)
    bytes_per_token = int(bytes_of(inputs.corpus, "dev").sum()) / max(1, num_tokens)
    signature = f"texts:{NUM_TEXTS}|tokens:{texts.shape[1]}|device:{torch.device(context.device).type}"
    measured = {"generation/tokens_per_s": speed, "generation/bytes_per_s": speed * bytes_per_token}
    write_metrics(
        context.directory,
        {name: Score(name, value, NUM_TEXTS, "maximize", signature) for name, value in measured.items()},
    )


def _sample(model: TransformersCausalLM, ends: LineEnds) -> torch.Tensor:
    """Sample texts of one length, int64 [NUM_TEXTS, T], on the CPU."""
    device = next(model.parameters()).device
    start = torch.full((NUM_TEXTS, 1), ends.begin, device=device)
    room = NUM_TOKENS if model.max_tokens is None else min(NUM_TOKENS, model.max_tokens - 1)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(0, "samples"))
        texts = model.model.generate(
            start,
            attention_mask=torch.ones_like(start),
            do_sample=True,
            min_new_tokens=room,
            max_new_tokens=room,
            pad_token_id=ends.end,
        )
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return texts[:, 1:].cpu()


def catch_up(context: StageContext) -> None:
    """Find when the new vocabulary's bits per byte were as low as the best with the old one."""
    _, inputs = CATCH_UP.read(context)
    reference = read_metrics(inputs.reference)["dev/bits_per_byte"]["value"]
    curves = json.loads((inputs.trained / CURVES_FILE).read_text("utf-8"))["dev/bits_per_byte"]
    train_s = read_metrics(inputs.trained)["train_s"]["value"]
    reached = [step for step, value, _ in curves if value <= reference]
    last_step = curves[-1][0]
    seconds = train_s * (reached[0] if reached else last_step) / last_step
    signature = "at evaluations on dev; steps of equal length"
    write_metrics(
        context.directory,
        {
            "catch_up/is_reached": Score(
                "catch_up/is_reached", float(bool(reached)), 1, "maximize", signature
            ),
            "catch_up/s": Score("catch_up/s", seconds, 1, "minimize", signature),
        },
    )
