"""What `nlgraft submit` says besides the job id."""

import pytest

from nlgraft.errors import NlgraftError
from nlgraft.execution.job import next_commands, submit_run


def test_the_next_commands_name_the_job_the_address_and_the_token(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert list(next_commands("raysubmit_1", "http://head:8265").values()) == [
        "ray job status --address http://head:8265 raysubmit_1",
        "ray job logs --follow --address http://head:8265 raysubmit_1",
        "ray job stop --address http://head:8265 raysubmit_1",
    ]
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert next_commands("raysubmit_1", None)["state"] == "RAY_AUTH_MODE=token ray job status raysubmit_1"


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        ([], ["--tracking-uri", "https://anna:geheim@mlflow.example.org"]),
        (["tracking.uri=https://anna:geheim@mlflow.example.org"], []),
        ([], ["--storage", "s3://anna:geheim@bucket/prefix?secret_key=geheim"]),
    ],
)
def test_a_password_is_refused_since_ray_shows_the_command_line_of_a_job(
    tmp_path, monkeypatch, overrides, options
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NlgraftError, match="set it in the environment in which") as raised:
        submit_run("toy.yaml", overrides, "http://127.0.0.1:1", options)
    assert "MLFLOW_TRACKING_PASSWORD" in str(raised.value)
    assert "geheim" not in str(raised.value)
