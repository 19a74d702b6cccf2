"""Run every benchmark and write the dated result beside this file."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path

import torch

from benchmarks import decoding, overhead, training
from benchmarks.material import SIZE, load_material
from benchmarks.measure import table

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Measure on one thread, print and write ``results/DATE.md``."""
    torch.set_num_threads(1)
    material = load_material()
    today = datetime.date.today().isoformat()
    lines = [
        f"# {today}",
        "",
        f"{os.cpu_count()} CPUs ({platform.machine()}), one thread, torch {torch.__version__}, "
        f"{material.name}, vocabulary {material.vocab_size}, "
        f"{', '.join(f'{name} {size}' for name, size in SIZE.items())}. "
        f"Load average at the start: {os.getloadavg()[0]:.1f}.",
        "",
        f"## Training, {training.BATCH_TOKENS} tokens a batch",
        "",
        *table(training.measure(material), "Marian, our batches"),
        "",
        f"## Decoding, beam {decoding.BEAM}, {decoding.NUM_OUTPUT_TOKENS} output tokens, random weights",
        "",
        *table(decoding.measure(material), "Hugging Face generate"),
    ]
    cost = overhead.measure()
    lines += [
        "",
        "## Overhead of a one-worker trial on a reused actor",
        "",
        f"{cost.median_s:.2f} s ({cost.low_s:.2f}-{cost.high_s:.2f}) between the ends of empty trials.",
    ]
    text = "\n".join(lines) + "\n"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{today}.md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
