"""Write the noise that nlgraft publishes, from stores in which shipped studies ran.

``python -m benchmarks.published_noise STORE ...`` replaces the rows of these studies in the package's file
and keeps those of others. Only studies of ``search_spaces/`` enter, so that anybody can run them again; leave
out those of files, whose digests are of a place: run elsewhere, they would borrow from their own trials.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path

import yaml

import nlgraft
from nlgraft.analysis.data.published_noise import FILE, PublishedNoise, published_noise
from nlgraft.analysis.estimates.noise_prior import paired_kinds, study_variance
from nlgraft.analysis.rendering.tables import is_length
from nlgraft.analysis.study_result import StudyResult
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.planning.selection import cell_key
from nlgraft.study.reading.reader import recorded_names

SHIPPED = Path("search_spaces")
LEAST = 1e-20


def rows_of(result: StudyResult) -> Iterator[PublishedNoise]:
    """Compute the noise of one study: of each of its metrics, and each two kinds of trainings."""
    trainings = result.trainings
    by_kinds = {
        kinds: pair
        for pair in combinations(trainings.values(), 2)
        if (kinds := paired_kinds(pair)) is not None
    }
    for name, metric in result.metrics.items():
        # What verdicts and streams are about.
        is_judged = metric.split == "test" or name == result.study.objective.metric
        if metric.split is None or metric.is_time or is_length(name) or not is_judged:
            continue
        scores = {cell.label: cell.values(name) for cell in result.cells}
        values = [value for by_seed in scores.values() for value in by_seed.values()]
        for kinds, pair in by_kinds.items():
            pooled = study_variance(trainings, scores, kinds)
            num_tokens = max(training.num_tokens for training in pair)
            # What differs by rounding alone does not vary.
            if pooled.variance > LEAST * max(map(abs, values)) ** 2 and num_tokens:
                yield PublishedNoise(
                    study=result.study.variant,
                    date=datetime.now(UTC).date().isoformat(),
                    system=result.study.system,
                    metric=name,
                    stages=tuple(sorted({training.stages for training in pair})),
                    num_tokens=num_tokens,
                    num_segments=result.num_segments(name),
                    variance=float(f"{pooled.variance:.5g}"),
                    df=float(f"{pooled.df:.5g}"),
                    configs=tuple(cell_key(result.study, cell.cell) for cell in result.cells),
                    seeds=tuple(sorted({seed for by_seed in scores.values() for seed in by_seed})),
                )


def main() -> None:
    """Write the file, and print a row for each study and metric."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.published_noise", description=__doc__)
    parser.add_argument("stores", nargs="+", metavar="STORE")
    # By the names that the files give; a study with other overrides than a scale is another one.
    shipped = {yaml.safe_load(path.read_text("utf-8"))["name"] for path in SHIPPED.glob("*/*.yaml")}
    rows = []
    for place in parser.parse_args().stores:
        for name in recorded_names(ArtifactStore.open(place)):
            result = nlgraft.load(name, place)
            study = result.study
            # Cells of a search differ by what was proposed as well.
            is_tuned = study.search is not None
            if study.name in shipped and not is_tuned and all(text[0] == "@" for text in study.overrides):
                rows += rows_of(result)
    replaced = {(row.system, row.study) for row in rows}
    rows += [row for row in published_noise() if (row.system, row.study) not in replaced]
    rows.sort(key=lambda row: (row.system, row.study, row.metric, row.stages))
    FILE.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), "utf-8")
    for row in rows:
        print(f"{row.study}: {row.metric}: deviation {row.variance**0.5:.3g}, {row.df:.1f} df")


if __name__ == "__main__":
    main()
