"""What a study and its plan say about themselves at a prompt."""

from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.public import Study

LONGEST = 110


def test_a_study_and_its_plan_say_in_a_few_lines_what_they_are_and_what_to_call_next(study):
    assert str(study) == repr(study)
    assert str(study).splitlines()[0] == f"Study {study.name}: {study.system}, 5 cells x 2 seeds"
    plan = study.plan()
    shown = repr(plan).splitlines()
    assert shown[0] == f"Plan of {study.name}"
    assert {"  cells: 5", "  seeds: 2", "  trials: 10", "  stages that differ: 28 (22 shared)"} <= set(shown)
    for text in (str(study), str(plan)):
        assert "launch(study)" in text.splitlines()[-1]
        assert len(text.splitlines()) <= 10
        assert max(map(len, text.splitlines())) <= LONGEST
    assert len(repr(plan.trials[0])) < 500
    assert plan._repr_html_().count("<tr>") == len(plan.facts())


def test_one_seed_is_one_seed(good):
    good["seeds"] = [1]
    good["search"] = {
        "space": {"train.peak_lr": {"type": "float", "low": 1e-4, "high": 1e-2, "log": True}},
        "trials": 1,
    }
    assert "5 cells x 1 seed, 1 search trial per cell" in str(Study.from_dict(good))


def test_a_plan_compares_with_the_study_s_own_store(good, tmp_path):
    study = Study.from_dict({**good, "storage": {"path": str(tmp_path / "store")}})
    store = ArtifactStore.open(tmp_path / "store")
    corpus = study.plan().trials[0].graph.stages[0]
    scratch = store.new_scratch(corpus)
    (scratch / "text").write_text("words")
    store.publish(corpus, scratch)
    assert study.plan().stages["finished"] == 1
