"""Proposals of a stream on the toy system: its sweeps run in this process, without Ray."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nlgraft import api
from nlgraft.analysis.data.stream import Step, append, open_streams, read_streams
from nlgraft.analysis.policy.proposals import FRESH_SEEDS, LOOKS, stream_level
from nlgraft.basics.errors import NlgraftError, StudyError, TrialFailed
from nlgraft.commands.ledger import try_proposal
from nlgraft.execution.events import Driver
from nlgraft.execution.sweep import SweepOutcome
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.stage import NullReporter, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial, trial_record
from nlgraft.runs.proposing import baseline_of, comparison_study, seeds_of, with_changes
from nlgraft.runs.run import Run
from nlgraft.study.data.design import cells
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system_import import load_system
from tests.commands import json_of, nlgraft
from tests.processes import at_once
from trainables.command import stages


def sweep_here(run, grant, note):
    """Do what a sweep does, one trial after another in this process."""
    driver = Driver(run.on_event or (lambda _: None), grant=grant, splits=("dev",))
    queue = TrialQueue(run.study, run.store, list(run.cells), lambda _: None, driver, 1)
    queue.open()
    while not queue.is_done and (trial := queue.take()) is not None:
        settings = {"reporter": NullReporter(), "config": dict(trial.config), "is_waiting": True}
        try:
            record = run_trial(trial.graph, run.store, **settings)
        except TrialFailed:
            record = trial_record(run.store, trial.fingerprint)
        queue.end(trial, record)
    assert note()
    return SweepOutcome(queue.num_run, queue.num_reused, queue.num_failed, queue.stop_reason)


@pytest.fixture
def study(toy_document, monkeypatch):
    monkeypatch.setattr(Run, "sweep", sweep_here)
    toy_document["base"] |= {"noise": 0.1}
    return Study.from_dict(toy_document)


@pytest.fixture
def propose(study):
    """Propose changes of the study."""
    return lambda *changes, **options: api.propose(study, [*changes], **options)


def num_lines(log, stage):
    return log.read_text().split().count(stage)


def test_what_gains_is_kept_and_measured_again_and_then_compared_with(study, tmp_path, propose):
    kept = propose("gain=1.0")
    assert (kept.decision, kept.number, kept.against) == ("KEEP", 1, "baseline")
    assert kept.p <= kept.level == stream_level(0, 0, 0.05)
    assert kept.again.mean == pytest.approx(10.0)
    assert len(kept.again.seeds) == FRESH_SEEDS
    assert not {*kept.again.seeds, *study.seeds} & {*kept.first.seeds}
    text = "\n".join(kept.lines())
    assert text.startswith("KEEP: proposal 1 of toy, gain=1.0, against the baseline")
    assert "measured again on 5 fresh seeds: +10" in text
    assert "1 proposal so far, 1 kept" in text
    assert text.endswith("next: try another change of proposal 1; nlgraft ledger lists the stream")
    worse = propose("steps=1")
    assert (worse.decision, worse.number, worse.against) == ("DISCARD", 2, "1")
    assert "unlikely; harm is not shown" in repr(worse)
    assert worse.overrides == ("gain=1.0", "steps=1")
    assert {*worse.first.seeds} <= {*kept.again.seeds}, "the kept config's scores are used again"
    assert worse.first.mean == pytest.approx(-2.0)
    assert worse.level == stream_level(1, 1, 0.05)
    old = propose("steps=4", against="baseline")
    assert (old.overrides, old.against) == (("steps=4",), "baseline")
    assert old.first.gains == pytest.approx([1.0] * len(old.first.gains))
    scored = [line for line in (tmp_path / "log").read_text().splitlines() if "training" in line]
    assert len(scored) == len({line.split()[1] for line in scored}), "nothing is trained twice"
    with pytest.raises(NlgraftError, match=r"--against 2: no such proposal was kept\. .*baseline, 1"):
        propose("gain=2.0", against="2")


def test_a_proposal_has_one_level_and_one_answer(study, tmp_path, propose):
    first = propose("gain=1.0", "noise=8", max_seeds=3)
    assert (first.decision, len(first.first.seeds)) == ("MORE", 3)
    assert "goes on" in repr(first)
    further = propose("gain=1.0", "noise=8", max_seeds=4)
    assert (further.number, further.level, len(further.first.seeds)) == (1, first.level, 4)
    kept = propose("gain=1.0", "noise=8")
    assert (kept.decision, kept.number, len(kept.first.seeds)) == ("KEEP", 1, 12)
    trained = num_lines(tmp_path / "log", "training")
    for texts, against in ((["base.gain=1.0", "noise=8"], "baseline"), (["noise=8", "gain=1.0"], None)):
        again = propose(*texts, against=against)
        assert again.is_repeated
        assert (again.decision, again.first, again.again) == ("KEEP", kept.first, kept.again)
    assert num_lines(tmp_path / "log", "training") == trained
    kinds = [step.kind for step in open_streams(api.open_store(study)).read().documents.values()]
    assert kinds == ["proposed", "decided", "measured"]


@pytest.mark.parametrize("num_sweeps", [0, 1])
def test_a_proposal_that_was_cut_off_goes_on_at_its_level(monkeypatch, propose, num_sweeps):
    done = []

    def crash_later(run, *arguments):
        if len(done) == num_sweeps:
            raise KeyboardInterrupt
        done.append(run)
        return sweep_here(run, *arguments)

    with monkeypatch.context() as context:
        context.setattr(Run, "sweep", crash_later)
        with pytest.raises(KeyboardInterrupt):
            propose("gain=1.0")
    other = propose("gain=2.0", against="baseline")
    assert (other.number, other.level) == (2, stream_level(1, num_sweeps, 0.05))
    proposal = propose("gain=1.0", against="baseline")
    assert (proposal.decision, proposal.level) == ("KEEP", stream_level(0, 0, 0.05))
    assert proposal.is_repeated is (num_sweeps == 1)
    assert proposal.again is not None


def test_a_second_measurement_that_fails_is_made_again(monkeypatch, propose):
    def fail_later(run, *arguments):
        if run.study.sequential is None:
            monkeypatch.setattr("sweep_toy.run_scores", fail)
        return sweep_here(run, *arguments)

    def fail(_):
        raise OSError("disk full")

    with monkeypatch.context() as context:
        context.setattr(Run, "sweep", fail_later)
        first = propose("gain=1.0")
    assert (first.decision, first.again, first.has_failed) == ("KEEP", None, True)
    assert "its second measurement: " in first.reason
    monkeypatch.undo()
    monkeypatch.setattr(Run, "sweep", sweep_here)
    assert propose("gain=1.0").again is not None


def test_a_failing_proposal_runs_once_more_and_is_then_discarded(propose):
    first = propose("behaviour=raise")
    assert (first.decision, first.has_failed) == ("MORE", True)
    assert "this arm cannot work" in first.reason
    second = propose("behaviour=raise")
    assert (second.decision, second.number) == ("DISCARD", 1)
    assert "lost seed 2000000000, which what is kept did not" in second.reason


@pytest.mark.parametrize("num", [LOOKS[0] - 1, LOOKS[-1] + 1])
def test_numbers_of_seeds_that_no_proposal_gets_are_refused(num, propose):
    with pytest.raises(NlgraftError, match=f"max_seeds: {num} given; a proposal gets 3 to 24 seeds"):
        propose("gain=1.0", max_seeds=num)
    [option] = [param for param in try_proposal.params if param.name == "max_seeds"]
    assert option.type.to_info_dict().items() >= {"min": LOOKS[0], "max": LOOKS[-1]}.items()


def test_what_never_decides_is_discarded_with_the_last_seed(monkeypatch, propose):
    monkeypatch.setattr(
        "nlgraft.analysis.policy.proposals.decide",
        lambda gains, level, prior, limit: "DISCARD" if len(gains) >= limit else "MORE",
    )
    assert propose("noise=1.0", max_seeds=LOOKS[-1] - 1).decision == "MORE"
    proposal = propose("noise=1.0")
    assert (proposal.decision, len(proposal.first.seeds)) == ("DISCARD", LOOKS[-1])
    assert f"{LOOKS[-1]} seeds do not show a gain" in repr(proposal)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], "one or more key=value"),
        (["gian=1.0"], "Did you mean 'gain'"),
        (["data.corpus=other"], "what is measured stays the same"),
        (["objective.direction=minimize"], "maximize"),
        (["seeds=[7]"], "what is measured stays the same"),
        (["gain=0.0"], "the same trials as what is kept"),
        (["upstream=3"], None),
    ],
)
def test_what_is_no_proposal_is_refused_and_has_no_level(study, changes, message, propose):
    if message is None:
        assert propose(*changes, max_seeds=3).number == 1
        return
    with pytest.raises(StudyError, match=message):
        propose(*changes)
    assert open_streams(api.open_store(study)).read().last == 0


def test_a_difference_in_what_is_trained_once_is_refused(toy_document, monkeypatch):
    import sweep_toy

    def trained_once(config, *, seed, splits):
        whole = sweep_toy.stage_graph(config, seed=seed, splits=splits).result
        training = whole.inputs["training"]
        upstream = replace(training.inputs["upstream"], seed=1)
        return StageGraph(
            replace(whole, inputs={"training": replace(training, inputs={"upstream": upstream})})
        )

    system = replace(load_system("sweep_toy"), build=trained_once)
    monkeypatch.setattr("nlgraft.study.reading.resolving.system_of", lambda _: system)
    monkeypatch.setattr(Run, "sweep", sweep_here)
    study = Study.from_dict(toy_document)
    with pytest.raises(StudyError, match="upstream is trained once for all seeds and differs"):
        api.propose(study, ["upstream=3"])
    shared = api.propose(study, ["gain=1.0"], max_seeds=3)
    assert shared.notes == ("upstream is trained once for all seeds: the answer is about that one",)


def test_a_proposal_may_replace_a_section(tmp_path):
    whole = {"name": "a", "system": "trainables.lm_augmentation", "seeds": [1]}
    whole["data"] = {"downstream": {"corpus": "conlang", "train": 50, "dev": 5, "test": 5}}
    whole["base"] = {
        "tokenizers": {"source": "bitext", "target": "bitext"},
        "model": {"preset": "tiny", "dropout": 0.3},
        "train": {"max_steps": 5},
    }
    whole["objective"] = {"metric": "dev/bleu", "direction": "maximize"}
    base = baseline_of(Study.from_dict(whole))
    changes = ["model={preset: tiny, norm: pre}", "train.peak_lr=1e-3"]
    new, _ = with_changes(base, changes, ArtifactStore.open(tmp_path))
    pair = comparison_study(base, {"1": new}, seeds_of(0, 5), 5)
    kept_cell, proposal_cell = cells(pair)
    for alone, cell in ((base, kept_cell), (new, proposal_cell)):
        assert resolve_config(pair, cell) == resolve_config(alone, cells(alone)[0])
    assert resolve_config(pair, proposal_cell).model.dropout != 0.3


def test_an_edited_copy_of_a_script_is_a_proposal_and_what_is_kept_outlives_further_edits(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Run, "sweep", sweep_here)
    monkeypatch.setattr(stages, "_POLL_S", 0.01)
    script, draft = tmp_path / "script", tmp_path / "draft"
    document = {
        "name": "script",
        "system": "trainables.command",
        "data": {"directory": str(script)},
        "base": {
            "declare": {"rate": {"type": "int", "default": 1}},
            # The script is its own result.
            "stages": {"train": {"command": "true {seed} {rate}", "metrics": ["loss.json"]}},
            "metrics": {"dev/loss": {"direction": "minimize"}},
        },
        "objective": {"metric": "dev/loss", "direction": "minimize"},
        "seeds": [1, 2],
        "storage": {"path": str(tmp_path / "store")},
    }

    def write(folder, loss):
        folder.mkdir(exist_ok=True)
        (folder / "loss.json").write_text(json.dumps({"dev/loss": loss}))

    def propose(loss, *changes):
        write(draft, loss)
        return api.propose(Study.from_dict(document), [*changes, f"data.directory={draft}"])

    write(script, 3)
    kept = propose(2)
    assert (kept.decision, kept.first.mean) == ("KEEP", 1.0)
    [(name, copy)] = [text.split("=") for text in kept.changes]
    assert (name, json.loads(Path(copy, "loss.json").read_text())) == ("data.directory", {"dev/loss": 2})
    # Beside what was kept, though its directory has been edited.
    worse = propose(2.5, "settings.rate=2")
    assert (worse.decision, worse.number, worse.against, worse.first.mean) == ("DISCARD", 2, "1", -0.5)
    assert ("settings.rate=2" in worse.overrides, {*kept.changes} & {*worse.overrides}) == (True, set())
    # Another baseline: neither new levels, nor what was kept of the first.
    write(script, 4)
    other = propose(4.5)
    assert (other.number, other.against, other.first.mean) == (3, "baseline", -0.5)
    assert "baseline is not that of earlier proposals" in other.notes[0]
    with pytest.raises(StudyError, match="an edited script: data"):
        api.propose(Study.from_dict(document), [])


def test_a_study_with_a_streams_seeds_is_refused(toy_document):
    study = Study.from_dict(toy_document | {"seeds": [1, 3_000_000_007]})
    with pytest.raises(StudyError, match="3000000007 belongs to streams"):
        api.propose(study, ["gain=1.0"])


def test_another_baseline_on_the_same_data_shares_the_levels_but_not_what_is_kept(
    study, toy_document, propose
):
    assert propose("gain=1.0").decision == "KEEP"
    toy_document["base"] |= {"steps": 5}
    other = api.propose(Study.from_dict(toy_document), ["gain=2.0"], max_seeds=3)
    assert (other.number, other.against) == (2, "baseline")
    toy_document["data"] = {"lines": 7}
    elsewhere = api.propose(Study.from_dict(toy_document), ["gain=2.0"], max_seeds=3)
    assert elsewhere.number == 1
    assert [len(stream.proposals) for stream in read_streams(api.open_store(study)).values()] == [2, 1]


def test_drivers_that_propose_at_once_get_different_levels(tmp_path):
    store = ArtifactStore.open(tmp_path / "store")

    def enter(name):
        def step(stream):
            number = len(stream.proposals) + 1
            return Step(kind="proposed", stream="s", number=number, config=name, level=1 / number)

        append(store, "s", step)

    names = [f"c{index}" for index in range(12)]
    at_once(enter, names)
    proposals = read_streams(store)["s"].proposals
    assert sorted(proposals) == list(range(1, 13))
    assert {proposal.entered.config for proposal in proposals.values()} == {*names}


def test_a_lost_record_counts_as_a_proposal(tmp_path, propose):
    for gain in ("1.0", "2.0"):
        propose(f"gain={gain}", against="baseline", max_seeds=3)
    entry = next((tmp_path / "store" / "streams" / "entries").rglob("00000001.json"))
    entry.write_text("{")
    proposal = propose("gain=3.0", against="baseline", max_seeds=3)
    assert (proposal.number, proposal.level) == (3, stream_level(2, 1, 0.05))
    assert any("cannot be read" in note for note in proposal.notes)


def test_a_report_on_dev_comes_after_what_a_stream_saw_and_one_on_test_does_not(study, toy_document, propose):
    propose("gain=1.0")
    claims = [
        {"better": "gain=1.0", "worse": "baseline", "metric": f"{split}/score", "source": "none"}
        for split in ("test", "dev")
    ]
    toy_document |= {"seeds": [1, 2, 3, 4], "claims": claims}
    both = Study.from_dict(toy_document)
    for cell in ("baseline", "gain=1.0"):
        for seed in both.seeds:
            api.run_one(both, cell, seed, NullReporter())
    on_test, on_dev = (claim.comparison for claim in api.load(both).claims)
    assert on_test.basis == "declared"
    assert on_dev.basis != "declared"
    seen = [
        entry for entry in api.ledger(storage=study.storage.path).values() if entry.metrics[0] == "dev/score"
    ]
    assert [(entry.study, entry.plan.looks) for entry in seen[:2]] == [("toy", ())] * 2
    assert seen[0].segments.digest == seen[-1].segments.digest


def test_the_ledger_lists_streams(study, monkeypatch, propose):
    propose("gain=1.0")
    propose("steps=1")
    place = ["--storage", study.storage.path]
    monkeypatch.setenv("COLUMNS", "200")
    listed = nlgraft("ledger", *place)
    rows = [line.split() for line in listed.output.splitlines() if "KEEP" in line or "DISCARD" in line]
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        ("1", "gain=1.0", "baseline", "KEEP"),
        ("2", "steps=1", "1", "DISCARD"),
    ]
    streams = json_of("ledger", "--json", *place)["streams"]
    assert [stream["kept"] for stream in streams] == [1]
    assert streams[0]["proposals"][0]["measured"]["gains"] == pytest.approx([10.0] * 5)
