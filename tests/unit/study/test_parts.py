"""Names and durations."""

import math

import pytest

from nlgraft.study.data.part import check_name, parse_duration


@pytest.mark.parametrize(
    "value, seconds",
    [
        ("2h30m", 9000.0),
        ("90s", 90.0),
        ("1d12h", 129600.0),
        ("0.5h", 1800.0),
        (90, 90.0),
        (1.5, 1.5),
        (" 2h ", 7200.0),
    ],
)
def test_durations(value, seconds):
    assert parse_duration(value) == seconds


@pytest.mark.parametrize(
    "value",
    [
        0,
        -5,
        "0s",
        "PT2H",
        "",
        "2:30",
        "2 h",
        "h",
        "30m2h",
        "-2h",
        "1e3",
        True,
        None,
        math.inf,
        math.nan,
        [],
    ],
)
def test_what_is_no_positive_duration_is_refused(value):
    with pytest.raises(ValueError, match="allowed: seconds above 0, '2h30m'"):
        parse_duration(value)


@pytest.mark.parametrize("name", ["trice-table6", "a", "7B", "x.y+z_w", "a" * 250])
def test_good_names(name):
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-x", "a/b", "..", "a..b", "a b", "a\nb", "a\0", "\N{FIRE}", "ä", ".hidden", "a" * 251]
)
def test_names_that_paths_or_shells_would_mangle_are_refused(name):
    with pytest.raises(ValueError):
        check_name(name)
