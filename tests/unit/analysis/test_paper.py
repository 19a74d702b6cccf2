"""The files of a paper: every number defined, every character escaped, nothing that pdflatex would refuse.

Where pdflatex is installed, the slow test compiles the paper; elsewhere another program's parser reads it and
the balance of environments, the packages and the macros are checked, which is not the same: no page is set.
"""

import dataclasses
import html
import re
import shutil
import subprocess

import pandas as pd
import pytest
import sacrebleu

from nlgraft.analysis.policy.examples import examples_of
from nlgraft.analysis.rendering import paper as paper_module
from nlgraft.analysis.rendering.typesetting import escape_latex, make_table, to_latex, unique_slugs
from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.shipped import system_names
from nlgraft.study.reading.system_import import load_system

TEX = ("paper.tex", "numbers.tex", "methods.tex", "tables.tex", "figures.tex", "examples.tex")
KNOWN = """
appendix author begin bibliography bibliographystyle bottomrule bullet caption centering char cite
clearpage csname dag date def documentclass else emergencystretch emph end endcsname errmessage
expandafter fi footnotesize ifcsname ifpdftex includegraphics input item label ldots linewidth
maketitle midrule newcommand nlgraft nlgraftdir par pm providecommand section small subsection
allowbreak textasciicircum textasciitilde textbackslash textbar textsuperscript times title toprule usepackage
"""
EVIL = 'a\\b{c}^~_#$%&<>|"… [*] 100 % of §'


def written(result, out):
    result.paper(out)
    return {
        name: (out / name).read_text(encoding="utf-8") for name in (*TEX, "checklist.md", "references.bib")
    }


@pytest.fixture(scope="module")
def paper(result, tmp_path_factory):
    out = tmp_path_factory.mktemp("paper")
    return out, written(result, out)


def assert_sound(texts):
    """Check what can be checked without TeX: nesting, macros, special characters, references to files."""
    defined = set(re.findall(r"nlgraft@([^#\\]+)\\endcsname\{", texts["numbers.tex"]))
    for name in TEX:
        text = re.sub(r"(?<!\\)%.*", "", texts[name])
        used = re.findall(r"\\nlgraft\{([^}#]+)\}", text)
        assert set(used) <= defined
        assert set(re.findall(r"\\([a-zA-Z]+)", text)) <= set(KNOWN.split()), name
        stack = []
        for verb, environment in re.findall(r"\\(begin|end)\{([^}]+)\}", text):
            if verb == "begin":
                stack.append(environment)
            else:
                assert stack.pop() == environment
        assert stack == []
        plain = re.sub(r"\\.", "", text)
        assert plain.count("{") == plain.count("}")
        if name not in ("numbers.tex", "paper.tex"):
            assert not re.search(r"[#^\x00-\x08]", plain), name
            shown = re.sub(r"\\(label|includegraphics.*?)\{[^}]*\}", "", text)
            assert not re.search(r"(?<!\\)_", shown), name


def test_its_tables_are_those_of_the_latex_report(result, paper):
    assert paper[1]["tables.tex"] == result.render("latex")


def test_the_name_of_a_further_test_set_breaks_nothing(result, monkeypatch):
    monkeypatch.setattr(
        paper_module, "split_sizes", lambda *_: {"text": {"train": 9000, "test_old_news": 300}}
    )
    texts = paper_module.paper_texts(result, {})
    assert r"text (9,000 train, 300 test\_old\_news)" in texts["methods.tex"]
    assert "examples.text.test-old-news" in texts["numbers.tex"]


def test_hours_that_count_all_workers_for_every_stage_are_an_upper_bound(result):
    resources = result.study.resources.model_copy(update={"workers": 2})
    several = dataclasses.replace(result, study=result.study.model_copy(update={"resources": resources}))
    for analysis, bound in ((result, ""), (several, "at most ")):
        text = paper_module.paper_texts(analysis, {})["methods.tex"]
        assert f"Everything took {bound}\\nlgraft{{" in text


def test_a_paper_is_sound_and_every_number_is_defined(paper):
    out, texts = paper
    assert_sound(texts)
    assert len(re.findall(r"\\nlgraft\{", texts["methods.tex"])) >= 3
    drawn = re.findall(r"figures/([\w-]+)\.pdf", texts["figures.tex"])
    assert len(drawn) == 5  # the forest and four curves
    for name in drawn:
        assert (out / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        svg = (out / "figures" / f"{name}.svg").read_text(encoding="utf-8")
        assert "var(" not in svg


def test_another_parser_reads_it(paper):
    walker = pytest.importorskip("pylatexenc.latexwalker")
    for name in TEX:
        text = paper[1][name]
        nodes, _, length = walker.LatexWalker(text, tolerant_parsing=False).get_latex_nodes()
        assert length == len(text)
        environments = [node for node in nodes if node.isNodeType(walker.LatexEnvironmentNode)]
        assert len(environments) == len(re.findall(r"^\\begin\{(?!tabular)", text, flags=re.MULTILINE))


def test_numbers_are_those_of_the_result(result, paper):
    _, texts = paper
    numbers = dict(re.findall(r"nlgraft@(\S+)\\endcsname\{(.*)\}", texts["numbers.tex"]))
    for cell in result.cells:
        label = "baseline" if cell is result.baseline else cell.cell.label.replace("=", "-").replace("_", "-")
        key = f"made-up-table2.{label}.test-bleu"
        assert float(numbers[f"{key}.mean"]) == pytest.approx(cell.mean("test/bleu"), abs=0.006)
        assert numbers[f"{key}.n"] == "3"
        assert numbers[f"{key}.mean"] in texts["tables.tex"]
    comparison = result.compare("patt_eg")
    assert numbers["made-up-table2.arm-patt-eg.test-bleu.verdict"] == escape_latex(comparison.verdict)
    assert numbers["made-up-table2.trials"] == "15"


def test_captions_say_what_is_shown(paper):
    _, texts = paper
    caption = texts["tables.tex"].split(r"\caption{")[1].split("\n")[0]
    for part in (
        "test/bleu against the baseline",
        "n = 3 seeds",
        "95 \\% confidence",
        "seeds and segments",
    ):
        assert part in caption, part
    assert "The data is constructed" in caption
    assert "test/bleu & difference" in texts["tables.tex"]
    assert "tok:13a" in texts["methods.tex"]
    assert "stricter" in texts["methods.tex"] or "Analysis 1 of these 40 segments" in texts["methods.tex"]


def test_the_checklist_answers_what_a_study_can(result, paper):
    _, texts = paper
    answers = texts["checklist.md"]
    for item in ("B1.", "B6.", "C1.", "C2.", "C3.", "C4."):
        assert f"## {item}" in answers
    assert "Energy and emissions: not measured." in answers
    assert "Nothing was searched" in answers
    assert "torch" in answers
    took = {}
    for trial in result.trials:
        for stage in trial.record.stages:
            took[stage["fingerprint"]] = result.store.manifest(stage["fingerprint"]).duration_s
    hours = re.search(r"counted once: ([\d.< ]+),", answers)[1]
    assert hours == ("< 0.01" if sum(took.values()) < 18 else f"{sum(took.values()) / 3600:.2f}")


def test_failed_and_searched_trials_count(make_small_study, store, run, tmp_path):
    space = {"lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True}}
    study = make_small_study(search={"space": space, "trials": 3}, seeds=[1, 2], base={"fails_with_seed": 2})
    analysis = run(study, store)
    texts = written(analysis, tmp_path / "paper")
    assert_sound(texts)
    failed = [trial for trial in analysis.trials if trial.state == "failed"]
    assert failed
    answers = texts["checklist.md"]
    assert "of trials that failed or were stopped" in answers
    assert "that only the search needed" in answers
    assert "0.0001 to 0.1, logarithmic" in answers
    assert "dev/bleu chose" in answers
    assert "n = 1 seeds" not in texts["tables.tex"]


def test_one_changed_score_changes_text_and_figure(result, paper, tmp_path):
    out, before = paper
    cell = result.cells[2]
    trial = cell.trials[0]
    record = dataclasses.replace(trial.record, metrics={**trial.record.metrics, "test/bleu": 47.11})
    changed = dataclasses.replace(trial, record=record, segments={})
    cells = list(result.cells)
    cells[2] = dataclasses.replace(cell, trials=(changed, *cell.trials[1:]))
    other = StudyResult(result.study, result.system, tuple(cells), result.provenance)
    after = written(other, tmp_path)
    again = StudyResult(result.study, result.system, result.cells, result.provenance)
    same = written(again, tmp_path / "same")
    for name in ("numbers.tex", "tables.tex"):
        assert after[name] != same[name]
    for suffix in ("pdf", "svg"):
        figure = f"figures/forest.{suffix}"
        assert (tmp_path / figure).read_bytes() != (tmp_path / "same" / figure).read_bytes()
        curve = f"figures/curve-dev-loss.{suffix}"
        assert (tmp_path / curve).read_bytes() == (tmp_path / "same" / curve).read_bytes()
        assert (out / curve).read_bytes() == (tmp_path / "same" / curve).read_bytes()
    assert before["references.bib"] == after["references.bib"]


def test_examples_are_the_segments_that_differ_most(result, paper, tmp_path):
    examples = next(examples for examples in examples_of(result) if examples.label == "arm=patt_eg")
    assert len(examples.examples) == 10
    mine, references = result.cell("patt_eg").trials[0].read_texts("test")
    base, _ = result.baseline.trials[0].read_texts("test")
    apart = [
        abs(sacrebleu.corpus_bleu([a], [[r]]).score - sacrebleu.corpus_bleu([b], [[r]]).score)
        for a, b, r in zip(mine, base, references, strict=True)
    ]
    chosen = [example.number - 1 for example in examples.examples]
    assert [apart[index] for index in chosen] == pytest.approx(sorted(apart, reverse=True)[:10])
    assert examples.examples[0].outputs == (mine[chosen[0]], base[chosen[0]])
    assert escape_latex(mine[chosen[0]]) in paper[1]["examples.tex"]
    assert f'<dd dir="auto">{html.escape(mine[chosen[0]])}</dd>' in result.render("html")
    table = pd.read_csv(result.report(tmp_path, formats=["csv"])[2])
    first = table[table["cell"] == "arm=patt_eg"].iloc[0]
    assert (first["output"], first["baseline's output"]) == (mine[chosen[0]], base[chosen[0]])


def test_a_study_that_has_not_run_has_a_paper(make_study, store, tmp_path):
    texts = written(StudyResult.read(make_study(), store), tmp_path)
    assert_sound(texts)
    assert "No examples: no seed has finished" in texts["examples.tex"]


def test_nothing_in_a_study_can_break_the_paper(make_small_study, store, run, tmp_path):
    study = make_small_study(name="made-up", description=EVIL, seeds=[1, 2], base={"upstream_seed": 7})
    texts = written(run(study, store), tmp_path)
    assert_sound(texts)
    assert "not covered: upstream, trained once" in texts["tables.tex"].split("\\label")[0]
    rows = ({EVIL: text, "n": "1"} for text in (EVIL, "[2pt]", "* 3"))
    table = make_table(rows, notes=[EVIL])
    text = to_latex(table, EVIL, "tab:x")
    assert "{}[2pt]" in text
    assert "{}* 3" in text
    assert not re.search(r"[\x00-\x08\u2028]", text)
    assert_sound({name: text if name == "tables.tex" else "" for name in TEX})


def test_labels_that_reduce_to_the_same_keep_apart():
    assert unique_slugs(["a b", "a_b", "日本", "中文"]) == {
        "a b": "a-b",
        "a_b": "a-b-2",
        "日本": "x",
        "中文": "x-2",
    }


@pytest.mark.parametrize("path", sorted({*system_names()} - {"trainables.command"}))  # it has no paper
def test_every_system_has_an_entry_with_authors_year_and_address(path):
    system = load_system(path)
    text = paper_module.bibliography(system)
    assert re.match(r"% .*\n@(inproceedings|misc)\{" + paper_module.paper_key(system) + ",", text)
    for field in ("author", "title", "year", "url"):
        assert f"  {field} = {{" in text
    assert re.fullmatch(r"[a-z]+(19|20)\d\d", paper_module.paper_key(system))
    assert text.count("{") == text.count("}")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed: nothing is compiled")
def test_pdflatex_compiles_it(paper):
    out, _ = paper
    for command in (["pdflatex"], ["bibtex"], ["pdflatex"], ["pdflatex"]):
        options = [] if command == ["bibtex"] else ["-interaction=nonstopmode", "-halt-on-error"]
        done = subprocess.run([*command, *options, "paper"], cwd=out, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2000:]
    assert (out / "paper.pdf").stat().st_size > 10_000
    log = (out / "paper.log").read_text(errors="replace")
    assert "undefined" not in log
    too_wide = re.findall(r"Overfull \\hbox \((\d+)\.", log)  # in points, whole; a column is some 240 wide
    assert all(int(points) < 15 for points in too_wide), too_wide
