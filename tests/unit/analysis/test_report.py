"""Reports in every format: complete, self-contained, escaped, the same twice."""

import csv
import dataclasses
import io
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from nlgraft.analysis.data.provenance import corpora
from nlgraft.analysis.rendering import prose
from nlgraft.analysis.rendering.typesetting import escape_latex
from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import NlgraftError
from nlgraft.study.data.design import cells
from nlgraft.tracking.layout import StudyLayout

VOID = {"meta", "br", "link", "img", "line", "wbr"}


class Page(HTMLParser):
    """Collects ids, addresses and text, and refuses tags that do not nest."""

    def __init__(self, html):
        super().__init__()
        self.stack, self.ids, self.addresses, self.text = [], [], [], ""
        self.feed(html)
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.addresses += [values[key] for key in ("src", "href", "xlink:href", "action") if key in values]
        self.stack += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert tag in VOID or self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def html(result):
    return result.render("html")


def test_html_is_one_file_without_outside_resources_that_follows_the_theme(html):
    page = Page(html)
    assert all(address.startswith("#") for address in page.addresses)
    assert not re.search(r"@import|url\((?!#)|<script", html)
    assert len(page.ids) == len(set(page.ids))
    assert "prefers-color-scheme: dark" in html
    figures = re.findall(r"<svg xmlns.*?</svg>", html, flags=re.DOTALL)
    assert len(figures) == 5  # the forest and four curves
    for figure in figures:
        assert ET.fromstring(figure.replace("xlink:href", "href")).get("aria-label")
        assert "var(--" in figure
        assert not re.search(r"#[0-9a-f]{6}\b", figure), "a colour of one theme"


@pytest.mark.parametrize(
    "part",
    [
        *("made-up-table2", "Constructed data.", "arm=patt_eg", "baseline (arm=random_init)", "tok:13a"),
        *(
            "Differences from the baseline",
            "Table 2, Thesis",
            "contradicted",
            "dev/loss",
            "upstream/dev/loss",
        ),
        *("Every cell had the same budget: 3 seeds.", "45 stages, 31 of them distinct", "−14.0 %"),
        *("Student's t on the paired differences", "study fingerprint"),
    ],
)
def test_html_says_what_a_reader_needs(html, part):
    text = " ".join(Page(html).text.split())
    assert part in text
    assert "train/lr" not in text


def test_reports_are_the_same_twice(result, html):
    again = type(result)(result.study, result.system, result.cells, result.provenance, store=result.store)
    assert again.render("html") == html
    assert again.render("json") == result.render("json")
    assert again.render("md") == result.render("md")


@pytest.fixture
def hostile(make_small_study, store, run):
    """A study whose description is an attack, with a seed that failed."""
    description = r"\\<script>alert(1)</script> & | _under_ 100 % ![pixel](http://example.org/x) p < 0.05"
    study = make_small_study(description=description, base={"fails_with_seed": 2}, seeds=[1, 2])
    return run(study, store)


def test_nothing_in_a_study_can_break_out_of_the_page(hostile):
    html = hostile.render("html")
    assert Page(html)
    assert "<script>alert" not in html
    for part in ("&lt;script&gt;", "CUDA out of memory", "finished 1 of 2 seeds", "†"):
        assert part in html


def test_no_html_of_a_study_stands_in_markdown(hostile):
    report = hostile.render("md")
    assert not re.search(r"<[a-z/!?]|!\[", report)
    assert "&#60;script>alert(1)&#60;/script>" in report
    assert "p < 0.05" in report
    tags = StudyLayout(hostile.study, "0", [], bool).experiment_tags
    assert not any("<script" in text for text in tags.values())
    assert any("alert" in text for text in tags.values())


def test_no_line_breaks_inside_an_interval(result, html):
    for text in (result.render("md"), html):
        assert re.search(r"\[[−+]\d+\.\d+,\u00a0[−+]\d", text)
        assert not re.search(r"\[[−+]?\d+\.\d+, ", text)


def test_markdown_tables_are_whole(result):
    text = result.render("md")
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) >= 6
    for table in tables:
        assert len({line.count("|") - line.count(r"\|") for line in table.splitlines()}) == 1
    assert "Constructed data" in text


def test_latex_is_booktabs_with_everything_escaped(result):
    text = result.render("latex")
    labels = re.findall(r"\\label\{tab:made-up-table2-([\w-]+)\}", text)
    assert text.count(r"\begin{table*}") == text.count(r"\end{table*}") == len(set(labels)) == len(labels)
    assert {"comparison", "claims", "metrics-test", "metrics-dev"} <= set(labels)
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"patt\_eg", r"$\pm$", "95 \\%"):
        assert part in text
    assert text.isascii()
    assert "The data is constructed." in text
    assert escape_latex(r"a\b{c}^") == r"a\textbackslash{}b\{c\}\textasciicircum{}"


def test_csv_has_a_line_per_cell_and_metric(result):
    rows = list(csv.DictReader(io.StringIO(result.render("csv"))))
    assert len(rows) == 5 * len(result.metrics)
    row = next(row for row in rows if (row["arm"], row["metric"]) == ("patt_eg", "test/bleu"))
    comparison = result.compare("patt_eg")
    assert float(row["difference"]) == pytest.approx(comparison.difference)
    assert float(row["ci_high"]) == pytest.approx(comparison.ci[1])
    assert row["n"] == "3"


def test_no_csv_cell_is_a_formula(make_arms, store, run):
    levels = ["random_init", "=1+1", "@sum", "-cmd", "-5", "patt_eg"]
    study = make_arms(levels)
    analysis = StudyResult.read(study, store)
    run_only = {(cell.cell.label, seed) for cell in analysis.cells[1:-1] for seed in study.seeds}
    analysis = run(study, store, skip=run_only)
    rows = list(csv.DictReader(io.StringIO(analysis.render("csv"))))
    assert list(dict.fromkeys(row["arm"] for row in rows)) == [
        "random_init", "'=1+1", "'@sum", "'-cmd", "-5", "patt_eg",
    ]  # fmt: skip
    trials = analysis.report(store.uri + "-report", formats=["csv"])[1].read_text(encoding="utf-8")
    assert ",'=1+1," in trials
    assert ",=1+1," not in trials


def test_all_formats_are_written(result, tmp_path):
    paths = result.report(tmp_path / "deep" / "out", formats=["md", "html", "latex", "csv", "json"])
    names = ["report.md", "report.html", "report.tex", "comparison.csv", "trials.csv", "examples.csv"]
    assert [path.name for path in paths] == [*names, "result.json"]
    assert json.loads(paths[-1].read_text(encoding="utf-8"))["study"] == "made-up-table2"
    assert len(paths[4].read_text(encoding="utf-8").splitlines()) == 16


def test_two_studies_on_one_page_begin_with_both_answers(result, make_small_study, store, run):
    other = run(make_small_study(name="a-second-study"), store)
    page = Page(result.render("html", [other]))
    assert len(page.ids) == len(set(page.ids))
    assert {"#study-1", "#study-2"} <= set(page.addresses)
    answers = [prose.headline(study) for study in (result, other)]
    first, second = (page.text.index(answer) for answer in answers)
    assert first < second < page.text.index("against the baseline")
    text = result.render("md", [other])
    assert text.index("a-second-study") < text.index("# made-up-table2") < text.index("# a-second-study")
    with pytest.raises(NlgraftError, match=r"latex.* one"):
        result.render("latex", [other])


def test_an_unknown_format_is_refused_before_anything_is_written(result, tmp_path):
    with pytest.raises(NlgraftError, match="no report format 'htm'"):
        result.report(tmp_path / "out", formats=["md", "htm"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["md", "html", "latex", "csv", "json"])
def test_a_study_that_has_not_run_has_a_report(kind, make_study, store):
    empty = StudyResult.read(make_study(), store)
    assert empty.render(kind)
    assert empty.note()
    assert empty.comparison().plain()[1][0] == "baseline (arm=random_init) (planned)"
    assert "yet" in prose.headline(empty)


def test_the_note_is_a_table_and_the_claims(result):
    note = result.note()
    assert note.startswith("The data is constructed")
    assert "| arm=patt_eg | 3 |" in note
    assert "- single_run better than random_init on test/bleu: " in note
    assert len(note) < 8000


def test_a_cell_with_fewer_distinct_trials_than_its_budget_is_named(make_small_study, scored):
    space = {"lr": {"type": "float", "low": 1e-4, "high": 1e-1}}
    study = make_small_study(search={"space": space, "trials": 2})
    analysis = scored(study, {cell.label: {} for cell in cells(study)})
    same = [
        dataclasses.replace(analysis.cells[0].trials[0], kind="search", number=number) for number in (0, 1)
    ]
    record = same[0].record
    other = [dataclasses.replace(trial, fingerprint=f"other {trial.number}", record=record) for trial in same]
    analysis.cells = tuple(
        dataclasses.replace(cell, search=tuple(search))
        for cell, search in zip(analysis.cells, (same, other), strict=True)
    )
    assert "baseline has only 1 distinct of 2 search trials" in prose.fairness(analysis)
    assert "arm=patt_eg" not in prose.fairness(analysis)


@pytest.mark.parametrize(
    ("examples", "sentence"),
    [
        ((6300, 6310), "Every training saw 6,310 examples."),
        ((8228, 4490), "from 4,490 (arm=patt_eg) to 8,228 (baseline"),
    ],
)
def test_examples_seen_are_said_to_be_equal_or_not(make_small_study, scored, examples, sentence):
    study = make_small_study()
    labels = [cell.label for cell in cells(study)]
    scores = {label: {"train_examples": [count] * 3} for label, count in zip(labels, examples, strict=True)}
    assert sentence in prose.fairness(scored(study, scores))


def test_headline_leaves_out_what_the_family_of_claims_does(make_study, result):
    """A cell that no claim compares with the baseline is not undecided: nothing was asked about it."""

    def headline(**changes):
        study = make_study(analysis={"family": "claims"}, **changes)
        return prose.headline(dataclasses.replace(result, study=study))

    text = headline()
    assert "single_run" in text
    assert "patt_eg" in text
    assert "avg_eg" not in text
    assert "att_eg" not in text.replace("patt_eg", "")
    claim = {"better": "patt_eg", "worse": "avg_eg", "metric": "test/bleu", "source": "ours"}
    assert "no cell has a verdict of its own" in headline(claims=[claim])


def test_one_seed_is_said_to_decide_nothing(make_small_study, store, run):
    analysis = run(make_small_study(seeds=[1]), store)
    assert "One seed says nothing about training noise" in prose.headline(analysis)
    assert prose.fairness(analysis) == "Every cell had the same budget: 1 seed."
    assert "† one seed: the interval and p cover test-set sampling only" in analysis.render("md")


def test_corpora_are_found_wherever_they_stand():
    assert corpora({"upstream": [{"corpus": "files"}, {"corpus": "conlang"}], "d": {"corpus": "files"}}) == [
        "files",
        "conlang",
    ]
    assert corpora({"corpus": "files", "train": {"source": "conlang.de"}}) == ["files"]


def test_merged_combinations_are_told(result, monkeypatch):
    assert not any("run once" in sentence for sentence in prose.method(result))
    monkeypatch.setattr(prose, "idle_note", lambda study: "2 combinations run once")
    assert prose.method(result)[0] == "2 combinations run once."
