"""Deviations of a study from its registration, in plain words: the difference of two frozen contents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
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
    labels = {counterpart.label: cell.label for cell, counterpart in pairs}
    base = next((cell for cell, counterpart in pairs if counterpart is now.cells[0]), now.cells[0])
    old_claims, new_claims = _claims(registered, {}), _claims(now, labels)
    # Metrics that only one has are those of another objective or claim, which are listed themselves.
    old_metrics, new_metrics = (
        {name: content.metrics[name] for name in registered.metrics if name in now.metrics}
        for content in (registered, now)
    )
    return [
        *_differences(_head(registered, registered.cells[0]), _head(now, base)),
        *_left_out_or_added("cell", _unpaired(registered, pairs, 0), _unpaired(now, pairs, 1)),
        *_renamed(pairs),
        *_left_out_or_added("claim", [*old_claims], [*new_claims]),
        *(
            deviation
            for text, claim in old_claims.items()
            if text in new_claims
            for deviation in _differences(claim, new_claims[text], f"claim {text}, ")
        ),
        *_differences(registered.settings, now.settings),
        *_differences(old_metrics, new_metrics, "metric "),
        *_cell_settings(pairs),
        *_stages(pairs),
    ]


def _without_removed(settings: Settings) -> Settings:
    return {
        path: value
        for path, value in settings.items()
        if not isinstance(value, str) or (path, value) not in _REMOVED
    }


def _head(content: Content, base: FrozenCell) -> Settings:
    return {"system": content.system, "seeds": listed(content.seeds), "baseline": _levels(base)}


def _levels(cell: FrozenCell) -> str:
    return ", ".join(f"{name}={level_text(level)}" for name, level in cell.levels.items()) or cell.label


def _unpaired(content: Content, pairs: Pairs, side: int) -> list[str]:
    matched = [pair[side].label for pair in pairs]
    return [cell.label for cell in content.cells if cell.label not in matched]


def _left_out_or_added(kind: str, registered: Sequence[str], now: Sequence[str]) -> Iterator[Deviation]:
    for name in registered:
        if name not in now:
            yield Deviation(what=f"{kind} {name}", registered="registered", now="left out of the study")
    for name in now:
        if name not in registered:
            yield Deviation(what=f"{kind} {name}", registered="not registered", now="added")


def _renamed(pairs: Pairs) -> Iterator[Deviation]:
    for cell, counterpart in pairs:
        is_same = canonical_json(cell.levels) == canonical_json(counterpart.levels)
        if cell.label != counterpart.label and not is_same:
            yield Deviation(what="name of a cell", registered=cell.label, now=counterpart.label)


def _claims(content: Content, labels: Mapping[str, str]) -> dict[str, Settings]:
    """Return the claims by their text, with cells named as they were registered."""
    claims: dict[str, Settings] = {}
    for claim in content.claims:
        renamed: Settings = {
            name: labels.get(str(claim[name]), claim[name]) for name in ("better", "worse") if name in claim
        }
        if isinstance(exceeds := claim.get("exceeds"), list):
            renamed["exceeds"] = [labels.get(str(label), label) for label in exceeds]
        text = claim_text(claim | renamed)
        claims[f"{text} of {claim.get('source')}" if text in claims else text] = claim | renamed
    return claims


def claim_text(claim: Settings) -> str:
    """Write a claim, without its figures and margin, as lists of deviations name it."""
    metric = claim.get("metric")
    text = f"{claim.get('better')} better than {claim.get('worse')} on {metric}"
    if isinstance(exceeds := claim.get("exceeds"), list):
        text += f", by more than {exceeds[0]} over {exceeds[1]}"
    return f"“{text}”"


def _cell_settings(pairs: Pairs) -> Iterator[Deviation]:
    labels_of: dict[Deviation, list[str]] = {}
    for registered, now in pairs:
        for deviation in _differences(registered.settings, now.settings):
            labels_of.setdefault(deviation, []).append(registered.label)
    for deviation, labels in labels_of.items():
        where = f" in {'; '.join(labels)}" if len(labels) < len(pairs) else ""
        yield replace(deviation, what=deviation.what + where)


def _stages(pairs: Pairs) -> Iterator[Deviation]:
    """List other versions of stages, and other inputs of stages where no setting differs."""
    deviations: dict[str, Deviation] = {}
    for registered, now in pairs:
        is_edited = canonical_json(registered.settings) != canonical_json(now.settings)
        for name in dict.fromkeys([*registered.stages, *now.stages]):
            old, new = registered.stages.get(name), now.stages.get(name)
            if old is not None and new is not None and old[0] != new[0]:
                versions = {"registered": f"version {old[0]}", "now": f"version {new[0]}"}
                deviations[name] = Deviation(what=f"stage {name} of the system", **versions)
            elif old != new and not is_edited:
                deviations.setdefault(name, _other_stage(name, old is None, new is None))
    yield from deviations.values()


def _other_stage(name: str, is_new: bool, is_gone: bool) -> Deviation:
    if is_new or is_gone:
        before, after = ("none", "added") if is_new else ("registered", "left out")
        return Deviation(what=f"stage {name} of the system", registered=before, now=after)
    return Deviation(
        what=f"what stage {name} reads, though no setting differs (a file or the system's code)",
        registered="as registered",
        now="changed",
    )


def _differences(
    registered: Mapping[str, Any], now: Mapping[str, Any], prefix: str = ""
) -> Iterator[Deviation]:
    for path in dict.fromkeys([*registered, *now]):
        old, new = registered.get(path), now.get(path)
        if canonical_json(old) != canonical_json(new):
            yield Deviation(what=prefix + path, registered=_shown(old), now=_shown(new))


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def listed(items: Sequence[object]) -> str:
    """List items with commas."""
    return ", ".join(map(str, items))
