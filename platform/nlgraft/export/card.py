"""The card of an exported model: data, study, scores, licence of what it rests on, use."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.basics.wording import count, inert_markdown
from nlgraft.export.choice import Choice
from nlgraft.study.reading.documents import masked, write_yaml

_UNKNOWN = "unknown"
_USES = {"translation": "translate", "classification": "classify"}
_LICENCE = re.compile(r"^license:\s*[\"']?([\w.+-]+)", re.MULTILINE)


def write_card(
    choice: Choice, task: str, columns: tuple[str, ...], forms: Mapping[str, str], out: Path
) -> None:
    """Write ``README.md`` of an exported directory."""
    study = choice.result.study
    bases = dict(_bases(choice.trial.config))
    system = choice.result.system
    library = "transformers" if (out / "config.json").is_file() else "nlgraft"
    licences = sorted(set(bases.values()) - {_UNKNOWN})
    data = write_yaml(masked(dict(study.data))).rstrip().replace("```", "` ` `")
    parts = [
        "---",
        f"library_name: {library}",
        *([f"license: {licences[0]}"] if len(licences) == 1 and _UNKNOWN not in bases.values() else []),
        f"tags: [nlgraft, {system.name}]",
        "---",
        f"# {study.variant}: {choice.cell.cell.label}, seed {choice.trial.seed}",
        "",
        f"A model of `{system.path}`: {system.description} ({system.paper})",
        "",
        *(f"- {reason}" for reason in choice.reasons),
        *_constructed(choice),
        "",
        "## Use",
        "",
        *_use(task, columns),
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
    text = "\n".join(one if one is data else inert_markdown(one) for one in parts)
    (out / "README.md").write_text(text + "\n", "utf-8")


def _constructed(choice: Choice) -> list[str]:
    if not choice.result.is_constructed:
        return []
    return ["- trained on a constructed language: it shows that a method works, and is of no other use"]


def _use(task: str, columns: tuple[str, ...]) -> list[str]:
    if task not in _USES:
        return []
    given = "a line of standard input" if len(columns) == 1 else f"{len(columns)} columns, a tab between them"
    call = _USES[task]
    arguments = ", ".join(["[text]"] * len(columns))
    return [
        f"`nlgraft {call} DIR < text` reads {given} ({', '.join(columns)}); in Python "
        f"`nlgraft.load_model(DIR).{call}({arguments})`. It answers as the study's own trial did.",
        "",
    ]


def _scores(choice: Choice) -> list[str]:
    """Tabulate this model's scores, and the mean of its cell with an interval."""
    result, analysis = choice.result, choice.result.study.analysis
    comparer = Comparer(test=analysis.test, samples=result.samples, alpha=analysis.alpha)
    percent = f"{100 * (1 - analysis.alpha):g} %"
    rows = [
        f"| metric | this model | mean of the cell | {percent} interval of the mean | seeds | computed as |",
        "|---|---|---|---|---|---|",
    ]
    for name, metric in result.metrics.items():
        own, trials = choice.trial.measured(name), choice.cell.measured(name)
        if metric.is_time or metric.is_fixed or metric.split is None or own is None:
            continue
        found = comparer.contrast(name, choice.cell.cell.label, "", [(1.0, trials)])
        ends = "none" if found.ci is None else f"{found.ci[0]:.4g} to {found.ci[1]:.4g} (over {found.scope})"
        mean = "" if found.difference is None else f"{found.difference:.4g}"
        signature = (own.signature or "").replace("|", "\\|")
        rows.append(f"| {name} | {own.value:.4g} | {mean} | {ends} | {len(trials)} | {signature} |")
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
    lines.append("- versions: " + ", ".join(f"{name} {'/'.join(found)}" for name, found in packages))
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
    found = _LICENCE.search(Path(card).read_text("utf-8", errors="replace"))
    return found[1] if found else _UNKNOWN
