"""`nlgraft verify`: damage done by hand in each place is named, and what it says to do next repairs it."""

import json
import os
import shutil
import threading
import time

import optuna
import pytest
from mlflow import MlflowClient

from nlgraft import api
from nlgraft.execution.interruption import StudyLock
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.public import Study
from nlgraft.tracking.entries import CELL
from tests.commands import json_of, nlgraft, write_study
from tests.conftest import TOY
from tests.small_studies import GAINS


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_cluster, empty_database):
    """A directory with a study of two cells, three proposals and one replicate each, that has run."""
    directory = tmp_path_factory.mktemp("finished")
    document = {
        "name": "toy",
        "system": "sweep_toy",
        "base": {"steps": 3},
        "factors": {"gain": GAINS},
        "search": {
            "sampler": {"name": "random", "seed": 1},
            "space": {"upstream": {"type": "int", "low": 0, "high": 9}},
            "trials": 3,
        },
        "objective": {"metric": "dev/score", "direction": "maximize"},
        "seeds": [1],
        "storage": {"path": str(directory / "store")},
    }
    (directory / "store").mkdir()
    shutil.copy(empty_database, directory / "store" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOY)
        nlgraft("run", write_study(directory / "toy.yaml", document))
    return directory


class Bench:
    """A copy of the study that has run, to be damaged."""

    def __init__(self, directory):
        self.directory = directory
        self.store = directory / "store"
        document = json.loads((directory / "toy.yaml").read_text())
        document["storage"]["path"] = str(self.store)
        (directory / "toy.yaml").write_text(json.dumps(document))
        self.study = Study.from_yaml(directory / "toy.yaml")
        self.client = MlflowClient(f"sqlite:///{self.store / 'mlflow.db'}")

    def verify(self, **options):
        return api.verify(self.study, **options)

    def run_again(self):
        """Needs no Ray, since every trial has ended."""
        api.launch(self.study)

    def runs(self, kind):
        experiment = self.client.get_experiment_by_name("toy")
        runs_of_kind = self.client.search_runs([experiment.experiment_id], f"tags.`nlgraft.kind` = '{kind}'")
        return sorted(runs_of_kind, key=lambda run: (run.data.tags.get(CELL, ""), run.info.run_name))

    def optuna_study(self):
        url = f"sqlite:///{self.store / 'optuna.db'}"
        [name] = [study_name for study_name in optuna.get_all_study_names(url) if "baseline" in study_name]
        return optuna.load_study(study_name=name, storage=url)

    def artifact(self, stage):
        """The largest file of an artifact of a stage that a replicate has: the search is scored on dev."""
        files = [path for path in (self.store / "artifacts" / stage).rglob("*") if path.is_file()]
        return max((path for path in files if path.name != "manifest.json"), key=lambda p: p.stat().st_size)


@pytest.fixture
def bench(finished, tmp_path, toy_on_path):
    shutil.copytree(finished, tmp_path / "copy")
    return Bench(tmp_path / "copy")


def test_what_has_run_is_clean_and_every_byte_of_it_is_read(bench):
    report = bench.verify()
    assert report.findings == ()
    # 2 cells of 3 proposals and 1 replicate
    assert (report.num_planned, report.states) == (8, {"finished": 8})
    manifests = [json.loads(path.read_text()) for path in bench.store.rglob("manifest.json")]
    assert report.num_artifacts == len(manifests)
    assert report.num_bytes == sum(manifest["bytes"] for manifest in manifests)


def test_what_has_not_run_is_named_trial_by_trial(bench):
    shutil.rmtree(bench.store)
    bench.store.mkdir()
    report = bench.verify()
    assert (report.num_planned, report.states) == (8, {})
    whats = [finding.what for finding in report.findings if finding.place == "store"]
    assert "gain=1.0, search 2: is not proposed" in whats
    assert len(whats) == 8
    assert [finding.what for finding in report.findings if finding.place == "MLflow"] == [
        f"{bench.store / 'mlflow.db'} is missing"
    ]
    assert not (bench.store / "mlflow.db").exists()


def delete_a_run(bench):
    run = bench.runs("trial")[0]
    bench.client.delete_run(run.info.run_id)
    return f"{run.info.run_name}: has no run"


def delete_the_run_of_a_cell(bench):
    bench.client.delete_run(bench.runs("cell")[0].info.run_id)
    return "cell baseline: has no run"


def leave_one_running(bench):
    run = bench.runs("trial")[0]
    bench.client.update_run(run.info.run_id, status="RUNNING")
    return f"run {run.info.run_name} ({run.info.run_id[:8]}) is RUNNING"


def lose_the_database_of_optuna(bench):
    (bench.store / "optuna.db").unlink()
    return f"{bench.store}/optuna.db is missing"


@pytest.mark.parametrize(
    "damage", [delete_a_run, delete_the_run_of_a_cell, leave_one_running, lose_the_database_of_optuna]
)
def test_what_another_run_repairs(damage, bench):
    expected = damage(bench)
    findings = bench.verify().findings
    assert expected in [finding.what for finding in findings]
    assert {finding.remedy for finding in findings} == {"`nlgraft run` of this study completes it"}
    bench.run_again()
    assert bench.verify().findings == ()


def test_a_run_that_is_there_twice_goes_by_the_command_that_is_named(bench):
    run = bench.runs("trial")[0]
    twin = bench.client.create_run(
        run.info.experiment_id,
        start_time=run.info.start_time + 1,
        tags=run.data.tags | {"mlflow.runName": "twin"},
    )
    bench.client.set_terminated(twin.info.run_id)
    [finding] = bench.verify().findings
    assert finding.what == f"run twin ({twin.info.run_id[:8]}) is there 2 times"
    assert finding.remedy.endswith(f"`mlflow runs delete --run-id {twin.info.run_id}`")
    bench.client.delete_run(twin.info.run_id)
    assert bench.verify().findings == ()


def twice(study):
    trial = study.get_trials()[1]
    study.add_trial(trial)
    return f"baseline, search {trial.user_attrs['nlgraft.number']}: is there 2 times, as trials 1, 3"


def running(study):
    study.ask()
    return "baseline: trial 3 is RUNNING"


@pytest.mark.parametrize("damage", [twice, running])
def test_what_optuna_holds_too_much_goes_with_its_file(damage, bench):
    expected = damage(bench.optuna_study())
    [finding] = bench.verify().findings
    assert (finding.place, finding.what) == ("Optuna", expected)
    assert finding.remedy.startswith("delete optuna.db in the store")
    (bench.store / "optuna.db").unlink()
    bench.run_again()
    assert bench.verify().findings == ()


def test_another_outcome_than_the_record_s_is_named_in_optuna_and_mlflow(bench):
    """The trial of a second study may replace the record of a trial that both have."""
    [path, *_] = sorted((bench.store / "records" / "trials").glob("*.json"))
    record = json.loads(path.read_text()) | {"state": "failed", "reason": "by hand", "metrics": {}}
    path.write_text(json.dumps(record))
    report = bench.verify()
    assert report.states["failed"] == 1
    assert [finding.place for finding in report.findings if "record says" in finding.what][-1] == "MLflow"


def test_a_flipped_byte_and_a_lost_stage_are_named_and_made_again(bench):
    damaged = bench.artifact("training")
    stored = bytearray(damaged.read_bytes())
    before = damaged.stat()
    stored[0] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(stored)
    os.utime(damaged, ns=(before.st_atime_ns, before.st_mtime_ns))
    upstream = bench.artifact("upstream").parents[1]
    shutil.rmtree(upstream)
    study_file = bench.directory / "toy.yaml"
    shown = nlgraft("verify", study_file, code=1)
    assert f"training {damaged.parents[1].name[:12]} is damaged: {damaged.name} has checksum" in shown.stdout
    assert f"upstream {upstream.name[:12]} is missing" in shown.stdout
    nlgraft("verify", study_file, "--discard", code=1)
    names = {stage.parent.name for stage in bench.store.glob("artifacts/*/*") if stage.is_dir()}
    assert names == {"upstream", "training", "scores"}, "the other trials keep theirs"
    nlgraft("run", study_file)
    assert json_of("verify", study_file, "--json")["findings"] == []


def test_a_study_that_runs_is_not_verified(bench):
    with StudyLock(bench.study, ArtifactStore.open(bench.store)):
        refused = nlgraft("verify", bench.directory / "toy.yaml", code=4)
    assert "toy is being run, so that nothing is final" in refused.stderr


def test_a_locked_study_is_waited_for_as_long_as_is_allowed(bench):
    lock = StudyLock(bench.study, ArtifactStore.open(bench.store))
    with lock:
        began_s = time.monotonic()
        refused = nlgraft("run", bench.directory / "toy.yaml", "--wait-timeout", "1s", code=4)
        assert time.monotonic() - began_s > 1
        threading.Timer(1, lock.__exit__, (None, None, None)).start()
        nlgraft("run", bench.directory / "toy.yaml", "--wait-timeout", "2m")
    assert "the study is being run by" in refused.stderr
    wrong = nlgraft("run", bench.directory / "toy.yaml", "--wait-timeout", "soon", code=2)
    assert "'soon' is not a duration; allowed: seconds above 0, '2h30m'" in wrong.stderr
