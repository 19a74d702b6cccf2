"""What a newcomer sees first: systems and their settings, and the studies that come with nlgraft."""

import json
from pathlib import Path

import pytest

from nlgraft.basics.errors import StudyError
from nlgraft.basics.shipped import study_path, system_names
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.public import Study
from nlgraft.study.reading.reader import record_study
from tests.commands import nlgraft
from tests.processes import python

ROOT = Path(__file__).parents[2]
SCREEN = 40
NAMES = [path.rpartition(".")[2] for path in system_names()]


def shown(*arguments):
    return nlgraft(*arguments).output


@pytest.mark.parametrize("name", NAMES)
def test_a_system_is_shown_on_one_screen_of_80_columns(name):
    first = shown("systems", name)
    assert len(first.splitlines()) <= SCREEN
    commands = [line.split("  ")[0].strip() for line in first.splitlines() if line.startswith("nlgraft ")]
    assert len(commands) == 3
    for text in (first, *(shown(*command.replace("PART", "data").split()[1:]) for command in commands)):
        lines = [line for line in text.splitlines() if not line.startswith("nlgraft ")]
        assert [line for line in lines if line != line.rstrip()] == []
        prose = [line for line in lines if line.startswith("    ")]
        assert max(map(len, prose)) <= 80


def test_settings_of_the_kinds_of_corpus_stand_apart():
    text = shown("systems", "embedding_transfer", "data.upstream")
    heads = [line for line in text.splitlines() if line.startswith("data.upstream, corpus:")]
    assert "data.upstream, corpus: conlang" in heads
    assert "data.upstream, corpus: huggingface" in heads
    hub = text.partition("data.upstream, corpus: huggingface\n")[2].partition("\n\n")[0]
    named = [line.split()[0] for line in hub.splitlines() if not line.startswith(" ")]
    assert "data.upstream.revision" in named
    assert "data.upstream.langpair" not in named
    # `dev` is a number of sentences there, the name of a test set here
    rows = json.loads(shown("systems", "embedding_transfer", "data.upstream.dev", "--json"))
    of_dev = {tuple(row["kinds"]): row["type"] for row in rows if row["path"] == "data.upstream.dev"}
    assert of_dev == {("corpus: conlang",): "int", ("corpus: sacrebleu",): "text"}


def test_essential_settings_are_those_that_studies_set():
    rows = json.loads(shown("systems", "embedding_transfer", "--essential", "--json"))
    named = {row["path"] for row in rows}
    assert {"transfer.method", "tokenizers.downstream.vocab_size", "upstream.train.max_steps"} <= named
    assert "masked_lm.masking.rate" not in named


def test_metrics_are_listed_with_what_is_better():
    text = shown("systems", "embedding_transfer", "--metrics")
    assert "test/bleu in BLEU points, higher is better" in text
    assert "dev/loss in nats per token, lower is better" in text


def test_a_setting_is_read_where_another_has_a_value_that_can_be_written():
    text = " ".join(shown("systems", "multi_source", "sources.fine_encoder.norm").split())
    assert "Read when multi_source is given and sources.fine_encoder.num_layers is 1 to 12." in text
    text = " ".join(shown("systems", "prlm_fusion", "fusion").split())
    assert "fusion.is_frozen = true" in text
    assert "fusion.has_frozen_dropout is false" in text


def test_a_file_without_its_suffix_is_understood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("name: mine\n", "utf-8")
    done = nlgraft("plan", "mine", code=2)
    assert "there is no file 'mine'" in done.output
    assert "Did you mean 'mine.yaml'?" in done.output


def test_an_unknown_part_names_the_parts():
    done = nlgraft("systems", "embedding_transfer", "tranfer", code=2)
    assert "Did you mean 'transfer'? Its parts: data, tokenizers, model" in done.output


def test_a_system_of_ones_own_in_one_word_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_system.py").write_text("from examples.minimal_system import *\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "decode" in shown("systems", "my_system")
    done = nlgraft("systems", "embeding_transfer", code=2)
    assert "Did you mean 'trainables.embedding_transfer'?" in done.output


def test_every_study_that_comes_along_is_listed_and_found_by_name():
    listed = {entry["study"]: entry for entry in json.loads(shown("studies", "--json"))}
    assert sorted(map(study_path, listed)) == sorted(ROOT.glob("search_spaces/*/*.yaml"))
    demo = listed["embedding_transfer/demo"]
    assert "tiny" in demo["scales"]
    assert not demo["needs_data"]
    assert listed["lm_augmentation/multi30k"]["needs_data"]


def test_a_study_is_named_without_its_system_where_that_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Study.from_yaml("demo") == Study.from_yaml("embedding_transfer/demo")
    with pytest.raises(StudyError, match="lm_augmentation/search, multi_source/search"):
        Study.from_yaml("search")
    with pytest.raises(StudyError, match=r"no file 'dmo'.*Did you mean 'demo'\?"):
        Study.from_yaml("dmo")
    (tmp_path / "demo").write_text("name: mine", "utf-8")  # a file of the user comes first
    assert study_path("demo") == Path("demo")


def test_the_status_of_a_study_that_comes_along_is_known_before_its_first_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message, document = shown("status", "demo", "--json").splitlines()
    assert message.startswith(f"demo was never run on {tmp_path}")
    assert json.loads(document)["counts"].keys() >= {"planned", "finished"}
    record_study(Study.from_yaml("demo"), ArtifactStore.open("nlgraft_store"))
    assert "beside its file: --storage nlgraft_store" in shown("status", "demo", "--storage", "empty")


def test_a_package_of_the_user_with_the_same_name_hides_no_system(tmp_path):
    (tmp_path / "trainables" / "mine").mkdir(parents=True)
    (tmp_path / "trainables" / "__init__.py").write_text("", "utf-8")
    (tmp_path / "trainables" / "mine" / "__init__.py").write_text("NAME = 'mine'", "utf-8")
    code = (
        "import nlgraft, trainables.mine, trainables.multi_source as shipped;"
        "print(trainables.__file__, trainables.mine.NAME, shipped.__file__)"
    )
    done = python("-c", code, cwd=tmp_path, env={"PYTHONPATH": f"{tmp_path}:{ROOT / 'platform'}"})
    where, name, shipped = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    assert name == "mine"
    assert Path(shipped).is_relative_to(ROOT)
