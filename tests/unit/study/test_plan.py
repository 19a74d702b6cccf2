"""Plans: cells, trials, stages and costs of a run."""

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.pipeline.stage import Stage, Work
from nlgraft.pipeline.store import StageCost
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import cost_of, memory_problems
from nlgraft.study.planning.planner import plan
from nlgraft.study.planning.selection import search_seed
from nlgraft.study.public import Study

SPACE = {"train.peak_lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}}


class StoreStub:
    """As much of an artifact store as a plan looks at."""

    def __init__(self, finished=(), costs=None):
        self._finished = set(finished)
        self._costs = costs or {}

    def finished(self, fingerprints):
        return self._finished & set(fingerprints)

    def durations(self):
        return {name: StageCost(seconds, size) for name, (seconds, size) in self._costs.items()}


COSTS = {
    "corpus": (1, 10),
    "upstream": (100, 1000),
    "transfer": (10, 100),
    "finetune": (20, 200),
    "scores": (2, 20),
}


def test_shared_stages_are_counted_once(study):
    # cells: baseline, depth=1, depth=3, arm=att_eg, without gradual; two seeds, five stages each
    planned = plan(study)
    distinct = 1 + 3 + (3 + 1) + (5 * 2) + (5 * 2)  # corpus, upstreams, transfers, finetunings, scores
    assert planned.stages == {"planned": 50, "distinct": distinct, "finished": 0}
    assert (len(planned.cells), planned.num_trials, planned.num_search_trials) == (5, 10, 0)
    assert [(trial.cell.label, trial.seed) for trial in planned.trials[:3]] == [
        ("baseline", 0),
        ("baseline", 1),
        ("depth=1", 0),
    ]
    assert planned.trials[0].fingerprint == planned.trials[0].graph.fingerprint
    assert len({trial.fingerprint for trial in planned.trials}) == 10
    assert (planned.problems, planned.notes, planned.cost_s, planned.disk_bytes) == ([], [], None, None)


def test_finished_stages_cost_nothing(study):
    first = plan(study)
    done = {stage.fingerprint for stage in first.trials[0].graph.stages}
    planned = plan(study, StoreStub(done, COSTS))
    assert planned.stages["finished"] == 5
    assert planned.cost_s == 2 * 100 + 3 * 10 + 9 * 20 + 9 * 2
    assert planned.disk_bytes == 2 * 1000 + 3 * 100 + 9 * 200 + 9 * 20
    assert planned.is_cost_measured
    everything = {stage.fingerprint for trial in first.trials for stage in trial.graph.stages}
    assert plan(study, StoreStub(everything)).cost_s == 0


def test_costs_that_are_not_known_are_not_guessed(study):
    planned = plan(study, StoreStub((), {"corpus": (1, 10)}))
    assert (planned.cost_s, planned.disk_bytes) == (None, None)
    assert not planned.is_cost_measured
    assert planned.notes == [
        "time and size leave out 4 kinds of stages that were never timed: "
        "finetune, scores, transfer, upstream"
    ]


def test_search_trials_share_what_no_searched_value_touches(good):
    good["search"] = {"trials": 4, "space": SPACE}
    good |= {"factors": {}, "components": {}}
    planned = plan(Study.from_dict(good), StoreStub((), COSTS))
    # two replicates and four proposals of five stages; the rate reaches finetune and scores only
    assert (planned.num_trials, planned.num_search_trials) == (6, 4)
    assert planned.stages == {"planned": 30, "distinct": 3 + 2 * 2 + 4 * 2, "finished": 0}
    assert not any(warning.startswith("search:") for warning in planned.warnings)
    assert planned.cost_s == 1 + 100 + 10 + 6 * 20 + 6 * 2
    assert "estimated" in planned.notes[0]
    shorter = {"budget": {"trials": 3}, "search": {"trials": 3, "space": SPACE}}
    limited = plan(Study.from_dict(good | shorter))
    assert "budget.trials: 3 trials end a run before its 5; run it again to go on" in limited.warnings


def test_conditions_decide_what_a_search_trial_has(good):
    good["factors"]["arm"]["levels"]["att_eg"] = {"generator.kind": "att"}
    good["factors"]["arm"]["levels"]["patt_eg"] = {"generator.kind": "patt"}
    weight = {"type": "float", "low": 0, "high": 1, "when": {"generator.kind": ["att", "patt"]}}
    good["search"] = {"trials": 3, "space": {"generator.kd_weight": weight, **SPACE}}
    study = Study.from_dict(good)
    planned = plan(study)
    # six cells, three proposals each of finetune and scores; in two cells of the transfer too
    num_searched = 6 * 3 * 2 + 2 * 3
    assert (
        planned.stages["distinct"]
        == plan(study.model_copy(update={"search": None})).stages["distinct"] + num_searched
    )


def test_concurrency_follows_the_cluster(study):
    assert plan(study).max_concurrent is None
    assert plan(study, capacity={"CPU": 2.0, "GPU": 0.0}).max_concurrent == 2


def test_what_can_never_fit_is_a_problem_of_the_plan(good):
    good["resources"] = {"workers": 3, "gpus_per_worker": 1}
    planned = plan(Study.from_dict(good), capacity={"CPU": 4, "GPU": 0})
    assert planned.max_concurrent == 0
    (problem,) = planned.to_json()["problems"]
    assert problem["path"] == "resources.gpus_per_worker"
    assert "asks for 3 GPUs per trial (3 workers x 1), the cluster has 0" in problem["message"]


def test_the_json_holds_what_the_command_line_promises(study):
    document = study.plan(capacity={"CPU": 2}).to_json()
    assert document["study"] == "toy"
    assert (document["cells"], document["trials"], document["max_concurrent"]) == (5, 10, 2)
    assert set(document["stages"]) == {"planned", "distinct", "finished"}
    assert document["problems"] == []


def test_merged_combinations_are_planned_once_and_noted(good):
    good["factors"] = {
        "merge": {"target": "model.merge", "levels": ["sum", "average"], "baseline": "sum"},
        "dropout": {"target": "model.dropout", "levels": [0.0, 0.1, 0.2], "baseline": 0.1},
    }
    good["components"] = {}
    good["design"] = {"kind": "full", "idle": [{"factor": "dropout", "when": {"merge": "average"}}]}
    planned = plan(Study.from_dict(good))
    assert [cell.label for cell in planned.cells] == [
        "baseline",
        "dropout=0.0",
        "dropout=0.2",
        "merge=average",
    ]
    note = "2 combinations of levels equal others and run once: dropout has no effect where merge is average"
    assert note in planned.to_json()["notes"]


def test_a_config_that_went_bad_is_a_study_error(study):
    broken = study.model_copy(update={"base": {"train": {"max_steps": 0}}})
    with pytest.raises(StudyError, match=r"base\.train\.max_steps: expected int >= 1, got 0"):
        plan(broken)


def test_planning_changes_nothing(study):
    before = study.model_dump_json()
    plan(study)
    assert study.model_dump_json() == before
    assert [cell.label for cell in plan(study).cells] == [cell.label for cell in cells(study)]


def test_planned_looks_are_in_the_plan(good):
    planned = plan(Study.from_dict(good | {"seeds": [1, 2, 3, 4, 5], "sequential": {"looks": [3, 5]}}))
    assert "results are tested at 3 and 5 seeds" in planned.notes[-1]
    assert "15 to 25 replicates" in planned.notes[-1]
    assert planned.num_trials == 25


def test_no_replicate_has_the_seed_of_the_search(good):
    seeds = [0, 2**32 - 1]
    study = Study.from_dict(good | {"seeds": seeds, "search": {"trials": 1, "space": SPACE}})
    assert search_seed(study) == 2**32 - 2
    longer = study.model_copy(update={"seeds": [*seeds, 1]})
    assert search_seed(longer) == search_seed(study), "an extended study finds its search"


def test_cells_in_which_few_searched_values_change_anything_are_named(good):
    good["factors"]["arm"]["levels"]["att_eg"] = {"generator.kind": "att"}
    weight = {"type": "categorical", "choices": [0.1, 0.5], "when": {"generator.kind": ["att"]}}
    good["search"] = {"trials": 4, "space": {"generator.kd_weight": weight}}
    warnings = plan(Study.from_dict(good)).warnings
    labels = "baseline; depth=1; depth=3; without gradual"
    assert f"search: {labels}: at most 1 distinct of 4 trials" in "\n".join(warnings)
    assert "search: arm=att_eg: at most 2 distinct of 4 trials" in "\n".join(warnings)


@pytest.mark.parametrize("kinds", [["att", "avg"], ["avg", "att"]])
def test_values_that_count_at_one_end_of_the_space_only_are_not_idle(good, kinds):
    good |= {"factors": {}, "components": {}}
    weight = {"type": "categorical", "choices": [0.1, 0.5], "when": {"generator.kind": ["att"]}}
    kind = {"type": "categorical", "choices": kinds}
    good["search"] = {"trials": 5, "space": {"generator.kind": kind, "generator.kd_weight": weight}}
    warnings = plan(Study.from_dict(good)).warnings
    assert "at most 4 distinct of 5 trials" in "\n".join(warnings)


def training(name, num_parameters, **inputs):
    """A training of 100 steps with 1,000 tokens each."""
    work = Work(num_steps=100, tokens_per_step=1000, num_parameters=num_parameters)
    return Stage(name=name, run="a:b", work=work, inputs=inputs)


def test_trainings_that_no_store_has_are_estimated_from_their_size():
    upstream = training("upstream", 10**7)
    transfer = Stage(name="transfer", run="a:b", inputs={"model": upstream})
    finetuned = training("finetuned", None, model=transfer)  # as large as what it starts from
    stages = [(upstream, 1), (transfer, 1), (finetuned, 3)]
    cost = cost_of(stages, {}, Resources(cpus_per_worker=2))
    one_worker_s = 6 * (10**7 + 600_000) * 100 * 1000 / (2 * 7e10)
    seconds = 100 * 0.02 + one_worker_s
    assert cost.seconds == pytest.approx(4 * seconds)
    assert cost.num_bytes == 4 * 4 * 10**7
    assert (cost.estimated, cost.unknown) == (("finetuned", "upstream"), ("transfer",))
    timed = {"upstream": StageCost(7.0, 1.0)}
    assert cost_of(stages, timed, Resources(cpus_per_worker=2)).seconds == pytest.approx(7 + 3 * seconds)
    two_workers = cost_of(stages, {}, Resources(workers=2, cpus_per_worker=2))
    assert two_workers.seconds == pytest.approx(4 * (100 * 0.02 + one_worker_s / 2))


def cost_from_released(directory):
    """Cost of a training that starts from 40 MB of weights."""
    with (directory / "model.safetensors").open("wb") as file:
        file.truncate(4 * 10**7)  # a sparse file
    released = Stage(name="upstream", run="a:b", locations={"checkpoint": str(directory)})
    return cost_of([(released, 1), (training("finetuned", None, model=released), 1)], {}, Resources())


@pytest.mark.parametrize(("dtype", "num_parameters"), [("float32", 10**7), ("bfloat16", 2 * 10**7)])
def test_a_training_of_a_released_model_is_estimated_from_its_weights(tmp_path, dtype, num_parameters):
    (tmp_path / "config.json").write_text(f'{{"dtype": "{dtype}"}}')
    cost = cost_from_released(tmp_path)
    assert cost.seconds == pytest.approx(100 * (0.02 + 6 * (num_parameters + 600_000) * 1000 / 7e10))
    assert (cost.estimated, cost.unknown) == (("finetuned",), ("upstream",))


@pytest.mark.parametrize("config", [None, "{", "\xff"])
def test_a_released_model_whose_config_cannot_be_read_leaves_its_training_without_an_estimate(
    tmp_path, config
):
    """What is wrong with it is for the checks to say."""
    if config is not None:
        (tmp_path / "config.json").write_text(config, "latin-1")
    cost = cost_from_released(tmp_path)
    assert (cost.seconds, cost.unknown) == (None, ("finetuned", "upstream"))


def test_weights_that_no_memory_of_this_machine_holds_are_a_problem():
    work = Work(num_steps=5, tokens_per_step=9, num_parameters=10**9)
    stages = [
        Stage(name=name, run="m:f", work=work if name == "train" else None) for name in ("train", "read")
    ]
    assert memory_problems(stages, 4e9) == []
    (problem,) = memory_problems(stages, 3.9e9)
    assert "train trains weights of 4.0 GB, this machine's memory has 3.9 GB" in problem.message
