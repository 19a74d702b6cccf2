"""What the stages of a trial are, which of them cells share, and what is refused."""

import pytest
from pydantic import ValidationError

from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.text.corpus_config import EOS
from tests.contract.toys.lm_augmentation import ARMS
from tests.unit.stages.runs import artifact, run
from trainables.lm_augmentation.config import Config
from trainables.lm_augmentation.graph import stage_graph


def graph(arm, **changes):
    config = {**ARMS[arm], **{name: {**ARMS[arm].get(name, {}), **part} for name, part in changes.items()}}
    return stage_graph(Config(**config), seed=1, splits=("dev",))


@pytest.mark.parametrize("side", ["source", "target"])
def test_centring_changes_the_training_and_no_stage_before_it(side):
    arm = "src_elmo, stored, +shdemb" if side == "source" else "tgt_elmo"
    plain, centred = (graph(arm, **{side: {"is_centred": value}}) for value in (False, True))
    names = [{stage.name for stage in each.stages} for each in (plain, centred)]
    assert names[1] - names[0] == {f"{side}_lm_means"}
    shared = {"trained", "translation_dev", "scores"} ^ names[0]
    assert all(plain.find(name) == centred.find(name) for name in shared)
    assert plain.find("trained") != centred.find("trained")


@pytest.mark.parametrize(("side", "arm"), [("source", "src_ft"), ("target", "tgt_ft")])
def test_means_and_endless_freezing_of_a_finetuned_language_model_are_refused(side, arm):
    steps = ARMS[arm]["train"]["max_steps"]
    with pytest.raises(ValidationError) as refused:
        graph(arm, **{side: {"is_centred": True, "num_frozen_steps": steps}})
    for name in ("is_centred", f"num_frozen_steps is {steps}"):
        assert f"{side}.{name}" in str(refused.value)


def test_a_finetuned_output_must_read_its_own_token():
    linear = {"source": {"model": {"kind": "bi_lm", "combiner": "linear"}}}
    graph("src_elmo", language_models=linear)
    with pytest.raises(ValidationError, match="combiner linear, whose output never reads the token"):
        graph("src_ft", language_models=linear)


@pytest.mark.parametrize("arm", ["baseline", "src_elmo", "tgt_elmo", "tgt_ft"])
def test_hypotheses_begin_as_the_text_of_language_models_does(arm):
    """A target-side language model has only seen text behind the end token; all arms start alike."""
    stages = graph(arm)
    for name in ("trained", "translation_dev"):
        assert stages.find(name).config["view"]["target_start"] == EOS


def test_language_models_are_trained_without_label_smoothing_and_the_task_with_it():
    """Sections 3.2 and 3.3; a training that names other settings does not get it back."""
    stages = graph(
        "tgt_ft", language_models={"target": {"model": {"kind": "uni_lm"}, "train": {"max_steps": 5}}}
    )
    assert "label_smoothing" not in stages.find("target_lm").config["train"]
    assert stages.find("trained").config["train"]["label_smoothing"] == 0.1


def test_documents_are_cut_to_their_first_words_for_the_model_and_for_lead(tmp_path):
    """Table 3: the corpus that all stages read is cut, so lead is that of the cut text."""
    streams = {"sources": "one two three. four", "target": "one"}
    for role, line in streams.items():
        (tmp_path / role).write_text(f"{line}\n", "utf-8")
    files = {role: str(tmp_path / role) for role in streams}
    data = {"corpus": "files", **dict.fromkeys(("train", "dev", "test"), files)}
    stages = {
        words: graph("baseline", data={"downstream": {**data, "max_source_words": words}}) for words in (2, 3)
    }
    for name in ("downstream_corpus", "trained", "lead_dev"):
        assert stages[2].find(name) != stages[3].find(name)
    store = ArtifactStore.open(tmp_path / "store")
    run(store, StageGraph(stages[2].find("lead_scores")))
    assert (artifact(store, stages[2], "lead_dev") / "hypotheses.txt").read_text() == "one two\n"
