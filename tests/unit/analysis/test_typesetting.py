"""Numbers and tables as people read them, and curves brought together."""

import numpy as np
import pytest

from nlgraft.analysis.rendering.figures import Band, join_equal, make_band
from nlgraft.analysis.rendering.typesetting import (
    Entry,
    inert,
    interval,
    make_table,
    num_decimals,
    number,
    probability,
    to_latex,
    to_markdown,
)
from nlgraft.basics.wording import count, duration, size


@pytest.mark.parametrize(
    ("form", "values", "texts"),
    [
        (
            lambda pair: number(*pair),
            [(31.25, 2), (-0.5, 1), (-0.001, 2), (12345.6, 0), (None, 2)],
            ["31.25", "−0.5", "0.00", "12,346", "–"],
        ),
        (lambda value: number(value, 1, is_signed=True), [0.52, -0.04], ["+0.5", "0.0"]),
        (num_decimals, [[4000], [250], [31.2], [2.1], [0.02], [None, 31.2, 0.1], []], [0, 1, 2, 3, 4, 2, 4]),
        (probability, [0.0002, 0.00099, 0.05, 1.0, None], ["<\u00a00.001", "0.001", "0.050", "1.000", "–"]),
        (
            lambda number: count(number, "seed"),
            [0, 1, 2, 1200],
            ["0 seeds", "1 seed", "2 seeds", "1,200 seeds"],
        ),
        (duration, [0.4, 89, 300, 9000, 864_000], ["0 s", "89 s", "5 min", "2.5 h", "10 days"]),
        (size, [400_000, 2.5e9], ["0.4 MB", "2.5 GB"]),
        (
            inert,
            ["=1+1", "+cmd", "-x", "@sum", "-1.5e-3", "a=1", -2.5, None],
            ["'=1+1", "'+cmd", "'-x", "'@sum", "-1.5e-3", "a=1", -2.5, None],
        ),
    ],
)
def test_values_are_told_as_people_read_them(form, values, texts):
    assert list(map(form, values)) == texts


def test_intervals_do_not_break():
    assert interval((-0.5, 12.25), 1) == "[−0.5,\u00a0+12.2]"
    assert interval(None, 1) == "–"
    table = make_table([{"a": interval((-0.5, 1.0), 1)}])
    assert table.plain()[1] == ["[−0.5, +1.0]"]
    assert "−0.5".replace("−", "$-$") + ",~+1.0]" in to_latex(table, "c", "l")


def test_markdown_escapes_bars_and_aligns_numbers():
    table = make_table([{"cell": "a|b", "value": Entry("1", "better")}, {"cell": "c"}], notes=["so it is"])
    assert to_markdown(table) == ("| cell | value |\n| --- | ---: |\n| a\\|b | 1 |\n| c | – |\n\n- so it is")
    assert table.plain() == [["cell", "value"], ["a|b", "1"], ["c", "–"]]


def test_a_band_spans_the_seeds_that_reported_a_step(make_study, result):
    cell = result.cell("patt_eg")
    band = make_band(cell, "dev/loss")
    curves = [trial.record.curves["dev/loss"] for trial in cell.trials]
    values = np.array([[value for _, value, _ in curve] for curve in curves])
    assert band.num_seeds == 3
    assert band.steps == pytest.approx(np.arange(0, 501, 25))
    assert band.mean == pytest.approx(values.mean(axis=0))
    assert band.low == pytest.approx(values.min(axis=0))
    assert make_band(cell, "dev/no_such_curve") is None


def test_cells_that_share_a_stage_share_its_curve(result):
    bands = [make_band(cell, "upstream/dev/loss") for cell in result.cells]
    (joined,) = join_equal(bands)
    assert len(joined.labels) == 5
    nearly = Band(("y",), joined.steps, joined.mean * (1 + 1e-15), joined.low, joined.high, 2)
    assert join_equal([*bands, nearly])[0].labels[-1] == "y"
    other = Band(("x",), joined.steps, joined.mean + 1, joined.low, joined.high, 3)
    assert len(join_equal([*bands, other])) == 2


def test_a_wide_table_is_told_in_parts_that_fit_and_name_their_rows():
    values = {f"test/metric_{number}": str(number) for number in range(9)}
    whole = make_table([{"cell": "arm=a"} | values, {"cell": "arm=b"} | values], notes=["a note"])
    parts = whole.parts(60)
    assert len(parts) > 1
    assert [title for part in parts for title in part.header[1:]] == list(values)
    for part in parts:
        assert [row[0].text for row in part.rows] == ["arm=a", "arm=b"]
        assert sum(max(map(len, column)) for column in zip(*part.plain(), strict=True)) <= 60
    assert [part.notes for part in parts] == [()] * (len(parts) - 1) + [("a note",)]
    assert whole.parts(1000) == [whole]
    assert all(len(part.header) == 2 for part in whole.parts(1)), "a part has at least one column"
