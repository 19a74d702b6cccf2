"""Deviations of a study from its registration, in plain words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nlgraft.analysis.data.frozen import Content, FrozenCell, Settings
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data.design import level_text

NONE = "none"
_SHOWN_CHARS = 100
_CELLS = ("better", "worse", "cell")
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
_Pairs = list[tuple[FrozenCell, FrozenCell]]


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


@dataclass(frozen=True)
class Matching:
    """Which cells of a study are which registered ones.

    Attributes:
        pairs: Registered cells and what they are now.
        gone: Registered cells that the study has no more.
        new: Cells that were not registered.
    """

    pairs: _Pairs
    gone: list[FrozenCell]
    new: list[FrozenCell]

    @classmethod
    def of(cls, registered: Content, now: Content) -> Matching:
        """Match cells: by levels and settings, else by settings (renamed), levels, or label (edited)."""
        pairs: _Pairs = []
        gone, new = list(registered.cells), list(now.cells)
        identities: list[Callable[[FrozenCell], Any]] = [
            lambda cell: canonical_json([cell.levels, cell.settings]),
            lambda cell: canonical_json(cell.settings),
            lambda cell: canonical_json(cell.levels),
            lambda cell: cell.label,
        ]
        for identity in identities:
            by_identity = {identity(cell): cell for cell in new}
            for cell in list(gone):
                if (counterpart := by_identity.pop(identity(cell), None)) is not None:
                    pairs.append((cell, counterpart))
                    gone.remove(cell)
                    new.remove(counterpart)
        return cls(pairs, gone, new)

    @property
    def labels(self) -> dict[str, str]:
        """Registered labels by those of now."""
        return {now.label: registered.label for registered, now in self.pairs}


def deviations_of(registered: Content, now: Content) -> list[Deviation]:
    """List the deviations of a study, as its file is now, from what was registered."""
    cells = [replace(cell, settings=_without_removed(cell.settings)) for cell in registered.cells]
    registered = replace(registered, cells=tuple(cells))
    matching = Matching.of(registered, now)
    return [
        *_values({"system": registered.system}, {"system": now.system}),
        *_seeds(registered, now),
        *_cells(registered, now, matching),
        *_claims(registered, now, matching.labels),
        *_values(registered.settings, now.settings),
        *_metrics(registered, now),
        *_cell_settings(matching.pairs),
        *_stages(matching.pairs),
    ]


def _without_removed(settings: Settings) -> Settings:
    return {
        path: value
        for path, value in settings.items()
        if not isinstance(value, str) or (path, value) not in _REMOVED
    }


def _seeds(registered: Content, now: Content) -> Iterator[Deviation]:
    if registered.seeds == now.seeds:
        return
    left_out = [seed for seed in registered.seeds if seed not in now.seeds]
    added = [seed for seed in now.seeds if seed not in registered.seeds]
    changes = [
        f"{listed(seeds)} {word}" for seeds, word in ((left_out, "left out"), (added, "added")) if seeds
    ]
    note = "; ".join(changes) or "another order, in which looks take them"
    yield Deviation(what="seeds", registered=listed(registered.seeds), now=f"{listed(now.seeds)} ({note})")


def _cells(registered: Content, now: Content, matching: Matching) -> Iterator[Deviation]:
    first = next((counterpart for cell, counterpart in matching.pairs if cell is registered.cells[0]), None)
    if first is not now.cells[0]:
        before, after = (_levels(content.cells[0]) for content in (registered, now))
        yield Deviation(what="baseline", registered=before, now=after)
    for cell in matching.gone:
        yield Deviation(what=f"cell {cell.label}", registered="registered", now="left out of the study")
    for cell in matching.new:
        yield Deviation(what=f"cell {cell.label}", registered="not registered", now="added")
    for cell, counterpart in matching.pairs:
        is_same = canonical_json(cell.levels) == canonical_json(counterpart.levels)
        if cell.label != counterpart.label and not is_same:
            yield Deviation(what="name of a cell", registered=cell.label, now=counterpart.label)


def _levels(cell: FrozenCell) -> str:
    return ", ".join(f"{name}={level_text(level)}" for name, level in cell.levels.items()) or cell.label


def _claims(registered: Content, now: Content, labels: Mapping[str, str]) -> Iterator[Deviation]:
    gone = list(registered.claims)
    new = [_relabelled(claim, labels) for claim in now.claims]
    for claim in list(gone):
        if claim in new:
            gone.remove(claim)
            new.remove(claim)
    for claim in list(gone):
        edited = _most_alike(claim, new)
        if edited is not None:
            gone.remove(claim)
            new.remove(edited)
            yield from _edited_claim(claim, edited)
    for claim in gone:
        yield Deviation(what=f"claim {claim_text(claim)}", registered="registered", now="left out")
    for claim in new:
        yield Deviation(what=f"claim {claim_text(claim)}", registered="not registered", now="added")


def _relabelled(claim: Settings, labels: Mapping[str, str]) -> Settings:
    """Name the cells of a claim as they were registered."""
    renamed: Settings = {name: labels.get(str(claim[name]), claim[name]) for name in _CELLS if name in claim}
    if isinstance(exceeds := claim.get("exceeds"), list):
        renamed["exceeds"] = [labels.get(str(label), label) for label in exceeds]
    return claim | renamed


def _most_alike(claim: Settings, among: Sequence[Settings]) -> Settings | None:
    """Find the claim about the same cells, in whatever order, that differs in the fewest other facts."""
    about = _about(claim)
    same = [candidate for candidate in among if _about(candidate) == about]
    return min(same, key=lambda candidate: len(list(_values(claim, candidate))), default=None)


def _about(claim: Settings) -> list[str]:
    return sorted(str(claim[name]) for name in (*_CELLS, "exceeds") if name in claim)


def _edited_claim(claim: Settings, edited: Settings) -> Iterator[Deviation]:
    named = {name: claim.get(name) for name in (*_CELLS, "exceeds")}
    if named != {name: edited.get(name) for name in (*_CELLS, "exceeds")}:
        yield Deviation(what="claim reversed", registered=claim_text(claim), now=claim_text(edited))
        claim, edited = ({k: v for k, v in facts.items() if k not in named} for facts in (claim, edited))
        yield from _values(claim, edited, "the reversed claim's ")
        return
    yield from _values(claim, edited, f"claim {claim_text(claim)}, ")


def claim_text(claim: Settings) -> str:
    """Write a claim, without its figures and margin, as lists of deviations name it."""
    metric = claim.get("metric")
    if "cell" in claim:
        return f"“{claim['cell']} has its published {metric}”"
    text = f"{claim.get('better')} better than {claim.get('worse')} on {metric}"
    if isinstance(exceeds := claim.get("exceeds"), list):
        text += f", by more than {exceeds[0]} over {exceeds[1]}"
    return f"“{text}”"


def _metrics(registered: Content, now: Content) -> Iterator[Deviation]:
    # Metrics that only one has are those of another objective or claim, which are listed themselves.
    both = [name for name in registered.metrics if name in now.metrics]
    old, new = ({name: content.metrics[name] for name in both} for content in (registered, now))
    yield from _values(old, new, "metric ")


def _cell_settings(pairs: _Pairs) -> Iterator[Deviation]:
    labels_of: dict[Deviation, list[str]] = {}
    for registered, now in pairs:
        for deviation in _values(registered.settings, now.settings):
            labels_of.setdefault(deviation, []).append(registered.label)
    for deviation, labels in labels_of.items():
        where = f" in {'; '.join(labels)}" if len(labels) < len(pairs) else ""
        yield replace(deviation, what=deviation.what + where)


def _stages(pairs: _Pairs) -> Iterator[Deviation]:
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


def _values(registered: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[Deviation]:
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
