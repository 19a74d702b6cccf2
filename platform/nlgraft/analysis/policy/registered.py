"""How results relate to the registration of their study: the difference of two frozen contents."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nlgraft.analysis.data.ledger import Entry, History
from nlgraft.analysis.data.registration import (
    Content,
    Freezer,
    FrozenCell,
    Registration,
    Settings,
    open_registrations,
)
from nlgraft.analysis.data.results import Results
from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import count, grouped
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import level_text
from nlgraft.study.data.space import same

NONE = "none"
_SHOWN_CHARS = 100
_REMOVED = {
    "analysis.test": "paired_bootstrap",
    "analysis.correction": "holm",
    "score.engine": "torch",
    "score.dev_precision": "fp32",
    "transfer.norm_match": "none",
    "vocabulary.norm_match": "none",
    "transfer.order": "id",
    "transfer.new_rows_first_steps": 0,
    "generator.init": "zeros",
    "generator.scale": "none",
    "generator.distillation_reduction": "sum_dim",
    "generator.distillation_align": "input",
    "fusion.has_memory_norm": False,
    "sources.fine_encoder.self_scope": "per_source",
    "source.is_norm_affine": True,
    "target.is_norm_affine": True,
}
"""Settings that there are no more, with what takes their place: no deviation of an earlier registration."""


@dataclass(frozen=True)
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


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """How a study and its results relate to a registration.

    Attributes:
        registration: The registration: of the same content; else the newest of the variant or of the study.
        number: Its place among the registrations of that study's name.
        num_registrations: Number of these.
        variant: The variant that it is compared with.
        seen: Numbers of the analyses of the same test segments that had been shown before.
        deviations: Deviations of the file and of what was run.
        problems: Registrations that cannot be read, as sentences.
    """

    registration: Registration
    number: int
    num_registrations: int
    variant: str
    seen: tuple[int, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_as_registered(self) -> bool:
        """True if nothing deviates."""
        return not self.deviations

    def __str__(self) -> str:
        """State it in a few sentences, without the deviations."""
        registration, num = self.registration, len(self.seen)
        which = "" if registration.variant == self.variant else f" as {registration.variant}"
        which += f" ({registration.name}"
        if self.num_registrations > 1:
            which += f", registration {self.number} of {self.num_registrations} under this name"
        when = f"after {count(num, 'analysis', 'analyses')} of its test segments"
        if not num:
            when = "before any analysis of its test segments in this store"
        if registration.num_finished:
            replicates = count(registration.num_planned, "replicate")
            when += f"; {registration.num_finished} of its {replicates} had finished"
        text = f"As registered{which}), {when}."
        if self.deviations:
            text = f"Registered{which}), {when}, with {count(len(self.deviations), 'deviation')}."
        return " ".join([text, *(f"A registration is damaged: {problem}." for problem in self.problems)])

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        registration = self.registration
        return {
            "study": registration.study,
            "variant": registration.variant,
            "date": registration.date,
            "digest": registration.digest,
            "number": self.number,
            "registrations": self.num_registrations,
            "is_as_registered": self.is_as_registered,
            "analyses_before": list(self.seen),
            "finished_before": registration.num_finished,
            "deviations": [vars(deviation) for deviation in self.deviations],
            "text": str(self),
        }


def conformance_of(
    results: Results,
    store: ArtifactStore,
    keys: Mapping[str, str],
    past: History,
) -> Conformance | None:
    """Compare a study and its results with its registration.

    Args:
        results: The results.
        store: The store that holds them and the registration.
        keys: Digests of the configs of its cells, by label.
        past: The analyses of their test segments.

    Returns:
        None if the study is not registered.
    """
    pages = open_registrations(store).read()
    study = results.study
    registrations = [entry for entry in pages.documents.values() if entry.study == study.name]
    if not registrations:
        return None
    texts = {key: text for entry in registrations for key, text in entry.texts.items()}
    now = None
    deviations: list[Deviation] = []
    try:
        now = Freezer(texts).freeze(study)
    except DataError as error:  # text that was edited, on a hub that is away: the results can be shown
        deviations.append(Deviation("text", "readable", f"cannot be read: {error}"))
    digest = now and now.digest
    # The newest of this content, of the variant, of the study itself, or of any variant.
    chosen = max(
        reversed(registrations),
        key=lambda entry: (
            entry.digest == digest,
            entry.variant == study.variant,
            entry.variant == study.name,
        ),
    )
    compared = {
        number
        for number, entry in past.entries.items()
        if number <= chosen.num_analyses and entry.has_compared
    }
    if now is not None:
        deviations += deviations_of(chosen.content, now)
        deviations += _execution(chosen.content, now, results)
    deviations += _seen_seeds(chosen.content, results, keys, past.entries)
    return Conformance(
        registration=chosen,
        number=registrations.index(chosen) + 1,
        num_registrations=len(registrations),
        variant=study.variant,
        seen=tuple(sorted({*chosen.analyses, *compared})),
        deviations=tuple(deviations),
        problems=pages.problems,
    )


def _execution(
    registered: Content,
    now: Content,
    results: Results,
) -> Iterator[Deviation]:
    """List registered replicates that have not finished; none before the first trial has started."""
    if not any(cell.has_started for cell in results.cells):
        return
    seeds = registered.seeds
    for frozen, _ in paired(registered, now):
        cell = results.cell(frozen.label)
        if not cell.has_started:
            yield Deviation(f"trials of {frozen.label}", count(len(seeds), "seed"), "not run")
            continue
        by_reason: dict[str, list[int]] = {}
        for trial in cell.trials:
            if trial.seed in seeds and trial.state != "finished":
                state = "not run" if trial.state == "planned" else trial.state
                reason = f"{state}: {trial.reason}" if trial.reason else state
                by_reason.setdefault(reason, []).append(trial.seed)
        for reason, lacking in by_reason.items():
            what = f"{'seed' if len(lacking) == 1 else 'seeds'} {listed(lacking)} of {frozen.label}"
            yield Deviation(what, "to be finished", reason)


def _seen_seeds(
    registered: Content,
    results: Results,
    keys: Mapping[str, str],
    entries: Mapping[int, Entry],
) -> Iterator[Deviation]:
    """List seeds that finished and were shown, but are neither registered nor in the file any more."""
    own_seeds = {*registered.seeds, *(trial.seed for cell in results.cells for trial in cell.trials)}
    names = {key: label for label, key in keys.items()}
    left_out: dict[str, set[int]] = {}
    for entry in entries.values():
        shown = [(cell, question.seeds) for question in entry.asked for cell in question.cells]
        for cell, seeds in (*shown, *entry.scores.items()):
            if label := names.get(entry.configs.get(cell, cell)):
                left_out.setdefault(label, set()).update(set(seeds) - own_seeds)
    for label, seeds in left_out.items():
        if seeds:
            what = f"seeds {listed(sorted(seeds))} of {label}"
            yield Deviation(what, "not registered", "finished, shown, and left out")


def paired(registered: Content, now: Content) -> list[tuple[FrozenCell, FrozenCell]]:
    """Match cells by their labels."""
    by_label = {cell.label: cell for cell in now.cells}
    return [(cell, by_label[cell.label]) for cell in registered.cells if cell.label in by_label]


def deviations_of(registered: Content, now: Content) -> list[Deviation]:
    """List the deviations of a study, as its file is now, from what was registered."""
    pairs = paired(registered, now)
    labels = {cell.label for cell, _ in pairs}
    # Metrics that only one has are those of another objective or claim, which are listed themselves.
    metrics = [name for name in registered.metrics if name in now.metrics]
    stages = [deviation for pair in pairs for deviation in _differences(*_stages(*pair))]
    labels_of = grouped(
        (deviation, old.label) for old, new in pairs for deviation in _differences(old.settings, new.settings)
    )
    return [
        *_differences(document_of(registered, labels, metrics), document_of(now, labels, metrics)),
        *(
            replace(
                deviation,
                what=deviation.what + (f" in {'; '.join(cells)}" if len(cells) < len(pairs) else ""),
            )
            for deviation, cells in labels_of.items()
        ),
        *{deviation.what: deviation for deviation in stages}.values(),
    ]


def document_of(
    content: Content,
    common: Collection[str],
    metrics: Collection[str],
) -> dict[str, Any]:
    """Write a content as a mapping whose differences are deviations.

    Args:
        content: The content.
        common: Labels of the cells that the other content has as well.
        metrics: The metrics that both contents have.
    """
    base = content.cells[0]
    claims: dict[str, Settings] = {}
    for claim in content.claims:
        text = f"claim “{claim.get('better')} better than {claim.get('worse')} on {claim.get('metric')}"
        if isinstance(exceeds := claim.get("exceeds"), list):
            text += f", by more than {exceeds[0]} over {exceeds[1]}"
        text += "”"
        claims[f"{text} of {claim.get('source')}" if text in claims else text] = claim
    return {
        "system": content.system,
        "seeds": listed(content.seeds),
        "baseline": ", ".join(f"{n}={level_text(level)}" for n, level in base.levels.items()) or base.label,
        **{f"cell {cell.label}": {} for cell in content.cells if cell.label not in common},
        **claims,
        **content.settings,
        **{f"metric {name}": content.metrics[name] for name in metrics},
    }


def _stages(registered: FrozenCell, now: FrozenCell) -> tuple[Settings, Settings]:
    """Return versions of stages and, where neither settings nor version differ, digests of what they read."""
    is_edited = not same(registered.settings, now.settings)
    versions: tuple[Settings, Settings] = ({}, {})
    for cell, other, settings in zip((registered, now), (now, registered), versions, strict=True):
        for name, (version, digest) in cell.stages.items():
            settings[f"stage {name} of the system"] = f"version {version}"
            if not is_edited and other.stages.get(name, (None,))[0] == version:
                reads = f"what stage {name} reads, though no setting differs (a file or the system's code)"
                settings[reads] = digest
    return versions


def _differences(
    registered: Mapping[str, Any],
    now: Mapping[str, Any],
    prefix: str = "",
) -> Iterator[Deviation]:
    """Compare two mappings, in which a mapping is a thing that there is, or is not."""
    for path in dict.fromkeys([*registered, *now]):
        old, new = registered.get(path), now.get(path)
        what = prefix + path
        if new is None and path in _REMOVED and old == _REMOVED[path]:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{what}, ")
        elif isinstance(old, Mapping):
            yield Deviation(what, "registered", "left out of the study")
        elif isinstance(new, Mapping):
            yield Deviation(what, "not registered", "added")
        elif not same(old, new):
            yield Deviation(what, _shown(old), _shown(new))


def _shown(value: Any) -> str:
    if value is None:
        return NONE
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def listed(items: Sequence[object]) -> str:
    """List items with commas."""
    return ", ".join(map(str, items))
