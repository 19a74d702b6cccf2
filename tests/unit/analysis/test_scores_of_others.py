"""Scores that others computed: what is read, how it is paired, and what is said of it."""

import json
import math
import re
import shutil
from functools import partial
from pathlib import Path

import mlflow
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from scipy import stats

from nlgraft.analysis.data.score_tables import read_scores
from nlgraft.analysis.policy.hypotheses import compare_scores
from nlgraft.basics.errors import DataError
from tests.commands import json_of
from tests.commands import nlgraft as invoke

LONG = "system,seed,item,metric,value\nA,1,x,acc,1\nA,1,y,acc,0\nB,1,x,acc,0\nB,1,y,acc,.5\n"
SCORES = {("A", "x"): 1.0, ("A", "y"): 0.0, ("B", "x"): 0.0, ("B", "y"): 0.5}


def write(name, text):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def json_lines(*records):
    return "".join(f"{json.dumps(record)}\n" for record in records)


def helm(item, value):
    """As HELM 0.5 writes it: what is None is left out."""
    return {
        "instance_id": item,
        "train_trial_index": 0,
        "stats": [
            {"name": {"name": "acc", "split": "test"}, "count": 1, "sum": value, "mean": value},
            {"name": {"name": "num_bytes"}, "count": 0},
        ],
    }


def sample(item, value, filtered="none"):
    """As lm-evaluation-harness 0.4.8 writes it."""
    return {
        "doc_id": item,
        "filter": filtered,
        "metrics": ["acc", "word_perplexity"],
        "acc": value,
        "word_perplexity": [-3.2, 7],
    }


@pytest.mark.parametrize(
    ("files", "sources"),
    [
        ({"t.csv": f"{LONG}\n  \n"}, ["t.csv"]),
        ({"t.tsv": LONG.replace(",", "\t").replace("system", " MODEL ").replace("item", "ID")}, ["t.tsv"]),
        ({"t.csv": "System;Seed;Segment;Score\nA;1;x;1\nA;1;y;0\nB;1;x;0\nB;1;y;0,5\n"}, ["t.csv"]),
        ({"t.csv": "item,A,B,text\nx,1,0,hello\ny,0,.5,you\n"}, ["t.csv"]),
        ({"t.csv": "model,id,acc,len\nA,x,1,2\nA,y,0,nan\nB,x,0,2\nB,y,.5,\n"}, ["t.csv"]),
        ({"a.csv": "id,acc\nx,1\ny,0\n", "b.csv": "id,acc\ny,.5\nx,0\n"}, ["A=a.csv", "B=b.csv"]),
        ({"A.txt": "1\n0\n", "B.txt": "0.0\n0.5\n"}, ["A.txt", "B.txt"]),
        ({"c.json": '{"A": [{"COMET": 1}, {"COMET": 0}], "B": [{"COMET": 0}, {"COMET": 0.5}]}'}, ["c.json"]),
        ({"A.json": json.dumps([helm("x", 1), helm("y", 0)]),
          "B.jsonl": json_lines(helm("x", 0), helm("y", 0.5))}, ["A.json", "B.jsonl"]),
        ({"t.jsonl": json_lines(*({"model": m, "id": i, "score": v} for (m, i), v in SCORES.items()))},
         ["t.jsonl"]),
    ],
    ids=["long", "tsv", "commas", "systems", "metrics", "named", "plain", "comet", "helm", "jsonl"],
)  # fmt: skip
def test_every_form_of_the_same_scores_is_read_alike(files, sources, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        write(name, text)
    scores = [score for score in read_scores(sources).scores if score.metric != "len"]
    # Files without names have numbers.
    first = int(scores[0].item == "1")
    items = {str(first): "x", str(first + 1): "y"}
    assert {(score.system, items.get(score.item, score.item)): score.value for score in scores} == SCORES
    assert {score.seed for score in scores} <= {"1", "0"}
    assert len({score.metric for score in scores}) == 1


def test_samples_of_lm_eval_are_read_with_their_directions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for model, value in (("org__a", 1), ("org__b", 0)):
        for task in ("arc", "boolq"):
            samples = [sample("0", value), sample("1", 1), sample("0", 0, "strict"), sample("1", 0, "strict")]
            write(f"out/{model}/samples_{task}_2026-01-02T03-04-05.6.jsonl", json_lines(*samples))
        directions = {"higher_is_better": {task: {"acc": False} for task in ("arc", "boolq")}}
        write(f"out/{model}/results_2026-01-02T03-04-05.6.json", json.dumps(directions))
    table = read_scores(["out"], ["acc"])
    metrics = {f"{task}/acc{filtered}" for task in ("arc", "boolq") for filtered in ("", ",strict")}
    assert {score.metric for score in table.scores} == metrics
    (first, second), notes = compare_scores(table, "models")
    assert (first.values, second.values) == ((1.0,), (0.5,))
    assert any("4 items" in note and "less is better" in note for note in notes)


def test_whatever_is_wrong_is_said_at_once_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("t.csv", LONG + "A,1,x,acc,1\nB,1,z,acc,nan\nB,1,w,acc,many\nB,1\n,1,v,acc,1\n")
    write("empty.csv", "name,text\na,b\n")
    write("other.json", '{"acc": 0.5}')
    write("broken.jsonl", '{"system": \n')
    with pytest.raises(DataError) as refused:
        compare_scores(read_scores(["t.csv", "empty.csv", "other.json", "broken.jsonl", "none.csv", "."]), "")
    text = str(refused.value)
    expected = [
        "t.csv, line 7: acc 'nan'",
        "line 8: acc 'many'",
        "line 9: 2 columns",
        "item x",
        "line 6",
        "line 2",
        "empty.csv: no scores",
        "other.json",
        "broken.jsonl, line 1",
        "none.csv",
        "samples_TASK",
    ]
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (LONG.replace("B,", "A,").replace("A,1", "A,2").replace("A,2", "A,1", 2), (), "one system, A"),
        (LONG.replace("acc,.5", "f1,.5"), (), "--metric"),
        (LONG, ("--metric", "ac"), "Did you mean 'acc'"),
        (LONG, ("--baseline", "C"), "no system 'C'"),
        (
            LONG.replace("B,1,x", "B,1,v").replace("B,1,y", "B,1,w"),
            (),
            r"B with seed 1 lacks 2 items \(x, y\)",
        ),
        (LONG + "C,1,x,f1,1\n", ("--metric", "acc", "--metric", "f1"), "f1: no score of A, B"),
        (LONG, ("t.csv",), "give one of"),
        (LONG + "A,1,q,acc,none\n" * 40, (), r"^t.csv, line 6: acc 'none'.* 39 more .*\n\Z"),
        (
            LONG[:30] + "A,1,x,acc,0,5\n" * 40,
            (),
            r"^t.csv, line 2: 6 columns, where line 1 has 5; .* 39 more .*\n\Z",
        ),
        (
            "sytem,sed,itm,metrik,val\n" + "A,1,x,acc,1\n" * 40,
            (),
            r"^t.csv, column 'sytem': Did you mean 'system'.\n(.*\n){3}.*'value'.\n.*line 3: .*\n\Z",
        ),
        ("id,acc,err\nx,1,nan\ny,0,many\n", ("--metric", "err"), r"'nan'.*\n.*'many'"),
        (LONG, ("--ref", "t.csv", "--arm", "a"), "--ref, --arm: has no effect"),
        (
            LONG.replace("acc", "dev/acc") + LONG.partition("\n")[2],
            ("--metric", "acc"),
            "several metrics end in /acc",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(text, options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("t.csv", text)
    assert re.search(sentence, invoke("compare", "--scores", "t.csv", *options, code=2).stderr)


near = partial(pytest.approx, abs=1e-9)


def table_of(scores, metric="acc"):
    """Write scores, shape (systems, seeds, items), as a long table."""
    rows = [
        f"{'ABC'[system]},{seed},{item},{metric},{value:.17g}"
        for (system, seed, item), value in np.ndenumerate(scores)
    ]
    return "\n".join(["system,seed,item,metric,value", *rows])


def test_missing_items_and_seeds_are_named_and_left_out(tmp_path):
    text = table_of(np.random.default_rng(0).random((3, 3, 20)))
    lines = [line for line in text.splitlines() if not line.startswith(("B,0,7,", "C,1,"))]
    path = write(tmp_path / "t.csv", "\n".join(lines))
    systems, notes = compare_scores(read_scores([str(path)]), "t", baseline="B")
    assert [scores.system for scores in systems] == ["B", "A", "C"]
    assert "3 systems, 2 seeds in common" in notes
    assert "seed 1: not of C" in notes
    assert "acc: B with seed 0 lacks 1 item (7); left out of all" in notes
    assert [system.comparison.num_seeds for system in systems[1:] if system.comparison] == [2, 2]


SEEDS = "system,seed,acc\nA,11,.3\nA,22,.1\nA,33,.5\nA,44,.9\nB,11,.5\nB,22,.2\nB,44,.4\n"


def test_seeds_have_the_names_of_the_table(tmp_path):
    two, third = "seeds 11, 22, 44 alone", "the first look needs seeds 11, 22, 33"
    for rows, note in ((SEEDS, two), (SEEDS + "C,11,1\nC,22,2\nC,33,5\n", third)):
        path = write(tmp_path / "t.csv", rows)
        _, second, *_ = json_of("compare", "--scores", path, "--ledger", tmp_path / note, "--json")
        assert note in "".join(second["comparison"]["notes"])


def test_one_run_each_says_that_outputs_differ_and_nothing_of_methods(tmp_path):
    scores = np.random.default_rng(0).random((2, 1, 200))
    scores[1] += 0.2
    path = write(tmp_path / "t.csv", table_of(scores))
    shown = invoke("compare", "--scores", path, "--ledger", tmp_path / "store").stdout
    assert "these outputs differ on such items (p 0.001 over 200 items)" in shown
    assert "of the methods one run each says nothing" in shown
    assert "undecided (1 seed more)" in shown
    assert "the first look needs 2 seeds of both systems; they share 1" in shown


def test_a_ledger_gives_verdicts_and_remembers(tmp_path):
    """Declared at first; the next look has more seeds; another baseline later is exploratory."""
    scores = np.random.default_rng(7).random((3, 6, 100)) * 0.2
    scores[2] += 0.3
    few = write(tmp_path / "few.csv", table_of(scores[:, :3], "loss"))
    many = write(tmp_path / "many.csv", table_of(scores, "loss"))

    def standings(path, *options):
        systems = json_of("compare", "--scores", path, "--ledger", tmp_path / "store", "--json", *options)
        compared = [system["comparison"] for system in systems if system["comparison"]]
        return [(comparison["basis"], comparison["standing"]) for comparison in compared]

    assert standings(few) == [("declared", "open"), ("declared", "worse")], "less loss is better"
    assert standings(many) == [("declared", "open"), ("declared", "worse")]
    assert standings(few, "--baseline", "B")[1] == ("exploratory", "open")
    page = invoke("compare", "--scores", few, "--ledger", tmp_path / "fresh", "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert "worse" in page
    table = invoke("compare", "--scores", few, "--ledger", tmp_path / "fresh", "--format", "md").stdout
    assert "| C | loss | worse |" in table
    assert "Detectable" in table
    assert "nlgraft why" not in table, "which takes studies alone"


def test_figures_are_those_of_scipy_and_sacrebleu(tmp_path):
    """Over seeds the paired t test; over items sacreBLEU's resamples and, of one system, its interval."""
    draw = np.random.default_rng(2)
    per_seed = draw.random((2, 5))
    rows = [f"{seed},{a},{b}" for seed, (a, b) in enumerate(per_seed.T)]
    path = write(tmp_path / "t.csv", "\n".join(["seed,A,B", *rows]))
    _, second = json_of("compare", "--scores", path, "--json")
    expected = stats.ttest_rel(per_seed[1], per_seed[0])
    assert second["comparison"]["looks"]["5"] == near(expected.pvalue)
    assert second["comparison"]["difference"] == near(per_seed[1].mean() - per_seed[0].mean())

    words = ["a", "b", "c", "d"]
    references, *outputs = ([" ".join(draw.choice(words, 6)) for _ in range(60)] for _ in range(3))
    bleu = BLEU(effective_order=True)
    pairs = [zip(lines, zip(references), strict=True) for lines in outputs]
    scores = np.array([[bleu.sentence_score(*pair).score for pair in system] for system in pairs])
    for name, values in zip("AB", scores, strict=True):
        write(tmp_path / f"{name}.txt", "\n".join(map(repr, values.tolist())))
    options = [part for name in "AB" for part in ("--scores", tmp_path / f"{name}.txt")]
    _, second = json_of("compare", *options, "--json")
    # As `sacrebleu.metrics.base` and `sacrebleu.significance` draw their resamples.
    rows = np.random.default_rng(12345).choice(60, size=(1000, 60), replace=True)
    differences = np.diff(scores[:, rows].mean(axis=2), axis=0)[0]
    observed = scores[1].mean() - scores[0].mean()
    centred = differences - differences.mean()
    comparison = second["comparison"]
    assert comparison["difference"] == near(observed)
    assert comparison["p_segments"] == near((1 + np.sum(np.abs(centred) >= abs(observed))) / 1001)
    assert comparison["ci"] == near(observed + np.quantile(centred, [0.025, 0.975]))


def test_runs_of_mlflow_are_compared(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "runs.db")
    uri = f"sqlite:///{tmp_path / 'runs.db'}"
    client = mlflow.MlflowClient(uri)
    experiment = client.create_experiment("others", f"file://{tmp_path}")
    values = np.random.default_rng(3).random((2, 4))
    for (arm, seed), value in np.ndenumerate(values):
        run = client.create_run(experiment, run_name=f"{arm}-{seed}", tags={"arm": "AB"[arm]})
        client.log_param(run.info.run_id, "random_seed", seed)
        client.log_metric(run.info.run_id, "val/acc", value)
        client.log_metric(run.info.run_id, "score", math.nan)
        client.set_terminated(run.info.run_id, "FAILED" if (arm, seed) == (1, 3) else "FINISHED")
    arguments = ("compare", "--mlflow", uri, "--arm", "arm", "--json", "--experiment")
    options = ("--seed", "random_seed", "--metric", "val/acc")
    done = invoke(*arguments, "others", *options)
    first, second = json.loads(done.stdout)
    assert "1 run left out, failed: 1-3" in done.stderr
    assert first["values"] == pytest.approx(values[0])
    expected = stats.ttest_rel(values[1, :3], values[0, :3])
    assert second["comparison"]["looks"]["3"] == near(expected.pvalue)
    assert "no experiment 'other'" in invoke(*arguments, "other", *options, code=2).stderr
    assert "8 runs left out, no seed" in invoke(*arguments, "others", code=2).stderr
    assert "--arm" in invoke("compare", "--mlflow", uri, code=2).stderr
    assert "--baseline" in invoke("compare", "a", "b", "--ref", "r", "--baseline", "a", code=2).stderr
    nowhere = ("compare", "--mlflow", f"sqlite:///{tmp_path / 'none.db'}")
    assert "no database" in invoke(*nowhere, "--arm", "a", "--experiment", "e", code=2).stderr
