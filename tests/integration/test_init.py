"""`nlgraft init`: from a newcomer's text to a study that is valid, planned and run, for every system."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import transformers
from click.testing import Result

from nlgraft import api
from nlgraft.basics.shipped import system_names
from nlgraft.basics.wording import duration
from nlgraft.commands.new_study import SCALES, plan_s
from nlgraft.study.public import Study
from nlgraft.text.conlang.tasks import generate
from nlgraft.text.corpus_config import ConlangConfig
from tests.commands import json_of, nlgraft
from tests.released_translators import write_marian
from tests.tiny_causal_lms import release
from tests.tiny_checkpoints import bert, bert_tokenizer

ROOT = Path(__file__).parents[2]
PAIRS = ["--source", "text.en", "--target", "text.de"]
UPSTREAM = ["--upstream-source", "few", "--upstream-target", "few"]
BOTH = ["--checkpoint", ".", "--upstream-source", "text.en"]
OPTIONS = {
    "embedding_transfer": PAIRS,
    "llm_vocabulary": ["--source", "lines.txt"],
    "lm_augmentation": PAIRS,
    "multi_source": ["--source", "text.en", "--source", "text.fr", "--target", "text.de"],
    "prlm_fusion": PAIRS,
    "vocabulary_transfer": ["--source", "lines.txt", "--label", "lines.label"],
}
NUM_EXAMPLES = 400


@pytest.fixture(scope="module")
def text() -> dict[str, list[str]]:
    several = generate(ConlangConfig(corpus="conlang", task="multi_source", train=NUM_EXAMPLES), "train")
    labelled = generate(ConlangConfig(corpus="conlang", task="classification", train=NUM_EXAMPLES), "train")
    return {
        "text.en": several["source 0"],
        "text.fr": several["source 1"],
        "text.de": several["target"],
        "lines.txt": labelled["source 0"],
        "lines.label": labelled["label"],
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: dict[str, list[str]]) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, lines in text.items():
        Path(name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return tmp_path


def init(*arguments: str, code: int = 0) -> Result:
    return nlgraft("init", *arguments, code=code)


def test_a_place_that_cannot_be_written_is_bad_input(place: Path) -> None:
    Path("file").touch()
    done = init("embedding_transfer", *PAIRS, "--out", "file/study.yaml", code=2)
    assert "--out file/study.yaml: cannot be written (" in done.output


def test_every_system_that_has_a_template_is_tried_here() -> None:
    folders = [ROOT / name.replace(".", "/") for name in system_names()]
    assert {folder.name for folder in folders if (folder / "init.yaml.j2").exists()} == set(OPTIONS)


@pytest.mark.parametrize("system", OPTIONS)
def test_the_study_of_every_system_is_planned_without_a_problem_at_every_scale(
    place: Path, system: str
) -> None:
    done = init(system, *OPTIONS[system])
    for scale in SCALES:
        plan = api.plan(Study.from_yaml(f"{system}.yaml", [f"@{scale}"]))
        assert plan.warnings == []
        assert plan.problems == [] or scale == "gpu"  # which this machine may lack
        assert len(plan.trials) >= 9
        seconds = plan_s(plan)
        assert scale == "gpu" or (seconds and f"some {duration(seconds)} on this machine" in done.output)
    named = [line.split("  ")[0] for line in done.output.splitlines() if line.startswith("nlgraft ")]
    assert named[:3] == [f"nlgraft plan {system}.yaml", f"nlgraft run {system}.yaml", named[2]]
    nlgraft("validate", f"{system}.yaml")


def test_the_splits_divide_the_text_and_share_no_line(place: Path, text: dict[str, list[str]]) -> None:
    init("prlm_fusion", *PAIRS)
    folder = place / "prlm_fusion_text"
    pairs = {
        split: list(
            zip(
                *(
                    (folder / f"{split}.{side}").read_text("utf-8").splitlines()
                    for side in ("source", "target")
                ),
                strict=True,
            )
        )
        for split in ("train", "dev", "test")
    }
    assert sorted(pair for found in pairs.values() for pair in found) == sorted(
        zip(text["text.en"], text["text.de"], strict=True)
    )
    for side in (0, 1):
        train, dev, test = ({pair[side] for pair in pairs[split]} for split in ("train", "dev", "test"))
        assert not dev & train
        assert not test & (train | dev)
    assert len(pairs["dev"]) == len(pairs["test"]) == 20


def test_a_table_and_text_to_pretrain_on_are_taken(place: Path, text: dict[str, list[str]]) -> None:
    with Path("pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("english", "german"), *zip(text["text.en"], text["text.de"], strict=True)]
        )
    table = ["--table", "pairs.csv", "--source", "english", "--target", "german"]
    init("embedding_transfer", *table, "--upstream-source", "text.fr", "--upstream-target", "text.de")
    train = Path("embedding_transfer_text/train.source").read_text("utf-8").splitlines()
    upstream = Path("embedding_transfer_text/upstream_train.source").read_text("utf-8").splitlines()
    assert len(train) == NUM_EXAMPLES - 40
    assert set(train) <= set(text["text.en"])
    assert set(upstream) <= set(text["text.fr"])


@pytest.mark.parametrize("system", ["embedding_transfer", "prlm_fusion", "vocabulary_transfer"])
def test_a_released_model_takes_the_place_of_the_pretraining(
    place: Path, system: str, text: dict[str, list[str]]
) -> None:
    (place / "bert").mkdir()
    bert_tokenizer(place / "bert", text["text.en"])
    bert(transformers.AutoTokenizer.from_pretrained(place / "bert").get_vocab()).save_pretrained(
        place / "bert"
    )
    init(system, *OPTIONS[system], "--checkpoint", "bert")
    study = Study.from_yaml(f"{system}.yaml")
    assert str(place / "bert") in json.dumps(study.base)
    assert api.plan(study).problems == []


def test_an_opus_mt_is_taken_as_a_translator(place: Path, text: dict[str, list[str]]) -> None:
    (place / "opus").mkdir()
    write_marian(place / "opus", text["text.en"], text["text.de"])
    init("embedding_transfer", *OPTIONS["embedding_transfer"], "--checkpoint", "opus")
    study = Study.from_yaml("embedding_transfer.yaml")
    assert study.base["upstream"]["objective"] == "translation"
    assert api.plan(study).problems == []


def test_a_causal_model_meets_the_text_and_is_scored_on_its_old_domain(place: Path) -> None:
    released = release(place / "gpt2", "gpt2")
    init("llm_vocabulary", *OPTIONS["llm_vocabulary"], "--checkpoint", str(released))
    alone = Study.from_yaml("llm_vocabulary.yaml")
    assert alone.base["causal_lm"] == {"checkpoint": str(released), "max_tokens": 60}  # of 64 positions
    assert "upstream" not in alone.data
    other = [*OPTIONS["llm_vocabulary"], "--checkpoint", str(released), "--upstream-source", "text.en"]
    init("llm_vocabulary", *other, "--out", "old.yaml")
    assert api.plan(Study.from_yaml("old.yaml")).problems == []
    old_domain = Path("old_text/upstream_test.source").read_text("utf-8").splitlines()
    assert set(old_domain) <= set(Path("text.en").read_text("utf-8").splitlines())
    record = json_of("trial", "old.yaml", "base.training=null", "--cell", "extend_fvt", "--json")
    assert record["state"] == "finished"
    assert record["metrics"]["old_domain/test_bits_per_byte"] > 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["multi_source", *PAIRS], "--source is given once per source, two or more"),
        (["vocabulary_transfer", *PAIRS], "--target is not taken; --label is missing"),
        (["lm_augmentation", *PAIRS, "--checkpoint", "."], "--checkpoint is not taken"),
        (["lm_augmentation", *PAIRS, *UPSTREAM[:2]], "--upstream-target is missing"),
        (["prlm_fusion", *PAIRS, *UPSTREAM], "--upstream-target is not taken"),
        (["prlm_fusion", *PAIRS, *UPSTREAM[2:]], "given without --upstream-source"),
        (["prlm_fusion", *PAIRS, "--language", "en"], "--language is not taken"),
        (["multi_source", *OPTIONS["multi_source"], *UPSTREAM[:2]], "--upstream-source is not taken"),
        (["multi_source", *OPTIONS["multi_source"], "--language", "en"], "--language: 1 given, 3 needed"),
        (["prlm_fusion", *PAIRS, "--checkpoint", "."], "no config.json of transformers there"),
        (["prlm_fusion", "--source", "no.en", "--target", "text.de"], "no.en: no such file"),
        (["prlm_fusion", "--source", "pairs.csv", "--target", "text.de"], "name columns"),
        (["prlm_fusoin", *PAIRS], "Did you mean 'trainables.prlm_fusion'"),
        (["examples.minimal_system", *PAIRS], "begin with one of its studies"),
        (["prlm_fusion", *PAIRS, "--out", "text.de"], "there already; give another --out"),
        (
            ["vocabulary_transfer", "--source", "classes", "--label", "text.en"],
            "--source and --label swapped?",
        ),
        (
            ["prlm_fusion", "--source", "few", "--target", "few"],
            "the text of --source has 3 examples; give 100 or more",
        ),
        (["embedding_transfer", *PAIRS, *UPSTREAM], "the text of --upstream-source has 3 examples"),
        (["prlm_fusion", *PAIRS, *BOTH], "give --checkpoint or --upstream-source, not both"),
        (
            ["vocabulary_transfer", *OPTIONS["vocabulary_transfer"], *BOTH],
            "takes --source, --label, --checkpoint or --upstream-source: give --checkpoint or",
        ),
    ],
)
def test_what_does_not_suit_is_told_before_anything_is_written(
    place: Path, arguments: list[str], message: str
) -> None:
    Path("pairs.csv").write_text("a,b\n", "utf-8")
    Path("few").write_text("a\nb\nc\n", "utf-8")
    number = len(Path("text.en").read_text("utf-8").splitlines())
    Path("classes").write_text("".join(f"{n % 3}\n" for n in range(number)), "utf-8")
    before = sorted(place.iterdir())
    done = init(*arguments, code=2)
    assert message in done.output
    assert sorted(place.iterdir()) == before


def test_a_trial_of_the_smallest_scale_runs(place: Path) -> None:
    for name in ("text.en", "text.de"):  # less text gets fewer steps
        lines = Path(name).read_text("utf-8").splitlines(keepends=True)
        Path(name).write_text("".join(lines[:120]), "utf-8")
    init("prlm_fusion", *PAIRS)
    few = ["train.max_steps=4", "pretraining.train.max_steps=4"]
    assert json_of("trial", "prlm_fusion.yaml", *few, "--cell", "fused", "--json")["state"] == "finished"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("system", OPTIONS)
def test_the_smallest_scale_of_every_system_runs_and_is_reported(place: Path, system: str) -> None:
    init(system, *OPTIONS[system])
    nlgraft("run", f"{system}.yaml", "@minutes")
    assert "arm=" in nlgraft("report", f"{system}.yaml", "@minutes").stdout
