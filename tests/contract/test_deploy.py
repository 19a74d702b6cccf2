"""The files of deploy/ against the schemas and tools of those who read them."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from nlgraft.commands.study_command import duration_of
from nlgraft.study.public import Study

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
JOBS = ["rayjob.yaml", "rayjob-existing-cluster.yaml"]


def load(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def schema(name):
    text = (Path(__file__).parent / "schemas" / f"{name}.json").read_text()
    return jsonschema.Draft7Validator(json.loads(text))


def nested(document, *place):
    """Places of all keys of a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        yield (*place, key)
        if isinstance(value, (dict, list)):
            yield from nested(value, *place, key)


@pytest.mark.parametrize(
    ("name", "kind"), [*((job, "rayjob") for job in JOBS), ("mlflow-compose.yaml", "compose")]
)
def test_a_file_fits_the_schema_and_none_of_its_keys_can_be_misspelt(name, kind):
    schema(kind).validate(load(name))
    free = {"metadata", "clusterSelector", "rayStartParams"}
    free |= {"limits", "requests", "environment", "depends_on"}
    named = ("services", "volumes", "configs")  # by us
    for place in nested(load(name)):
        if isinstance(place[-1], int) or free & set(place[:-1]) or (len(place) == 2 and place[0] in named):
            continue
        document = load(name)
        part = document
        for key in place[:-1]:
            part = part[key]
        part[f"{place[-1]}x"] = part.pop(place[-1])
        assert list(schema(kind).iter_errors(document)), f"{place} may be misspelt"


@pytest.mark.parametrize("name", JOBS)
def test_a_ray_job_ends_and_keeps_the_rules_of_the_operator(name):
    """`ValidateRayJobSpec` of KubeRay 1.7 (ray-operator/controllers/ray/utils/validation.go)."""
    spec = load(name)["spec"]
    assert spec["activeDeadlineSeconds"] > 0
    assert ("rayClusterSpec" in spec) != ("clusterSelector" in spec)
    if "clusterSelector" in spec:
        assert spec["clusterSelector"]["ray.io/cluster"]
        assert not {"backoffLimit", "suspend", "shutdownAfterJobFinishes"} & spec.keys()
    else:
        assert spec["shutdownAfterJobFinishes"] is True
        assert spec["rayClusterSpec"]["authOptions"] == {"mode": "token", "secretName": "nlgraft-ray-token"}
        version = spec["rayClusterSpec"]["rayVersion"]
        assert f"ray=={version}" in (ROOT / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("name", JOBS)
def test_a_ray_job_runs_a_study_of_the_image_on_a_store_for_all_nodes(name):
    words = shlex.split(load(name)["spec"]["entrypoint"])
    assert words[:2] == ["nlgraft", "run"]
    home = re.search(r"^WORKDIR (\S+)$", (DEPLOY / "Dockerfile").read_text(), re.M)
    file = ROOT / Path(words[2]).relative_to(home[1])
    study = Study.from_yaml(file, [word for word in words[3:] if word.startswith("storage.")])
    assert study.storage.path.startswith("s3://")


def containers():
    cluster = load("rayjob.yaml")["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"]["spec"]["containers"][0] for group in groups]


def test_head_and_workers_have_one_image_and_one_environment():
    head, *workers = containers()
    for worker in workers:
        assert [worker[key] for key in ("image", "env", "envFrom")] == [
            head[key] for key in ("image", "env", "envFrom")
        ]


def test_the_image_copies_files_that_exist_and_all_that_the_installation_needs():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY") for word in line.split()[1:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = (ROOT / "pyproject.toml").read_text()
    for needed in ("README.md", "LICENSE", "platform/", "trainables/"):
        assert needed in copied
        assert needed.strip("/") in project


def test_the_compose_file_keeps_every_secret_out_and_says_where_to_set_it():
    text = (DEPLOY / "mlflow-compose.yaml").read_text()
    head = text[: text.index("name: nlgraft-mlflow")]
    variables = set(re.findall(r"\$\{(\w+)", text))
    assert variables == set(re.findall(r"\b[A-Z0-9]+_[A-Z0-9_]+\b", head)) - {
        "MLFLOW_TRACKING_USERNAME",
        "MLFLOW_TRACKING_PASSWORD",
    }
    assert [name for name in variables if f"${{{name}:?" not in text] == [], "compose would go on without it"
    services = load("mlflow-compose.yaml")["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["mlflow"]


def test_the_server_of_the_compose_file_is_one_that_mlflow_starts():
    from mlflow.cli import server

    words = shlex.split(load("mlflow-compose.yaml")["services"]["mlflow"]["command"])
    assert words[:2] == ["mlflow", "server"]
    options = {name for option in server.params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= options


def test_what_services_refer_to_exists():
    document = load("mlflow-compose.yaml")
    for service in document["services"].values():
        assert {*service.get("depends_on", ())} <= document["services"].keys()
        assert {volume.split(":")[0] for volume in service.get("volumes", ())} <= document["volumes"].keys()
        assert {config["source"] for config in service.get("configs", ())} <= document["configs"].keys()


def test_a_slurm_job_waits_for_the_stages_of_others_as_long_as_it_may_run():
    """`--wait-timeout` bounds more than the wait for the lock of a killed driver, for which it is there."""
    text = (DEPLOY / "slurm.sh").read_text()
    [days] = re.findall(r"^#SBATCH --time=(\d+)-00:00:00$", text, re.M)
    [wait] = re.findall(r"nlgraft run --wait-timeout (\S+)", text)
    assert duration_of(wait) == int(days) * 24 * 3600


def test_a_retried_ray_job_waits_for_the_lock_of_the_killed_one_as_long_as_it_may_run():
    spec = load("rayjob.yaml")["spec"]
    words = shlex.split(spec["entrypoint"])
    wait = words[words.index("--wait-timeout") + 1]
    assert duration_of(wait) == spec["activeDeadlineSeconds"]


@pytest.mark.parametrize(("tool", "file"), [("shellcheck", "slurm.sh"), ("hadolint", "Dockerfile")])
def test_its_own_tool_finds_nothing(tool, file):
    executable = shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if executable is None:
        pytest.skip(f"{tool} is not installed: pip install 'nlgraft[test]'")
    done = subprocess.run([executable, DEPLOY / file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
