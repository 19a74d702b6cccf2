"""Registered studies as a user meets them: registered, run, reported."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from click.testing import CliRunner

import nlgraft
from nlgraft import api
from nlgraft.analysis.data import registration
from nlgraft.analysis.data.registration import open_registrations
from nlgraft.basics.errors import DataError
from nlgraft.commands.main import main
from nlgraft.pipeline.store import ArtifactStore
from tests.commands import json_of
from tests.unit.analysis.registered import STUDY


def num_registrations(place):
    return len(open_registrations(ArtifactStore.open(place.root / "store")).read().documents)


def test_registering_the_same_again_keeps_date_and_digest(here):
    first = here.register()
    assert nlgraft.register(here.study(text="# a comment\n" + STUDY)) == first
    assert num_registrations(here) == 1


def test_drivers_that_register_at_once_agree(here):
    study = here.study()
    with ThreadPoolExecutor(4) as pool:
        registrations = list(pool.map(lambda _: nlgraft.register(study), range(4)))
    assert len({registration.time for registration in registrations}) == 1
    assert num_registrations(here) == 1


def test_registering_something_else_makes_a_further_registration(here):
    first = here.register()
    here.put("base/steps", 11)
    second = here.register()
    assert second.digest != first.digest
    standing = here.registration()
    assert standing.is_as_registered
    assert f"{second.name}, registration 2 of 2 under this name" in str(standing)
    here.put("base/steps", 12)
    assert here.deviations() == ["steps: 11 → 12"], "compared with the newest"
    here.put("base/steps", 10)
    assert f"{first.name}, registration 1 of 2 under this name" in str(here.registration())


def test_a_variant_can_be_registered_itself(here):
    here.register()
    variant = here.register("@tiny")
    standing = here.registration("@tiny")
    assert standing.is_as_registered
    assert standing.registration == variant
    assert here.registration().registration.variant == "guesses"
    assert here.deviations("steps=3") == ["steps: 10 → 3"], "compared with the study itself"


def test_a_study_that_nobody_registered_says_nothing(here):
    result = here.run()
    assert result.registration is None
    assert "registration" not in result.render("md").lower()
    assert result.to_json()["registration"] is None


def test_what_had_been_seen_is_said(here):
    here.run(skip=[("arm=avg", 3)])
    registered = here.register()
    assert (registered.num_finished, registered.num_planned) == (11, 12)
    standing = here.registration()
    assert "before any analysis of its test segments in this store; 11 of its 12 replicates" in str(standing)


@pytest.mark.parametrize("name", ["guesses", "another"])
def test_analyses_before_the_registration_are_counted(here, name):
    """Of the same study, or of any other one on the same test set."""
    here.document["name"] = name
    here.run().headline()
    here.document["name"] = "guesses"
    if name == "another":
        here.document["base"]["steps"] = 12
    registered = here.register()
    assert registered.analyses == (2,), "the first entry declares"
    for _ in range(2):  # what is shown afterwards does not count
        here.run().headline()
        assert "after 1 analysis of its test segments" in str(here.registration())
    here.put("seeds", [1, 2, 3, 4])
    here.run().headline()
    assert here.register().analyses == ((2, 3) if name == "guesses" else (2, 4, 5))


def test_cells_left_out_by_only_and_failed_seeds_are_shown(here):
    here.put("seeds", [1, 2, 13])
    here.register()
    assert here.deviations() == [], "nothing has run yet"
    here.run(skip=["arm=att", ("arm=avg", 2)])
    deviations = here.deviations()
    assert "trials of arm=att: 3 seeds → not run" in deviations
    assert "seed 2 of arm=avg: to be finished → not run" in deviations
    assert any(
        "seed 13 of arm=avg: to be finished → failed: " in text and "no luck" in text for text in deviations
    )
    assert len(deviations) == 5


def test_seeds_that_finished_beyond_the_registered_ones_are_shown_for_ever(here):
    here.register()
    here.put("seeds", [1, 2, 3, 4, 5])
    here.run().headline()
    assert here.deviations() == ["seeds: 1, 2, 3 → 1, 2, 3, 4, 5"]
    here.put("seeds", [1, 2, 3])
    deviations = here.deviations()
    assert len(deviations) == 4
    assert "seeds 4, 5 of arm=avg: not registered → finished, shown, and left out" in deviations


def test_planned_looks_that_stop_a_cell_are_as_registered(here):
    here.put("sequential", {"looks": [3, 4]})
    here.put("seeds", [1, 2, 3, 4])
    here.register()
    here.put("seeds", [1, 2, 4, 3])
    assert here.deviations() == ["seeds: 1, 2, 3, 4 → 1, 2, 4, 3"]
    here.put("seeds", [1, 2, 3, 4])
    result = here.run(skip=[("arm=att", 4), ("baseline", 4), ("arm=avg", 4), ("without schooling", 4)])
    stopped = [label for label, stop in result.stops.items() if stop.num_seeds == 3]
    assert stopped
    assert not [
        deviation
        for deviation in result.registration.deviations
        if any(label in deviation.what for label in stopped)
    ]


def test_a_registration_needs_its_text(here):
    (here.root / "test.de").unlink()
    with pytest.raises(DataError, match=r"test\.de"):
        here.register()


def test_edited_text_that_cannot_be_read_stops_no_report(finished, monkeypatch):
    def refuse(_):
        raise DataError("the hub is away")

    monkeypatch.setattr(registration, "load_corpus", refuse)
    assert finished.registration().is_as_registered, "the registered text need not be read again"
    finished.put("data/limits", {"train": 20})
    assert finished.deviations() == ["text: readable → cannot be read: the hub is away"]


def test_reports_say_as_registered(finished):
    result = nlgraft.load(finished.study())
    name = result.registration.registration.name
    expected = f"As registered ({name}), before any analysis of its test segments in this store."
    for kind in ("md", "html", "latex"):
        shown = result.render(kind)
        assert expected in shown, kind
        assert "eviations" not in shown
    document = json.loads(result.render("json"))["registration"]
    assert document["is_as_registered"]
    assert document["text"] == expected
    assert len(document["digest"]) == 64


def test_reports_list_every_deviation(finished):
    finished.put("base/steps", 11)
    finished.put("analysis/alpha", 0.1)
    result = nlgraft.load(finished.study())
    assert "2 deviations" in str(result.registration)
    for kind in ("md", "html", "latex"):
        shown = result.render(kind)
        assert "with 2 deviations" in shown
        assert "eviations from the registration" in shown
        assert "steps" in shown
        assert "analysis.alpha" in shown
    assert result.to_json()["registration"]["deviations"] == [
        {"what": "analysis.alpha", "registered": "0.05", "now": "0.1"},
        {"what": "steps", "registered": "10", "now": "11"},
    ]


def test_the_ledger_says_how_an_analysis_stood_to_the_registration(here):
    here.run().headline()
    digest = here.register().digest[:12]
    here.run().headline()
    here.put("seeds", [1, 2, 3, 4])
    here.run().headline()
    study = str(here.root / "guesses.yaml")
    store = ["--storage", str(here.root / "store")]
    listed = CliRunner(env={"COLUMNS": "300"}).invoke(main, ["ledger", study, *store])
    rows = [line for line in listed.output.splitlines() if line[:1].isdigit()]
    assert {row.split()[0] for row in rows} == {"1", "2", "3"}, (
        "a declaration, and the analysis before the registration, which is shown again"
    )
    assert f"1 deviation from {digest}" in listed.output
    entries = api.ledger(study, str(here.root / "store"))
    assert [entries[n].registration for n in (1, 2, 3)] == ["", "", digest]
    assert entries[3].deviations == ("seeds: 1, 2, 3 → 1, 2, 3, 4",)


def test_a_damaged_registration_is_named(here):
    here.register()
    here.put("base/steps", 11)
    here.register()
    entry = next((here.root / "store" / "registrations").rglob("00000001.json"))
    entry.chmod(0o600)
    entry.write_text("{}")
    standing = here.registration()
    assert standing.is_as_registered
    assert "00000001.json: cannot be read" in str(standing)


def test_the_command_registers_once_and_shows(here):
    study, store = str(here.root / "guesses.yaml"), ["--storage", str(here.root / "store")]
    here.study()
    call = CliRunner(env={"COLUMNS": "200"}).invoke
    nothing = call(main, ["register", study, "--show", *store])
    assert nothing.exit_code == 0
    assert "guesses is not registered" in nothing.output
    first = json_of("register", study, "--json", *store)
    assert json_of("register", study, "--json", *store) == first
    shown = call(main, ["register", study, *store]).output
    assert first["digest"] in shown
    assert first["time"] in shown
    assert "no analyses of its test segments; 0 of 12 replicates finished" in shown
    call(main, ["register", study, "steps=20", *store])
    listed = json_of("register", study, "--show", "--json", *store)
    assert [registration["content"]["cells"][0]["settings"]["steps"] for registration in listed] == [10, 20]
    roles = json_of("register", "search_spaces/multi_source/search.yaml", "@tiny", "--json", *store)
    text = roles["content"]["cells"][0]["settings"]["data.text.source.train source 0"]
    assert text.startswith("6,000 lines")  # text by role is frozen by its lines


def test_results_without_a_store_have_no_registration(finished):
    assert replace(nlgraft.load(finished.study()), store=None).registration is None
