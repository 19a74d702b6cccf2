"""Sweeps whose store is an S3-compatible server, named by a URI with options, and a network that fails."""

import time

import pytest

from tests.commands import json_of, write_study
from tests.integration.test_command_line import dev_means, finish, start, wait_for
from tests.proxies import LosingProxy, Proxy, listening


@pytest.fixture
def store_uri(s3_uri, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NLGRAFT_CACHE", str(tmp_path / "cache"))
    return s3_uri


class CutOff:
    """The toy study on a store behind a proxy, and the same one with the store at hand."""

    def __init__(self, document, uri, directory, proxy):
        behind = uri.replace(proxy.target, proxy.address.removeprefix("http://"))
        self.proxy, self.log = proxy, directory / "log"
        self._tracking = ["--tracking-uri", f"sqlite:///{directory / 'mlflow.db'}"]
        self.behind, self.at_hand = (
            write_study(directory / name / "toy.yaml", {**document, "storage": {"path": path}})
            for name, path in (("behind", behind), ("at_hand", uri))
        )

    def start(self, study, *options):
        return start("run", study, "--json", *self._tracking, *options)

    def verify(self):
        return json_of("verify", self.at_hand, "--json", *self._tracking)

    def verify_table(self, result):
        """Compare with what the toy's scores are by hand, and verify."""
        assert dev_means(result) == pytest.approx([6.15, 16.15], abs=1e-9)
        assert self.verify()["num_planned"] == 4

    def verify_run(self, run):
        """Await the end of a run; each of its stages has begun once."""
        out, err = finish(run, 150)
        assert run.returncode == 0, err
        self.verify_table(out)
        words = [line.split()[0] for line in self.log.read_text().splitlines()]
        begun = sorted(word for word in words if word in ("upstream", "training"))
        assert begun == ["training"] * 4 + ["upstream"]


@pytest.fixture
def cut_off(
    request,
    toy_document,
    s3_server,
    store_uri,
    tmp_path,
    monkeypatch,
):
    for name in ("behind", "at_hand"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)  # reports are written there
    toy_document["base"] |= {"steps": 6, "pause_s": 1.0}
    with listening(s3_server, getattr(request, "param", Proxy)) as proxy:
        yield CutOff(toy_document, store_uri, tmp_path, proxy)


@pytest.mark.slow
@pytest.mark.parametrize("cut_off", [LosingProxy], indirect=True)
def test_answers_that_are_lost_after_the_write_double_nothing(cut_off):
    cut_off.verify_run(cut_off.start(cut_off.behind))
    assert len(vars(cut_off.proxy)["lost"]) > 40


@pytest.mark.slow
def test_a_store_that_is_out_of_reach_for_less_than_a_lease_is_waited_for(cut_off):
    run = cut_off.start(cut_off.behind)
    wait_for(cut_off.log, "training")
    cut_off.proxy.fault = "hold"
    time.sleep(10)
    cut_off.proxy.fault = ""
    cut_off.verify_run(run)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_driver_that_was_cut_off_from_its_store_and_superseded_writes_nothing(cut_off):
    older = cut_off.start(cut_off.behind)
    wait_for(cut_off.log, "training")
    cut_off.proxy.fault = "hold"
    newer = cut_off.start(cut_off.at_hand, "--wait-timeout", "10m")  # until the older lease expires
    out, err = finish(newer, 300)
    assert newer.returncode == 0, err
    cut_off.verify_table(out)
    verified = cut_off.verify()
    cut_off.proxy.fault = ""  # what the older one had sent arrives now
    _, err = finish(older, 150)
    assert older.returncode in (1, 4), err  # it may have given its store up before that
    assert "Traceback" not in err
    cut_off.verify_table(out)
    assert cut_off.verify() == verified
