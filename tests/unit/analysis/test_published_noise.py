"""Noise that nlgraft publishes: whom it helps, how much it counts, and that it never holds what it judges."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.published_noise import rows_of
from nlgraft.analysis.data.published_noise import published_noise
from nlgraft.analysis.estimates.noise_prior import NoisePrior, StudyVariance, applicable, moderated
from nlgraft.analysis.policy import recorded
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.planning.selection import cell_key
from nlgraft.study.public import Study
from nlgraft.study.reading.system_import import load_system

METRIC = "test/bleu"
DEMO = "search_spaces/embedding_transfer/demo.yaml"
SMALLER = {"data.downstream.train": 990}
ARMS = ["baseline", "arm=avg_eg", "arm=att_eg", "arm=patt_eg"]


@pytest.fixture
def shown(scored, store):
    """Show a study like the demo, with drawn scores, in a store; its test lines are not stored."""

    def show(name, rng_seed, seeds=(1, 2, 3), store=store, **changes):
        changes |= {"name": name, "seeds": list(seeds), "claims": []}
        overrides = [f"{path}={json.dumps(value)}" for path, value in changes.items()]
        study = Study.from_yaml(DEMO, overrides=overrides)
        draws = np.random.default_rng(rng_seed).normal(30, 1, (5, len(seeds)))
        labels = ["baseline", "arm=pretrain_finetune", *ARMS[1:]]
        rows = {
            label: {METRIC: row, METRIC.replace("test", "dev"): row}
            for label, row in zip(labels, draws, strict=True)
        }
        result = replace(scored(study, rows), store=store)
        result.declare()
        return result

    return show


@pytest.fixture
def publish(monkeypatch):
    return lambda *rows: monkeypatch.setattr(recorded, "published_noise", lambda: rows)


@pytest.fixture
def published(shown, publish, tmp_path):
    """The rows of three studies of another store."""
    elsewhere = ArtifactStore.open(tmp_path / "elsewhere")
    rows = []
    for seed in (11, 12, 13):
        result = shown(f"shipped{seed}", seed, (seed, seed + 10, seed + 20), elsewhere, **SMALLER)
        rows += rows_of(result)
    publish(*rows)
    return [row for row in rows if row.metric == METRIC]


def test_an_empty_store_borrows_at_most_two_degrees_of_freedom(shown, published):
    result = shown("mine", 1)
    compared = result.compare("arm=avg_eg", metric=METRIC)
    prior = compared.prior
    assert prior.is_published
    assert 1 < prior.df <= 2.0
    assert [name.partition("@")[0] for name in prior.studies] == ["shipped11", "shipped12", "shipped13"]
    variances = [row.variance for row in published]
    assert min(variances) < prior.variance < max(variances)
    base, arm = (result.cell(label).values(METRIC) for label in ("baseline", "arm=avg_eg"))
    own_variance = np.var([arm[seed] - base[seed] for seed in (1, 2, 3)], ddof=1)
    assert compared.estimate.df == pytest.approx(2 + prior.df)
    moderated_variance = (2 * own_variance + prior.df * prior.variance) / (2 + prior.df)
    assert compared.estimate.variance == pytest.approx(moderated_variance)
    assert f"{prior.df:.1f} of 3 published ones" in compared.noise


def test_no_published_study_judges_its_own_trials(shown, published, publish):
    publish(*(replace(row, seeds=(3, 4)) for row in published))
    assert shown("mine", 1, **SMALLER).compare("arm=avg_eg", metric=METRIC).prior is None
    assert shown("others", 4).compare("arm=avg_eg", metric=METRIC).prior is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"base.downstream.train.max_steps": 6000},
        {"base.upstream.is_per_seed": False},
        {"analysis.prior": "none"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_larger_trained_otherwise_or_declined_borrows_nothing(shown, published, changes):
    assert shown("mine", 1, **changes).compare("arm=avg_eg", metric=METRIC).prior is None


def test_studies_of_the_store_come_first(shown, published):
    shown("earlier", 5, **{"base.downstream.train.peak_lr": 3e-3})
    prior = shown("mine", 1).compare("arm=avg_eg", metric=METRIC).prior
    assert (prior.is_published, prior.studies) == (False, ("earlier",))


def test_every_published_row_knows_the_cells_of_the_study_that_ships():
    """A row whose digests are out of date would be a prior of the very trials that it was computed from."""
    files = {
        yaml.safe_load(path.read_text())["name"]: path for path in Path("search_spaces").glob("*/*.yaml")
    }
    configs = {}
    for row in published_noise():
        if row.study not in configs:
            name, _, scale = row.study.partition("@")
            study = Study.from_yaml(files[name], [f"@{scale}"] if scale else [])
            configs[row.study] = {cell_key(study, cell) for cell in cells(study)}
        assert configs[row.study] == {*row.configs}
        assert row.metric in load_system(row.system).metrics
        assert row.variance > 0
        assert row.df > 0
        assert row.seeds


@pytest.mark.parametrize(("num_arms", "limit"), [(4, 0.05), (1, 0.095)])
def test_errors_where_noise_is_twice_what_is_published(num_arms, limit):
    rng = np.random.default_rng(20261127)
    prior = NoisePrior(2.0, 0.5, is_published=True)
    wrong = 0
    for _ in range(1500):
        scores = rng.standard_normal((num_arms + 1, 3))
        arms = scores[1:] - scores[0]
        usable = applicable(prior, StudyVariance.of(arms), 3)
        wrong += min(moderated(arm, usable).p for arm in arms) <= 0.05 / num_arms
    assert wrong / 1500 <= limit
