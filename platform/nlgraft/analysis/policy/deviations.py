"""Deviations of a study from its registration: the difference of two frozen contents, setting by setting."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nlgraft.analysis.data.registration import Content, FrozenCell, Settings
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data.design import level_text

NONE = "none"
_SHOWN_CHARS = 100
_REMOVED = {
    ("score.engine", "torch"),
    ("score.dev_precision", "fp32"),
    ("transfer.norm_match", "none"),
    ("vocabulary.norm_match", "none"),
    ("transfer.order", "id"),
    ("generator.init", "zeros"),
    ("generator.distillation_reduction", "sum_dim"),
    ("generator.distillation_align", "input"),
}
"""Settings that there are no more, with what takes their place: no deviation of an earlier registration."""
Pairs = Sequence[tuple[FrozenCell, FrozenCell]]
"""Registered cells, and what they are now."""


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A deviation.

    Attributes:
        what: What deviates.
        registered: How it was registered.
        now: How it is now.
    """

    what: str
    registered: str
    now: str

    @property
    def text(self) -> str:
        """The deviation in one line."""
        return f"{self.what}: {self.registered} → {self.now}"

    def to_json(self) -> dict[str, str]:
        """Return it as JSON values."""
        return asdict(self)


def paired(registered: Content, now: Content) -> Pairs:
    """Match cells by their settings (renamed ones, too), else by their labels (edited ones)."""
    by_settings = {canonical_json(cell.settings): cell for cell in now.cells}
    same = [(cell, by_settings.pop(canonical_json(cell.settings), None)) for cell in registered.cells]
    by_label = {cell.label: cell for cell in by_settings.values()}
    pairs = [(cell, counterpart or by_label.get(cell.label)) for cell, counterpart in same]
    return [(cell, counterpart) for cell, counterpart in pairs if counterpart is not None]


def deviations_of(registered: Content, now: Content) -> list[Deviation]:
    """List the deviations of a study, as its file is now, from what was registered."""
    cells = [replace(cell, settings=_without_removed(cell.settings)) for cell in registered.cells]
    registered = replace(registered, cells=tuple(cells))
    pairs = paired(registered, now)
    base = next((cell for cell, counterpart in pairs if counterpart is now.cells[0]), now.cells[0])
    names = {counterpart.label: cell.label for cell, counterpart in pairs}
    # Metrics that only one has are those of another objective or claim, which are listed themselves.
    metrics = [name for name in registered.metrics if name in now.metrics]
    old_labels, new_labels = ({pair[side].label for pair in pairs} for side in (0, 1))
    old = _document(registered, registered.cells[0], old_labels, {}, metrics)
    new = _document(now, base, new_labels, names, metrics)
    stages = [deviation for pair in pairs for deviation in _differences(*_stages(*pair))]
    return [
        *_differences(old, new),
        *_renamed(pairs),
        *_cell_settings(pairs),
        *{deviation.what: deviation for deviation in stages}.values(),
    ]


def _without_removed(settings: Settings) -> Settings:
    return {
        path: value
        for path, value in settings.items()
        if not isinstance(value, str) or (path, value) not in _REMOVED
    }


def _document(
    content: Content,
    base: FrozenCell,
    paired_labels: Collection[str],
    names: Mapping[str, str],
    metrics: Sequence[str],
) -> dict[str, Any]:
    """Write a content as a mapping whose differences are deviations.

    Args:
        content: The content.
        base: Its baseline, as it was registered.
        paired_labels: Labels of the cells that the other content has as well.
        names: Registered labels by label.
        metrics: The metrics that both contents have.
    """
    return {
        "system": content.system,
        "seeds": listed(content.seeds),
        "baseline": ", ".join(f"{n}={level_text(level)}" for n, level in base.levels.items()) or base.label,
        **{f"cell {cell.label}": {} for cell in content.cells if cell.label not in paired_labels},
        **_claims(content, names),
        **content.settings,
        **{f"metric {name}": content.metrics[name] for name in metrics},
    }


def _claims(content: Content, names: Mapping[str, str]) -> dict[str, Settings]:
    """Return the claims by their text, with cells named as they were registered."""
    claims: dict[str, Settings] = {}
    for claim in content.claims:
        renamed: Settings = {
            name: names.get(str(claim[name]), claim[name]) for name in ("better", "worse") if name in claim
        }
        if isinstance(exceeds := claim.get("exceeds"), list):
            renamed["exceeds"] = [names.get(str(label), label) for label in exceeds]
        text = f"claim {claim_text(claim | renamed)}"
        claims[f"{text} of {claim.get('source')}" if text in claims else text] = claim | renamed
    return claims


def claim_text(claim: Settings) -> str:
    """Write a claim, without its figures and margin, as lists of deviations name it."""
    metric = claim.get("metric")
    text = f"{claim.get('better')} better than {claim.get('worse')} on {metric}"
    if isinstance(exceeds := claim.get("exceeds"), list):
        text += f", by more than {exceeds[0]} over {exceeds[1]}"
    return f"“{text}”"


def _renamed(pairs: Pairs) -> Iterator[Deviation]:
    for cell, counterpart in pairs:
        # Another baseline changes labels, and no levels.
        is_same = canonical_json(cell.levels) == canonical_json(counterpart.levels)
        if cell.label != counterpart.label and not is_same:
            yield Deviation(what="name of a cell", registered=cell.label, now=counterpart.label)


def _cell_settings(pairs: Pairs) -> Iterator[Deviation]:
    labels_of: dict[Deviation, list[str]] = {}
    for registered, now in pairs:
        for deviation in _differences(registered.settings, now.settings):
            labels_of.setdefault(deviation, []).append(registered.label)
    for deviation, labels in labels_of.items():
        where = f" in {'; '.join(labels)}" if len(labels) < len(pairs) else ""
        yield replace(deviation, what=deviation.what + where)


def _stages(registered: FrozenCell, now: FrozenCell) -> tuple[Settings, Settings]:
    """Return versions of stages and, where neither settings nor version differ, digests of what they read."""
    is_edited = canonical_json(registered.settings) != canonical_json(now.settings)
    versions: tuple[Settings, Settings] = ({}, {})
    for cell, other, settings in zip((registered, now), (now, registered), versions, strict=True):
        for name, (version, digest) in cell.stages.items():
            settings[f"stage {name} of the system"] = f"version {version}"
            if not is_edited and other.stages.get(name, (None,))[0] == version:
                reads = f"what stage {name} reads, though no setting differs (a file or the system's code)"
                settings[reads] = digest
    return versions


def _differences(
    registered: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[Deviation]:
    """Compare two mappings, in which a mapping is a thing that there is, or is not."""
    for path in dict.fromkeys([*registered, *now]):
        old, new = registered.get(path), now.get(path)
        what = prefix + path
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{what}, ")
        elif isinstance(old, Mapping):
            yield Deviation(what=what, registered="registered", now="left out of the study")
        elif isinstance(new, Mapping):
            yield Deviation(what=what, registered="not registered", now="added")
        elif canonical_json(old) != canonical_json(new):
            yield Deviation(what=what, registered=_shown(old), now=_shown(new))


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def listed(items: Sequence[object]) -> str:
    """List items with commas."""
    return ", ".join(map(str, items))
