"""Export of a study's winner: choice, model directory and card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nlgraft.analysis.data.trials import CellResult, TrialResult
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import DataError, nearest
from nlgraft.basics.wording import count, inert_markdown
from nlgraft.export.description import USES, Description
from nlgraft.export.exported import Forms, write_directory
from nlgraft.pipeline.stage import StageGraph
from nlgraft.study.reading.documents import masked, write_yaml
from nlgraft.study.reading.resolving import resolve_cell
from nlgraft.text.files import refuse_used, written_at_once


@dataclass(frozen=True)
class Export:
    """A model that was written.

    Attributes:
        directory: Where it is.
        choice: The trial that it is of.
        description: How it is used.
        forms: By ``transformers`` and ``ctranslate2``, what is there, or why nothing is.
    """

    directory: Path
    choice: Choice
    description: Description
    forms: Forms

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "directory": str(self.directory),
            "study": self.choice.result.study.variant,
            "cell": self.choice.cell.cell.label,
            "seed": self.choice.trial.seed,
            "reasons": list(self.choice.reasons),
            "trial": self.choice.trial.fingerprint,
            "task": self.description.task,
            "columns": list(self.description.columns),
            "forms": self.forms,
        }


def write_export(
    result: StudyResult,
    out: Path,
    cell: str | None,
    seed: int | None,
) -> Export:
    """Write the model of a study's best cell, or of another one, with its card.

    Args:
        result: The study's results.
        out: A directory that does not exist, or an empty one; it appears whole or not at all.
        cell: A text that names a cell; None for the best by the objective.
        seed: A finished seed; None for that of the median score.

    Raises:
        StudyError: The study has no such cell.
        DataError: Nothing has finished, the trial has no model, or ``out`` is taken.
        StoreError: An artifact is missing or damaged.
    """
    assert result.store is not None, "results that are read have a store"
    if result.system.no_model:
        raise DataError(f"{result.system.path}: no model to take away; {result.system.no_model}")
    refuse_used(out)
    choice = choose(result, cell, seed)
    try:
        with written_at_once(out) as partial:
            description, forms = write_directory(choice.graph, result.store, partial)
            write_card(choice, description, forms, partial)
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written ({error}); give another directory") from error
    return Export(out, choice, description, forms)


# The card of an exported model: data, study, scores, licence of what it rests on, use.


_UNKNOWN = "unknown"
_CONSTRUCTED = "- trained on a constructed language: it shows that a method works, and is of no other use"
_LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)


def write_card(
    choice: Choice,
    description: Description,
    forms: Mapping[str, str],
    out: Path,
) -> None:
    """Write ``README.md`` of an exported directory."""
    study = choice.result.study
    bases = dict(_bases(choice.trial.config))
    system = choice.result.system
    library = "transformers" if (out / "config.json").is_file() else "nlgraft"
    licences = set(bases.values())
    is_licence_known = len(licences) == 1 and _UNKNOWN not in licences
    data = write_yaml(masked(dict(study.data))).rstrip().replace("```", "` ` `")
    parts = [
        "---",
        f"library_name: {library}",
        *([f"license: {licence}" for licence in licences] if is_licence_known else []),
        f"tags: [nlgraft, {system.name}]",
        "---",
        f"# {study.variant}: {choice.cell.cell.label}, seed {choice.trial.seed}",
        "",
        f"A model of `{system.path}`: {system.description} ({system.paper})",
        "",
        *(f"- {reason}" for reason in choice.reasons),
        *([_CONSTRUCTED] if choice.result.is_constructed else []),
        "",
        "## Use",
        "",
        *_usage(description),
        *(f"- {name}: {how}" for name, how in sorted(forms.items())),
        "",
        "## Scores",
        "",
        *_scores(choice),
        "",
        "## Data",
        "",
        "```yaml",
        data,
        "```",
        "",
        "## What it rests on",
        "",
        *([f"- `{name}`: licence {licence}" for name, licence in bases.items()] or ["Nothing released."]),
        "The licence of the training text is that of its owners; nlgraft does not know it.",
        "",
        "## Provenance",
        "",
        *_provenance(choice),
    ]
    text = "\n".join(line if line is data else inert_markdown(line) for line in parts)
    (out / "README.md").write_text(text + "\n", "utf-8")


def _usage(description: Description) -> list[str]:
    call, columns = USES.get(description.task), description.columns
    if call is None:
        return []
    source = (
        "a line of standard input" if len(columns) == 1 else f"{len(columns)} columns, a tab between them"
    )
    arguments = ", ".join(["[text]"] * len(columns))
    return [
        f"`nlgraft {call} DIR < text` reads {source} ({', '.join(columns)}); in Python "
        f"`nlgraft.load_model(DIR).{call}({arguments})`. It answers as the study's own trial did.",
        "",
    ]


def _scores(choice: Choice) -> list[str]:
    """Tabulate this model's scores, and the mean of its cell with an interval."""
    result, analysis = choice.result, choice.result.study.analysis
    comparer = Comparer(samples=result.samples, alpha=analysis.alpha)
    percent = f"{100 * (1 - analysis.alpha):g} %"
    rows = [
        f"| metric | this model | mean of the cell | {percent} interval of the mean | seeds | computed as |",
        "|---|---|---|---|---|---|",
    ]
    for name, metric in result.metrics.items():
        score, trials = choice.trial.measured(name), choice.cell.measured(name)
        if metric.is_time or metric.is_fixed or metric.split is None or score is None:
            continue
        contrast = comparer.contrast(name, choice.cell.cell.label, "", [(1.0, trials)])
        ends = (
            "none"
            if contrast.ci is None
            else f"{contrast.ci[0]:.4g} to {contrast.ci[1]:.4g} (over {contrast.scope})"
        )
        mean = "" if contrast.difference is None else f"{contrast.difference:.4g}"
        signature = (score.signature or "").replace("|", "\\|")
        rows.append(f"| {name} | {score.value:.4g} | {mean} | {ends} | {len(trials)} | {signature} |")
    shared = choice.cell.trained_once
    if shared:
        rows += [
            "",
            f"All seeds share {', '.join(sorted(shared.values()))}: no interval includes its variance.",
        ]
    return [*rows, "", "dev chose the model; test did not."]


def _provenance(choice: Choice) -> list[str]:
    result, trial = choice.result, choice.trial
    factors = ", ".join(f"{name}={level}" for name, level in choice.cell.cell.levels.items())
    compared = count(len(result.cells), "cell")
    lines = [
        f"- study `{result.study.variant}`, fingerprint `{result.study.fingerprint}`, {compared}",
        f"- factors: {factors or 'none'}",
        f"- trial `{trial.fingerprint}`, seed {trial.seed}",
    ]
    if trial.params:
        lines.append("- found by the search: " + ", ".join(f"{k} {v}" for k, v in trial.params.items()))
    if result.provenance.commits:
        lines.append(f"- code: {', '.join(result.provenance.commits)}")
    packages = result.provenance.versions.items()
    lines.append("- versions: " + ", ".join(f"{name} {'/'.join(versions)}" for name, versions in packages))
    return lines


def _bases(config: Any) -> Iterator[tuple[str, str]]:
    """Yield every released checkpoint of a config with its licence, as far as its own card says it."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            if key in ("checkpoint", "directory") and isinstance(value, str):
                path = Path(value).expanduser()
                yield path.name if path.is_absolute() else value, _licence(value)
            else:
                yield from _bases(value)
    elif isinstance(config, list):
        for value in config:
            yield from _bases(value)


def _licence(checkpoint: str) -> str:
    """Read the licence in a checkpoint's card, in its directory or in the hub's cache on this machine."""
    card: Any = Path(checkpoint).expanduser() / "README.md"
    if not card.is_file() and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", checkpoint):
        from huggingface_hub import try_to_load_from_cache

        card = try_to_load_from_cache(checkpoint, "README.md")
    if not isinstance(card, str | Path) or not Path(card).is_file():
        return _UNKNOWN
    match = _LICENCE.search(Path(card).read_text("utf-8", errors="replace"))
    return match[1] if match else _UNKNOWN


# Which trial of a study is taken away, and why that one.


@dataclass(frozen=True)
class Choice:
    """A finished replicate of a study.

    Attributes:
        result: The results that it was chosen from.
        cell: Its cell.
        trial: The replicate.
        reasons: Why this cell and this seed, in one sentence each.
    """

    result: StudyResult
    cell: CellResult
    trial: TrialResult
    reasons: tuple[str, str]

    @property
    def graph(self) -> StageGraph:
        """The trial's stages."""
        resolved = resolve_cell(self.result.study, self.cell.cell, self.cell.params)
        return resolved.graph(self.trial.seed)


def choose(
    result: StudyResult,
    cell: str | None = None,
    seed: int | None = None,
) -> Choice:
    """Choose a replicate; without a cell the best one, without a seed that of the median score.

    The objective decides, on dev, so that test scores of what is taken away stay unbiased by the choice. The
    best seed would promise what another training of the same recipe does not keep.

    Raises:
        StudyError: The study has no such cell.
        DataError: Nothing has finished that could be taken.
    """
    objective = result.study.objective
    if cell is None:
        means = [(result_cell.mean(objective.metric), result_cell) for result_cell in result.cells]
        scored = [(mean, finished) for mean, finished in means if mean is not None]
        if not scored:
            is_finished = any(trial.state == "finished" for each in result.cells for trial in each.trials)
            why = "no trial has finished; run the study first"
            if is_finished:
                why = f"no finished trial has a value of {objective.metric}"
            raise DataError(f"{result.study.variant}: {why}")
        mean, chosen = max(scored, key=lambda pair: objective.sign * pair[0])
        of = count(len(scored), "finished cell")
        why_cell = f"cell {chosen.cell.label}: the best mean {objective.metric}, {mean:.4g}, of {of}"
    else:
        chosen = result.cell(cell)
        why_cell = f"cell {chosen.cell.label}: as asked for"
    trial, why_seed = _choose_seed(chosen, objective.metric, objective.sign, seed)
    return Choice(result, chosen, trial, (why_cell, why_seed))


def _choose_seed(
    cell: CellResult,
    metric: str,
    sign: float,
    seed: int | None,
) -> tuple[TrialResult, str]:
    measured = cell.measured(metric)
    finished = {trial.seed: trial for trial in cell.trials if trial.seed in measured}
    if not finished:
        raise DataError(
            f"cell {cell.cell.label}: no trial has finished with a value of {metric}; run the study"
        )
    if seed is not None:
        if seed not in finished:
            allowed = nearest(str(seed), [str(other_seed) for other_seed in finished])
            raise DataError(f"cell {cell.cell.label}: seed {seed} has not finished. {allowed}")
        return finished[seed], f"seed {seed}: as asked for"
    ordered = sorted(finished, key=lambda other_seed: sign * measured[other_seed].value)
    # Of two middle ones the worse: a promise is to be kept.
    middle = ordered[(len(ordered) - 1) // 2]
    if len(ordered) == 1:
        return finished[middle], f"seed {middle}: the only one that has finished"
    which = "median" if len(ordered) % 2 else "lower of the two middle values"
    value = f"{metric}, {measured[middle].value:.4g}, of {len(ordered)} seeds"
    return finished[middle], f"seed {middle}: the {which} by {value}"
