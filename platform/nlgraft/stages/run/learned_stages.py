"""Scores of translations by a learned metric."""

from __future__ import annotations

import hashlib

from nlgraft.evaluation.artifact import read_lines, write_metrics, write_segments
from nlgraft.evaluation.learned_metric import build_scorer, learned_rows
from nlgraft.evaluation.scores import score_statistics
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.kinds.learned_kinds import LEARNED_SCORE, LearnedScoreSettings
from nlgraft.stages.run.text_stages import text_of
from nlgraft.stages.run.translation_stages import HYPOTHESES_FILE
from nlgraft.text.corpora import read_corpus

_DIGITS = 12


def score(context: StageContext) -> None:
    """Score the translations of every split, each segment alone, with the first source and the target."""
    settings, inputs = LEARNED_SCORE.read(context)
    scorer = build_scorer(settings.metric, context.locations.get("checkpoint"), settings.options)
    name = f"learned.{settings.name}"
    for split, translation in inputs.translations.items():
        corpus = read_corpus(inputs.corpus / split)
        sources, references = (text_of(corpus, [role]) for role in ("source 0", "target"))
        hypotheses = read_lines(translation / HYPOTHESES_FILE)
        rows = learned_rows(scorer, name, sources, hypotheses, references)
        measured = score_statistics(name, rows, _signature(settings))
        write_segments(context.directory, split, {name: rows})
        write_metrics(context.directory, {f"{split}/{name}": measured})


def _signature(settings: LearnedScoreSettings) -> str:
    """Name what a score depends on: the metric, its version, checkpoint and options."""
    parts = [settings.metric, f"version:{settings.version}"]
    for what, content in (("checkpoint", settings.content), ("options", settings.options)):
        if content:
            parts.append(f"{what}:{hashlib.sha256(canonical_json(content).encode()).hexdigest()[:_DIGITS]}")
    return "|".join(parts)
