"""Planned looks: which cells get more seeds, on what grounds, and what p-values say then."""

import numpy as np
import pytest
from scipy import stats

from nlgraft.analysis.estimates.looks import p_over_looks
from nlgraft.analysis.rendering import prose, tables
from nlgraft.analysis.study_result import StudyResult
from nlgraft.study.data.design import cells
from nlgraft.study.planning.selection import LOOKS, cell_key, read_granted, record_granted

ARMS = ["random_init", "avg_eg", "att_eg", "patt_eg"]
NOISE = np.array([0.3, -0.1, 0.2, -0.4, 0.1, 0.0, -0.3, 0.35, 0.05, -0.2])
OTHER = np.roll(NOISE, 3)[::-1]
UNCLEAR = 0.5 + np.array([-0.6, 1.2, 0.1, 0.9, -0.4, 0.7, 0.2, 1.3, 0.4, 0.6])


@pytest.fixture
def make_planned(make_arms):
    def build(looks=(3, 5, 10), arms=ARMS, **settings):
        sequential = {"looks": list(looks), **settings}
        return make_arms(arms, seeds=list(range(looks[-1])), sequential=sequential)

    return build


def scores(study, gaps, base=20.0):
    """Scores of each cell as differences from the baseline, which is constant up to its own noise."""
    baseline = base + OTHER
    rows = {cell.label: baseline + gaps.get(cell.levels["arm"], 0.0) for cell in cells(study)}
    return {label: {"test/accuracy": row} for label, row in rows.items()}


def result_of(study, scored, gaps):
    study = study.model_copy(
        update={"objective": study.objective.model_copy(update={"metric": "test/accuracy"})}
    )
    return scored(study, scores(study, gaps))


GAPS = {"avg_eg": 5 + NOISE / 20, "att_eg": UNCLEAR, "patt_eg": NOISE / 10}


@pytest.fixture
def analysis(make_planned, scored):
    return result_of(make_planned(), scored, GAPS)


def test_decided_and_hopeless_cells_stop_and_the_others_go_on(make_planned, scored):
    stops = result_of(make_planned(), scored, GAPS).replay()
    assert stops["arm=avg_eg"].num_seeds == 3
    assert stops["arm=avg_eg"].stopped_because == "decided"
    assert stops["arm=att_eg"].num_seeds == 10
    assert stops["arm=patt_eg"].num_seeds == 3
    assert "probability of at most 0.1" in stops["arm=patt_eg"].stopped_because
    later = result_of(make_planned(), scored, GAPS | {"patt_eg": (NOISE + 0.05) / 10}).replay()
    assert (later["arm=patt_eg"].num_seeds, later["arm=patt_eg"].stopped_because) == (
        5,
        "more seeds decide nothing",
    )
    assert stops["baseline"].num_seeds == 10
    assert stops["baseline"].stopped_because == ""


def test_equal_scores_stop_since_more_seeds_decide_nothing(make_planned, scored):
    stops = result_of(make_planned(), scored, {**GAPS, "patt_eg": 0.0}).replay()
    assert (stops["arm=patt_eg"].num_seeds, stops["arm=patt_eg"].stopped_because) == (
        3,
        "more seeds decide nothing",
    )


def test_a_look_waits_for_all_of_its_replicates(analysis):
    for cell in analysis.cells:
        for trial in cell.trials[2:]:
            object.__setattr__(trial, "state", "planned")
    assert {stop.num_seeds for stop in analysis.replay().values()} == {3}
    assert analysis.compare("arm=avg_eg", metric="test/accuracy").p_holm is None
    assert (
        "looks taken: none, the first is at 3 seeds"
        in analysis.compare("arm=avg_eg", metric="test/accuracy").notes
    )


def test_the_corrected_p_is_the_overall_level_of_the_looks_taken(analysis):
    compared = analysis.compare("arm=att_eg", metric="test/accuracy")
    p_values = {look: stats.ttest_1samp(UNCLEAR[:look], 0.0).pvalue for look in (3, 5, 10)}
    assert compared.p == pytest.approx(p_values[10], rel=1e-6)
    # Two of the three arms are open; a first declaration has .8 of alpha.
    assert compared.p_holm == pytest.approx(2 * p_over_looks(p_values, (3, 5, 10)) / 0.8, rel=1e-6)
    assert compared.level < 0.05


def test_an_early_decision_stands_beside_later_seeds_of_the_same_sign(make_planned, scored):
    gaps = {"avg_eg": np.array([5.0, 5.01, 5.02, 5.0, 5.01, -9, 14, -7, 13, 3])}
    analysis = result_of(make_planned(), scored, gaps)
    assert analysis.compare("arm=avg_eg", metric="test/accuracy").standing == "better"


def test_reports_say_what_was_planned_and_where_cells_stopped(analysis):
    analysis.stops = analysis.replay()
    rows = tables.looks_table(analysis).plain()
    assert ["arm=avg_eg", "3", "decided"] in rows
    text = " ".join(prose.method(analysis))
    assert "tested at 3, 5, 10 seeds" in text
    assert "0.032, 0.0062, 0.0062" in text
    assert analysis.to_json()["looks"]["arm=avg_eg"] == {"num_seeds": 3, "stopped_because": "decided"}
    for kind in ("md", "html"):
        assert "decided" in analysis.render(kind)


def test_granted_seeds_are_those_of_the_study(make_study, make_planned, store):
    record_granted(make_planned(), store, {"cell": 5})
    assert read_granted(make_planned(), store) == {"cell": 5}
    assert read_granted(make_study(), store) == {}


def test_studies_with_one_baseline_keep_their_own_granted_seeds(make_planned, store):
    first, second = make_planned(arms=ARMS[:2]), make_planned(arms=ARMS[:3])
    old_key = cell_key(first, cells(first)[0])
    store.records.write(LOOKS, f"{old_key}/granted", {"cell": 3})
    assert read_granted(first, store) == read_granted(second, store) == {"cell": 3}, "as 0.1.0 wrote it"
    record_granted(first, store, {"cell": 10})
    record_granted(second, store, {"cell": 5})
    assert read_granted(first, store) == {"cell": 10}


def test_a_whole_study_reads_only_what_looks_grant(make_planned, run, store):
    study = make_planned(looks=(3, 4), arms=ARMS[:2])
    skipped = [(cell.label, 3) for cell in cells(study)]
    analysis = run(study, store, skip=skipped)
    assert isinstance(analysis, StudyResult)
    counts = {cell.cell.label: len(cell.trials) for cell in analysis.cells}
    assert counts == {label: stop.num_seeds for label, stop in analysis.stops.items()}
    assert analysis.granted == {cell.key: analysis.stops[cell.label].num_seeds for cell in cells(study)}
