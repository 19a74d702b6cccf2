"""What lies in a store, what is removed of it, what differs, and hypotheses of any systems compared."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

import nlgraft
from nlgraft.basics.errors import StudyLockedError
from nlgraft.pipeline.store import MARKER, ArtifactStore
from nlgraft.runs.housekeeping import StoreContents
from nlgraft.study.data.design import cells
from nlgraft.study.data.system import SEARCH_SPLITS
from nlgraft.study.planning.selection import Proposal, record_granted, save_proposal, search_seed
from nlgraft.study.public import Study
from nlgraft.study.reading.reader import forget_study
from nlgraft.study.reading.resolving import resolve_cell
from tests.commands import json_of
from tests.commands import nlgraft as invoke
from tests.newcomer_text import write_lines
from tests.unit.export.conftest import DOCUMENT, run_all


def fingerprints(study):
    """All stages of a study, from its graphs."""
    graphs = [resolve_cell(study, cell).graph(seed) for cell in cells(study) for seed in study.seeds]
    return {stage.fingerprint for graph in graphs for stage in graph.stages}


def stored(place):
    return {path.name for path in (place / "artifacts").glob("*/*") if (path / "manifest.json").is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A store with two studies of one seed, which share text, tokenizer and the cell with one source."""
    place = tmp_path_factory.mktemp("finished") / "store"
    for other in ("both", "second"):
        run_all(of(place, other))
    return place


@pytest.fixture
def place(finished, tmp_path):
    """A copy of that store to take things from."""
    return Path(shutil.copytree(finished, tmp_path / "store"))


def of(place, other):
    factor = {"target": "read", "levels": ["first", other], "baseline": "first"}
    document = {**DOCUMENT, "name": other, "seeds": [1], "factors": {"read": factor}}
    return Study.from_dict({**document, "storage": {"path": str(place)}})


def test_ls_shows_state_size_and_registration(place):
    nlgraft.register(of(place, "both"))
    rows = json_of("ls", "--storage", place, "--json")
    assert [(row["study"], row["state"], row["is_registered"]) for row in rows] == [
        ("both", "2 finished", True),
        ("second", "2 finished", False),
    ]
    on_disk = {
        path.name: sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        for path in (place / "artifacts").glob("*/*")
    }
    both, second = (fingerprints(of(place, other)) for other in ("both", "second"))
    assert rows[0]["bytes"] == sum(on_disk[fingerprint] for fingerprint in both)
    assert rows[0]["own_bytes"] == sum(on_disk[fingerprint] for fingerprint in both - second)
    assert 0 < rows[0]["own_bytes"] < rows[0]["bytes"]
    assert "2 finished" in invoke("ls", "--storage", place).stdout
    assert "no study was run on" in invoke("ls", "--storage", place / "empty").stderr


def test_rm_shows_first_and_leaves_what_others_need(place):
    both, second = of(place, "both"), of(place, "second")
    expected = nlgraft.load(second).render("csv")
    assert "--yes removes them" in invoke("rm", "both", "--storage", place).stderr
    assert stored(place) == fingerprints(both) | fingerprints(second)
    invoke("rm", "both", "--storage", place, "--yes")
    assert stored(place) == fingerprints(second)
    assert nlgraft.load(second).render("csv") == expected
    assert [row["study"] for row in json_of("ls", "--storage", place, "--json")] == ["second"]
    invoke("rm", "both", "--storage", place, code=2)
    assert nlgraft.load(second).trials[0].state == "finished"


def test_gc_takes_what_nothing_needs_and_asks_for_more_by_name(place):
    both, second = of(place, "both"), of(place, "second")
    assert "0 entries" in invoke("gc", "--storage", place).stderr
    forget_study("both", ArtifactStore.open(place))
    # Its trials are on record still: they might be somebody's.
    assert "0 entries" in invoke("gc", "--storage", place).stderr
    shown = invoke("gc", "--loose-trials", "--storage", place)
    listed = {line.rpartition("/")[2] for line in shown.stdout.splitlines() if line.startswith("artifacts/")}
    assert listed == fingerprints(both) - fingerprints(second)
    assert stored(place) == fingerprints(both) | fingerprints(second)
    invoke("gc", "--loose-trials", "--storage", place, "--yes")
    assert stored(place) == fingerprints(second)
    orphan = place / "artifacts" / "trained" / ("0" * 64)
    (orphan / ("1" * 32)).mkdir(parents=True)
    (orphan / ("1" * 32) / "half").write_text("of a writer that was killed")
    invoke("gc", "--storage", place, "--yes")
    assert not orphan.exists()
    assert stored(place) == fingerprints(second)


def test_gc_removes_nothing_while_something_runs_or_is_unreadable(place):
    store = ArtifactStore.open(place)
    lease = store.leases.acquire("f" * 64)
    assert "try again when nothing runs" in invoke("gc", "--storage", place, "--yes", code=4).stderr
    lease.release()
    for path in (place / "records" / "definitions").glob("*.json"):
        definition = json.loads(path.read_text())
        if definition["name"] == "both":
            definition["study"]["system"] = "gone.system"
            path.write_text(json.dumps(definition))
    assert "`nlgraft rm NAME --yes`" in invoke("gc", "--storage", place, "--yes", code=1).stderr
    assert "cannot be read" in invoke("ls", "--storage", place).stdout
    before = stored(place)
    invoke("rm", "both", "--storage", place, "--yes")
    assert stored(place) == before
    invoke("gc", "--storage", place, "--yes")


def tree(place):
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


@pytest.mark.parametrize("is_marked", [True, False])
def test_files_of_others_in_the_directory_of_a_store_stay(place, is_marked):
    """Somebody kept models here first. Stores of earlier releases have no marker and are cleaned up still."""
    both = of(place, "both")
    kept = stored(place) - (fingerprints(both) - fingerprints(of(place, "second")))
    if not is_marked:
        (place / MARKER).unlink()
    other_files = [
        "checkpoints/bert-large/model.bin",
        "checkpoints/" + "a" * 64 + "/7/weights.bin",
        "artifacts/readme.txt",
        "artifacts/sha256/" + "b" * 64 + "/data",
        "artifacts/trained/" + "c" * 64 + "/" + "d" * 32,
        "leases/contract.json",
        "tmp/a,b,c/notes",
        "records/notes.json",
    ]
    for name in other_files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("{}")
        os.utime(place / name, (1e9, 1e9))
    checkpoint = place / "checkpoints" / ("e" * 64) / "7" / ("f" * 32) / "state.json"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    ArtifactStore.open(place).remove_abandoned()
    for command in (["rm", "both"], ["gc"], ["gc", "--loose-trials"]):
        invoke(*command, "--storage", place, "--yes")
    assert {*other_files} <= tree(place).keys()
    assert not checkpoint.exists()
    assert stored(place) == kept


def test_a_directory_that_is_no_store_is_refused(tmp_path):
    state = tmp_path / "checkpoints" / ("e" * 64) / "7" / ("f" * 32) / "state.json"
    state.parent.mkdir(parents=True)
    state.touch()
    assert MARKER in invoke("gc", "--storage", tmp_path, "--yes", code=2).stderr
    assert state.exists()


def test_nothing_is_removed_beside_a_running_search(place):
    """Between two proposals no stage is computed, and what the next one shares is named by nothing yet."""
    forget_study("both", ArtifactStore.open(place))
    before = stored(place)
    with ArtifactStore.open(place).leases.lock_study("searching"):
        for command in (["gc", "--loose-trials"], ["rm", "second"]):
            assert "when nothing runs" in invoke(*command, "--storage", place, "--yes", code=4).stderr
    assert stored(place) == before
    # One that starts between the look and the removal.
    removal = StoreContents(ArtifactStore.open(place)).leftovers(has_loose_trials=True)
    with ArtifactStore.open(place).leases.lock_study("searching"), pytest.raises(StudyLockedError):
        removal.carry_out(ArtifactStore.open(place))
    assert stored(place) == before


def test_what_an_interrupted_proposal_has_computed_is_needed(place):
    """A driver that was killed leaves no record of its search trials; the next run goes on with them."""
    space = {"train.peak_lr": {"type": "float", "low": 0.001, "high": 0.002}}
    search = {"trials": 2, "sampler": {"name": "random"}, "space": space}
    document = {**of(place, "both").to_dict(), "name": "searched", "search": search}
    study = Study.from_dict(document)
    store = ArtifactStore.open(place)
    study.record(store)
    cell = cells(study)[0]
    params, seed = {"train.peak_lr": 0.0015}, search_seed(study)
    graph = resolve_cell(study, cell, params).graph(seed, SEARCH_SPLITS)
    save_proposal(study, cell, store, Proposal(0, params, seed, graph.fingerprint))
    for name in ("both", "second"):
        invoke("rm", name, "--storage", place, "--yes")
    needed = {stage.fingerprint for stage in graph.stages}
    assert len(stored(place) & needed) >= 2, "text and tokenizer, which the proposal shares"
    assert stored(place) <= needed
    assert "0 entries" in invoke("gc", "--storage", place).stderr
    # Two cells of two proposals, and a replicate of each cell's best one.
    assert "6 planned" in invoke("ls", "--storage", place).stdout


def test_the_seeds_of_later_looks_belong_to_their_study(place):
    both, store = of(place, "both"), ArtifactStore.open(place)
    cell = cells(both)[0]
    record_granted(both, store, {cell.key: 2})
    graph = resolve_cell(both, cell).graph(both.look_seeds[1])
    [holding] = [holding for holding in StoreContents(store).holdings if holding.name == "both"]
    assert {stage.fingerprint for stage in graph.stages} <= holding.stages.keys()


def test_config_prints_what_a_cell_is_trained_with(study):
    done = invoke("config", "small", "--cell", "both", "--storage", study.storage.path, "--json")
    record = next(trial for trial in nlgraft.load(study).cell("both").trials).record
    assert json.loads(done.stdout) == record.config
    assert "read: both" in invoke("config", "small", "--cell", "both", "--storage", study.storage.path).stdout
    invoke("config", "small", "--cell", "neither", "--storage", study.storage.path, code=2)


def test_diff_shows_settings_data_and_results(place):
    diff = json_of("diff", "both", "second", "--storage", place, "--json")
    assert ["factors.read.levels", '["first","both"]', '["first","second"]'] in diff["settings"]
    assert diff["data"] == []
    by_name = {name: (before, after) for name, before, after in diff["results"]}
    loss = nlgraft.load(of(place, "both")).cell("both").mean("dev/loss")
    assert by_name["dev/loss, read=both"] == (f"{loss:.4g} (n 1)", "")
    before, after = (
        by_name["dev/loss, baseline"] if "dev/loss, baseline" in by_name else by_name["dev/loss, read=first"]
    )
    assert before == after
    invoke("diff", "both", "second", "--storage", place)


@pytest.fixture
def outputs(tmp_path):
    """References, and three systems of six seeds that get 30, 31 and 60 words in a hundred wrong."""
    draw = random.Random(1)
    words = [f"wort{number}" for number in range(50)]
    references = [[draw.choice(words) for _ in range(12)] for _ in range(150)]
    files = {"ref": [write_lines(tmp_path / "ref", [" ".join(line) for line in references])]}
    for name, share in (("a", 0.30), ("b", 0.31), ("c", 0.60)):
        files[name] = []
        for seed in range(1, 7):
            lines = [
                [draw.choice(words) if draw.random() < share else word for word in line]
                for line in references
            ]
            files[name].append(write_lines(tmp_path / f"{name}.{seed}", [" ".join(line) for line in lines]))
    return files


def compared(outputs, systems, seeds, *options):
    """Compare some seeds, counted from 1, of some systems."""
    files = [outputs[name][seed - 1] for name in systems for seed in seeds]
    names = [part for name in systems for _ in seeds for part in ("--sys-name", name)]
    return invoke("compare", *files, "--ref", outputs["ref"][0], *names, *options)


def test_systems_are_compared_as_cells_are(outputs, tmp_path):
    """Scores are sacreBLEU's own; a doubled error is found, one in a hundred words is not."""
    import sacrebleu

    done = compared(outputs, "abc", [1, 2, 3], "--ledger", tmp_path / "store", "--json")
    assert done.exit_code == 0, done.stderr
    a, b, c = json.loads(done.stdout)
    references = [outputs["ref"][0].read_text().splitlines()]
    expected = [
        sacrebleu.corpus_bleu(path.read_text().splitlines(), references).score for path in outputs["c"][:3]
    ]
    assert c["values"] == pytest.approx(expected)
    assert a["comparison"] is None
    means = [sum(system["values"]) / 3 for system in (a, b, c)]
    assert c["comparison"]["difference"] == pytest.approx(means[2] - means[0])
    assert (c["comparison"]["standing"], b["comparison"]["standing"]) == ("worse", "open")
    assert c["comparison"]["family"] == {"declared": 2, "tested": 2}
    # Two questions, at .04 of the .05 that all declarations on these lines share, .8 of it at the first look.
    assert c["comparison"]["p_holm"] / c["comparison"]["p"] == pytest.approx(2 / 0.8**2)
    low, high = c["comparison"]["ci"]
    assert low < means[2] - means[0] < high < 0


def test_outputs_of_a_trained_arm_get_no_second_verdict(place, tmp_path):
    """Its report has shown their scores; a system that nobody has seen may be compared with the baseline."""
    idle = {"target": "decode.batch_sentences", "levels": [3, 4], "baseline": 3}
    document = {**DOCUMENT, "name": "same", "seeds": [1], "factors": {"size": idle}}
    document |= {"base": {**DOCUMENT["base"], "read": "first"}, "storage": {"path": str(place)}}
    same = Study.from_dict(document)
    run_all(same)
    nlgraft.load(same).render("md")
    result = nlgraft.load(of(place, "both"))
    result.render("md")
    base, arm = (cell.finished[0].read_texts("test") for cell in result.cells)
    ref = write_lines(tmp_path / "ref", base[1])
    new = [write_lines(tmp_path / f"new.{seed}", [f"{line} w{seed}" for line in arm[0]]) for seed in (1, 2)]
    again = [
        write_lines(tmp_path / f"again.{seed}", [f"{line} v{seed}" for line in base[0]]) for seed in (1, 2)
    ]
    files = {
        "arm": [write_lines(tmp_path / "arm", [f" {line}" for line in arm[0]]), new[0]],
        "base": [write_lines(tmp_path / "base", base[0]), again[0]],
        "new": new,
    }

    def basis(first, second):
        names = [part for name in (first, first, second, second) for part in ("--sys-name", name)]
        paths = [*files[first], *files[second]]
        done = json_of("compare", *paths, "--ref", ref, *names, "--ledger", place, "--json")
        return done[1]["comparison"]["basis"], "; ".join(done[1]["comparison"]["notes"])

    assert basis("base", "new")[0] == "declared"
    for pair in ("base", "arm"), ("arm", "base"):
        kind, notes = basis(*pair)
        assert kind == "exploratory"
        assert "outputs of both" in notes


def test_the_ledger_remembers_what_was_compared(outputs, tmp_path, monkeypatch):
    """Twice the files are the next look; files left out, another baseline, no ledger: no verdict."""
    monkeypatch.chdir(tmp_path)

    def verdict(systems, seeds, *options):
        done = compared(outputs, systems, seeds, "--json", *options)
        last = json.loads(done.stdout)[-1]["comparison"]
        return last["basis"], last["standing"]

    assert verdict("ac", [1, 2, 3]) == ("exploratory", "open")
    assert "--ledger" in compared(outputs, "ac", [1, 2, 3]).stdout
    Path("nlgraft_store").mkdir()
    assert verdict("ac", [1, 2, 3]) == ("declared", "worse")
    assert verdict("ac", [1, 2, 3, 4, 5, 6]) == ("declared", "worse")
    assert verdict("ac", [2, 3, 4]) == ("exploratory", "open")
    assert verdict("ca", [1, 2, 3]) == ("declared", "better")
    assert verdict("ab", [1, 2, 3]) == ("declared later", "open")
    assert verdict("bc", [1, 2, 3]) == ("exploratory", "open")
    outputs["d"] = [
        write_lines(tmp_path / f"d.{path.name}", path.read_text().splitlines()) for path in outputs["c"]
    ]
    assert verdict("bd", [1, 2, 3]) == ("exploratory", "open"), "another name makes no other system"
    assert verdict("bd", [1, 2, 3], "--ledger", "fresh") == ("declared", "worse")
    assert "c against a on bleu" in invoke("ledger").stdout


def test_one_file_of_each_system_decides_nothing(outputs):
    done = invoke(
        "compare", outputs["a"][0], outputs["c"][0], "--ref", outputs["ref"][0], "--metric", "ter", "--json"
    )
    _, c = json.loads(done.stdout)
    assert c["comparison"]["standing"] == "open"
    assert c["comparison"]["p_segments"] < 0.01
    done = compared(outputs, "ac", [1], "--ledger", outputs["ref"][0].with_name("store"))
    assert "1 seed more" in done.stdout


def test_files_that_do_not_fit_are_all_named(outputs, tmp_path):
    short = write_lines(tmp_path / "short", ["one line"])
    refused = invoke("compare", outputs["a"][0], short, short, "--ref", outputs["ref"][0], code=2)
    assert "short: 1 lines, ref has 150" in refused.stderr
    invoke("compare", short, "--ref", short, code=2)
    invoke("compare", short, short, "--ref", short, "--sys-name", "a", code=2)
    invoke("compare", short, outputs["a"][0], "--ref", tmp_path / "none", code=2)


def test_references_without_text_and_systems_without_name_are_refused(tmp_path):
    first, other, empty = (write_lines(tmp_path / name, [name] * 2) for name in ("1", "\x1b[31m2", "3"))
    empty.write_text("\n \n")
    assert "no line has text" in invoke("compare", first, other, "--ref", empty, code=2).stderr
    nameless = invoke("compare", first, other, "--ref", first, "--sys-name", "a", "--sys-name", " ", code=2)
    assert "--sys-name" in nameless.stderr
    twins = write_lines(tmp_path / "4", ["\x1b[31m2 "] * 2)
    assert "first files" in invoke("compare", first, other, twins, "--ref", first, code=2).stderr
    assert "\x1b" not in invoke("compare", first, other, "--ref", first).stdout
