import subprocess

from nlgraft.tracking.backend import git_tags, provenance_tags


def git(directory, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(directory), *identity, *arguments], check=True, capture_output=True)


def test_commit_branch_and_dirty_flag(tmp_path):
    git(tmp_path, "init", "-q", "-b", "topic")
    assert git_tags(tmp_path) == {}  # no commit yet
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "x")
    tags = git_tags(tmp_path)
    assert len(tags.pop("mlflow.source.git.commit")) == 40
    assert tags == {"mlflow.source.git.branch": "topic", "mlflow.source.git.dirty": "false"}
    (tmp_path / "a").write_text("2")
    assert git_tags(tmp_path)["mlflow.source.git.dirty"] == "true"
    git(tmp_path, "checkout", "-q", "--detach")
    assert "mlflow.source.git.branch" not in git_tags(tmp_path)


def test_without_git_the_rest_is_still_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    tags = provenance_tags()
    assert {"mlflow.user", "mlflow.source.name", "mlflow.source.type", "nlgraft.host"} == set(tags)


def test_a_ray_job_is_told_apart(monkeypatch):
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert provenance_tags()["mlflow.source.type"] == "JOB"
