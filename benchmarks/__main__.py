"""Run benchmarks: all of them, with the dated result written beside this file, or those that are named.

Ends with code 1 if something is slower than in the last dated result, beyond noise; stderr names it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks import (
    decoding,
    fusion,
    growth,
    language_model_decoding,
    many_trials,
    multi_source_decoding,
    overhead,
    simulation,
    stage_sharing,
    training,
    trial_memory,
    verdicts,
    vocabulary,
    vocabulary_peers,
)
from benchmarks.material import SIZE, load_material
from benchmarks.regressions import regressions

RESULTS = Path(__file__).parent / "results"
BENCHMARKS: dict[str, Callable[[], list[str]]] = {
    "training": training.report,
    "decoding": decoding.report,
    "fusion": fusion.report,
    "language_model_decoding": language_model_decoding.report,
    "multi_source_decoding": multi_source_decoding.report,
    "overhead": overhead.report,
    "many_trials": many_trials.report,
    "simulation": simulation.report,
    "trial_memory": trial_memory.report,
    "stage_sharing": stage_sharing.report,
    "vocabulary": vocabulary.report,
    "vocabulary_peers": vocabulary_peers.report,
    "growth": growth.report,
    "verdicts": verdicts.report,
}
"""Each returns Markdown lines, the first one a heading."""


def _head() -> list[str]:
    material = load_material()
    return [
        f"# {datetime.date.today().isoformat()}",
        "",
        f"{os.cpu_count()} CPUs ({platform.machine()}), one thread, torch {torch.__version__}, "
        f"{material.name}, vocabulary {material.vocab_size}, "
        f"{', '.join(f'{name} {size}' for name, size in SIZE.items())}. "
        f"Load average at the start: {os.getloadavg()[0]:.1f}.",
        "",
        f"Processor: {_processor()}",
    ]


def _processor() -> str:
    """Name the kind of CPU: virtual machines hide its name, but not its family."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().split("\n\n")[0].splitlines() if path.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    values = [facts[name] for name in ("vendor_id", "cpu family", "model") if name in facts]
    return f"{' '.join(values) or platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"


def main() -> int:
    """Measure on one thread and print; write ``results/DATE.md`` when all were run.

    Returns:
        1 if something became slower, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(BENCHMARKS)}")
    names = parser.parse_args().names
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)
    lines = _head()
    for name in names or BENCHMARKS:
        began_s = time.process_time()
        lines += ["", *BENCHMARKS[name]()]
        sys.stderr.write(f"{name}: {time.process_time() - began_s:.0f} CPU-s\n")
    text = "\n".join(lines) + "\n"
    today = datetime.date.today().isoformat()
    if not names:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{today}.md").write_text(text)
    sys.stdout.write(text)
    slower = regressions(text, RESULTS, before=today)
    sys.stderr.writelines(f"slower: {line}\n" for line in slower)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
