"""`nlgraft init`: from a newcomer's text to a study that is valid, planned and run, for every system."""

import csv
import json
import random
import re
from pathlib import Path

import pytest
from babel import Locale
from tokenizers import ByteLevelBPETokenizer

from nlgraft import api
from nlgraft.basics.shipped import system_names
from nlgraft.basics.wording import duration
from nlgraft.commands.new_study import SCALES
from nlgraft.study.public import Study
from tests.commands import json_of, nlgraft
from tests.newcomer_text import newcomer_text, write_lines
from tests.released_translators import write_marian
from tests.tiny_causal_lms import release

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
def text():
    return newcomer_text(NUM_EXAMPLES)


@pytest.fixture
def place(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    for name, lines in text.items():
        write_lines(Path(name), lines)
    return tmp_path


def init(*arguments, code=0):
    return nlgraft("init", *arguments, code=code)


def test_a_place_that_cannot_be_written_is_bad_input(place):
    Path("file").touch()
    done = init("embedding_transfer", *PAIRS, "--out", "file/study.yaml", code=2)
    assert "--out file/study.yaml: cannot be written (" in done.output


def test_every_system_that_has_a_template_is_tried_here():
    folders = [ROOT / name.replace(".", "/") for name in system_names()]
    assert {folder.name for folder in folders if (folder / "init.yaml.j2").exists()} == set(OPTIONS)


@pytest.mark.parametrize("system", OPTIONS)
def test_the_study_of_every_system_is_planned_without_a_problem_at_every_scale(place, system):
    done = init(system, *OPTIONS[system])
    for scale in SCALES:
        plan = api.plan(Study.from_yaml(f"{system}.yaml", [f"@{scale}"]))
        assert plan.warnings == []
        assert plan.problems == [] or scale == "gpu"  # which this machine may lack
        assert len(plan.trials) >= 9
        assert scale == "gpu" or f"some {duration(plan.run_s)} on this machine" in done.output
    named = [line.split("  ")[0] for line in done.output.splitlines() if line.startswith("nlgraft ")]
    assert named[:3] == [f"nlgraft plan {system}.yaml", f"nlgraft run {system}.yaml", named[2]]
    nlgraft("validate", f"{system}.yaml")
    study = Study.from_yaml(f"{system}.yaml")
    assert study.claims
    assert study.analysis.family == "claims"
    schema = re.findall(r"^# yaml-language-server: \$schema=(.*)$", Path(f"{system}.yaml").read_text(), re.M)
    assert "claims" in json.loads(Path(schema[0]).read_text("utf-8"))["properties"]
    assert "a cell has learned something from test/" in done.output or system == "llm_vocabulary"


def test_the_splits_divide_the_text_and_share_no_line(place, text):
    init("prlm_fusion", *PAIRS)
    pairs = {name: sides("prlm_fusion_text", name, "source", "target") for name in ("train", "dev", "test")}
    assert sorted(pair for pairs_of_split in pairs.values() for pair in pairs_of_split) == sorted(
        zip(text["text.en"], text["text.de"], strict=True)
    )
    for side in (0, 1):
        train, dev, test = ({pair[side] for pair in pairs[split]} for split in ("train", "dev", "test"))
        assert not dev & train
        assert not test & (train | dev)
    assert (len(pairs["dev"]), len(pairs["test"])) == (40, 80)


def test_a_table_and_text_to_pretrain_on_are_taken(place, text):
    with Path("pairs.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(
            [("english", "german"), *zip(text["text.en"], text["text.de"], strict=True)]
        )
    table = ["--table", "pairs.csv", "--source", "english", "--target", "german"]
    upstream_options = ["--upstream-source", "text.fr", "--upstream-target", "text.de"]
    done = init("embedding_transfer", *table, *upstream_options)
    assert "of --upstream-source stand in dev or test" in done.output
    assert "of the task's words do not occur" in done.output
    train = Path("embedding_transfer_text/train.source").read_text("utf-8").splitlines()
    upstream = Path("embedding_transfer_text/upstream_train.source").read_text("utf-8").splitlines()
    assert len(train) == NUM_EXAMPLES - 40 - 80
    assert set(train) <= set(text["text.en"])
    assert set(upstream) <= set(text["text.fr"])


@pytest.mark.parametrize("system", ["embedding_transfer", "prlm_fusion", "vocabulary_transfer"])
def test_a_released_model_takes_the_place_of_the_pretraining(place, system, text):
    release(place / "bert", "bert", text["text.en"])
    init(system, *OPTIONS[system], "--checkpoint", "bert")
    study = Study.from_yaml(f"{system}.yaml")
    assert str(place / "bert") in json.dumps(study.base)
    assert api.plan(study).problems == []


def test_an_opus_mt_is_taken_as_a_translator(place, text):
    (place / "opus").mkdir()
    write_marian(place / "opus", text["text.en"], text["text.de"])
    init("embedding_transfer", *OPTIONS["embedding_transfer"], "--checkpoint", "opus")
    study = Study.from_yaml("embedding_transfer.yaml")
    assert study.base["upstream"]["objective"] == "translation"
    assert api.plan(study).problems == []


def test_the_old_and_the_new_vocabulary_of_a_causal_model_differ_even_for_little_text(place):
    init("llm_vocabulary", *OPTIONS["llm_vocabulary"])
    study = Study.from_yaml("llm_vocabulary.yaml")
    vocabularies = []
    for part in ("upstream", "downstream"):
        tokenizer = ByteLevelBPETokenizer()
        num_tokens = study.base["vocabulary"]["size"] - 2
        tokenizer.train([study.data[part]["train"]["sources"]], vocab_size=num_tokens, show_progress=False)
        vocabularies.append(tokenizer.get_vocab())
    assert vocabularies[0] != vocabularies[1]


def test_a_causal_model_meets_the_text_and_is_scored_on_its_old_domain(place):
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
def test_what_does_not_suit_is_told_before_anything_is_written(place, arguments, message):
    Path("pairs.csv").write_text("a,b\n", "utf-8")
    Path("few").write_text("a\nb\nc\n", "utf-8")
    number = len(Path("text.en").read_text("utf-8").splitlines())
    Path("classes").write_text("".join(f"{n % 3}\n" for n in range(number)), "utf-8")
    before = sorted(place.iterdir())
    done = init(*arguments, code=2)
    assert message in done.output
    assert sorted(place.iterdir()) == before


def test_a_trial_of_the_smallest_scale_runs(place):
    for name in ("text.en", "text.de"):  # less text gets fewer steps
        lines = Path(name).read_text("utf-8").splitlines(keepends=True)
        Path(name).write_text("".join(lines[:120]), "utf-8")
    init("prlm_fusion", *PAIRS)
    few = ["train.max_steps=4", "pretraining.train.max_steps=4"]
    assert json_of("trial", "prlm_fusion.yaml", *few, "--cell", "fused", "--json")["state"] == "finished"


def sides(folder, name, *roles):
    files = (Path(folder, f"{name}.{role}") for role in roles)
    return list(zip(*(file.read_text("utf-8").splitlines() for file in files), strict=True))


def test_sorted_classes_are_divided_in_like_shares_and_equal_lines_stay_together(place):
    examples = [(f"{word} {n // 2}", word) for word in ("apple", "bread", "cheese") for n in range(200)]
    examples += [("a lonely line", "only")]
    write_lines(Path("sorted.txt"), [line for line, _ in examples])
    write_lines(Path("sorted.label"), [label for _, label in examples])
    done = init("vocabulary_transfer", "--source", "sorted.txt", "--label", "sorted.label")
    assert "in train alone, 1 class of one example: only" in done.output
    masked_lm = Study.from_yaml("vocabulary_transfer.yaml").base["masked_lm"]
    sizes = [masked_lm[f"{side}_tokenizer"]["vocab_size"] for side in ("upstream", "downstream")]
    assert sizes[0] < sizes[1]  # of the same text: equal sizes would make equal vocabularies
    folder = "vocabulary_transfer_text"
    splits = {name: sides(folder, name, "source", "label") for name in ("train", "dev", "test")}
    for name, pairs in splits.items():
        shares = [
            sum(label == word for _, label in pairs) / len(pairs) for word in ("apple", "bread", "cheese")
        ]
        assert all(abs(share - 1 / 3) < 0.1 for share in shares), (name, shares)
    lines = [{line for line, _ in pairs} for pairs in splits.values()]
    assert set.union(*lines) == {line for line, _ in examples}
    assert len(set.union(*lines)) == sum(map(len, lines))
    assert ("a lonely line", "only") in splits["train"]
    first = {line.split()[0] for line, _ in splits["train"][:20]}
    assert len(first) == 3  # limits take the first lines


def test_own_dev_and_test_files_are_taken_and_leave_train(place, text):
    for name in ("text.en", "text.de"):
        write_lines(Path(f"dev.{name}"), text[name][:30])
        write_lines(Path(f"test.{name}"), [f"{text[name][30]} anew {n}" for n in range(510)])
    options = ["--dev-source", "dev.text.en", "--dev-target", "dev.text.de", "--seeds", "5"]
    done = init(
        "prlm_fusion", *PAIRS, *options, "--test-source", "test.text.en", "--test-target", "test.text.de"
    )
    assert "30 examples of --source stand in dev or test: left out of train" in done.output
    assert "@minutes scores 500 of 510 test lines" in done.output
    pairs = {name: sides("prlm_fusion_text", name, "source", "target") for name in ("train", "dev", "test")}
    assert sorted(pairs["dev"]) == sorted(zip(text["text.en"][:30], text["text.de"][:30], strict=True))
    assert len(pairs["test"]) == 510
    assert len(pairs["train"]) == NUM_EXAMPLES - 30
    assert Study.from_yaml("prlm_fusion.yaml").seeds == [1, 2, 3, 4, 5]


def test_the_number_of_lines_held_out_is_that_asked_for(place):
    init("prlm_fusion", *PAIRS, "--held-out", "70")
    assert [len(sides("prlm_fusion_text", name, "source")) for name in ("dev", "test")] == [70, 70]
    done = init("prlm_fusion", *PAIRS, "--held-out", "190", "--out", "other.yaml", code=2)
    assert "--held-out 190 leaves 20 of 400" in done.output
    done = init("prlm_fusion", *PAIRS, "--test-source", "text.en", "--out", "other.yaml", code=2)
    assert "--test-target: give test the options that the text itself has" in done.output


def named_alike(language):
    """Names of languages, territories and currencies, and what they are in English."""
    tables = ("languages", "territories", "currencies")
    english, other = Locale("en"), Locale(language)
    pairs = [
        (str(name), str(getattr(english, table)[key]))
        for table in tables
        for key, name in getattr(other, table).items()
        if key in getattr(english, table)
    ]
    # Lines of four names, since lines of fewer words are not for BLEU.
    sides = ([pair[side] for pair in pairs] for side in (0, 1))
    lines, english = ([" ".join(names[n : n + 4]) for n in range(0, len(names), 4)] for names in sides)
    return lines, english


def mixed():
    several = [named_alike(language) for language in ("ja", "zh", "ko", "th", "ar", "de")]
    lines, english = ([line for pair in several for line in pair[side][::3]] for side in (0, 1))
    return lines, english


def emoji():
    _, english = named_alike("ja")
    return [f"{chr(0x1F300 + n % 700)} {chr(0x1F300 + n)} x y" for n in range(len(english))], english


TEXTS = {
    "ja": ("prlm_fusion", "dev/chrf"),
    "ko": ("multi_source", "dev/chrf"),
    "th": ("lm_augmentation", "dev/chrf"),
    "am": ("prlm_fusion", "dev/bleu"),
    "ar": ("multi_source", "dev/bleu"),
    "my": ("embedding_transfer", "dev/chrf"),
    "emoji": ("lm_augmentation", "dev/bleu"),
    "mixed": ("prlm_fusion", "dev/chrf"),
}


@pytest.mark.parametrize("script", TEXTS)
def test_text_in_every_script_gets_a_study_that_is_valid(place, script):
    system, metric = TEXTS[script]
    lines, english = {"emoji": emoji, "mixed": mixed}.get(script, lambda: named_alike(script))()
    write_lines(Path("text.xx"), lines)
    write_lines(Path("text.en"), english)
    for source, target, decisive in (("xx", "en", "dev/bleu"), ("en", "xx", metric)):
        sources = [f"text.{source}"] * (2 if system == "multi_source" else 1)
        options = [option for file in sources for option in ("--source", file)]
        options += ["--target", f"text.{target}", "--out", f"{source}.yaml"]
        names = [f"l{n}" for n in range(len(sources) + 1)] if system == "multi_source" else []
        # It plans every scale.
        init(system, *options, *(option for name in names for option in ("--language", name)))
        assert "normalization" not in nlgraft("validate", f"{source}.yaml").output
        study = Study.from_yaml(f"{source}.yaml")
        assert study.objective.metric == decisive


def test_short_lines_are_judged_by_chrf_and_a_source_of_several_stands_in_one_split(place, text):
    write_lines(Path("twice.en"), [*text["text.en"][:200], *text["text.en"][:200]])
    write_lines(Path("short.de"), [" ".join(line.split()[:2]) for line in text["text.de"]])
    done = init("multi_source", "--source", "twice.en", "--source", "text.fr", "--target", "short.de")
    assert "chrF decides" in done.output
    assert Study.from_yaml("multi_source.yaml").objective.metric == "dev/chrf"
    lines = [{*sides("multi_source_text", name, "source")} for name in ("train", "dev", "test")]
    assert sum(map(len, lines)) == len(set.union(*lines))


def test_a_vocabulary_below_the_number_of_characters_is_refused_before_the_run(place):
    lines, english = named_alike("ja")
    write_lines(Path("text.ja"), lines)
    write_lines(Path("text.en"), english)
    init("prlm_fusion", "--source", "text.ja", "--target", "text.en")
    for setting in ("tokenizer", "pretraining.tokenizer"):
        done = nlgraft("validate", "prlm_fusion.yaml", f"{setting}.vocab_size=200", code=2)
        needed = int(re.findall(r"special tokens need (\d+)", done.output)[0])
        assert "raise vocab_size" in done.output
        nlgraft("validate", "prlm_fusion.yaml", f"{setting}.vocab_size={needed}")
        nlgraft("validate", "prlm_fusion.yaml", f"{setting}.vocab_size={needed - 1}", code=2)


def test_bytes_take_the_place_of_rare_characters_where_there_are_thousands(place):
    characters = [chr(0x4E00 + n) for n in range(3000)]
    common = random.Random(1).choices(characters[:300], k=60 * 1500)
    lines = ["".join([*common[60 * n : 60 * n + 60], *characters[2 * n : 2 * n + 2]]) for n in range(1500)]
    write_lines(Path("text.zh"), lines)
    write_lines(Path("text.en"), [f"{n} line" for n in range(1500)])
    init("prlm_fusion", "--source", "text.zh", "--target", "text.en")
    tokenizer = Study.from_yaml("prlm_fusion.yaml").base["tokenizer"]
    assert tokenizer["has_byte_fallback"]
    assert tokenizer["vocab_size"] < 3000
    few = ["train.max_steps=2", "pretraining.train.max_steps=2", "data.downstream.limits.dev=10"]
    record = json_of("trial", "prlm_fusion.yaml", *few, "--cell", "plain", "--json")
    assert record["state"] == "finished"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("system", OPTIONS)
def test_the_smallest_scale_of_every_system_runs_and_is_reported(place, system):
    init(system, *OPTIONS[system])
    nlgraft("run", f"{system}.yaml", "@minutes")
    assert "arm=" in nlgraft("report", f"{system}.yaml", "@minutes").stdout
