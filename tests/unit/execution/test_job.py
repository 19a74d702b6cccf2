"""What `nlgraft submit` says besides the job id."""

from nlgraft.execution.job import next_commands


def test_the_next_commands_name_the_job_the_address_and_the_token(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert list(next_commands("raysubmit_1", "http://head:8265").values()) == [
        "ray job status --address http://head:8265 raysubmit_1",
        "ray job logs --follow --address http://head:8265 raysubmit_1",
        "ray job stop --address http://head:8265 raysubmit_1",
    ]
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert next_commands("raysubmit_1", None)["state"] == "RAY_AUTH_MODE=token ray job status raysubmit_1"
