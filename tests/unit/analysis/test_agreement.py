"""Do small studies order the arms as a large one does."""

import pytest

import nlgraft
from nlgraft.analysis.estimates.agreement import agreement
from nlgraft.basics.errors import DataError, NlgraftError
from tests.commands import json_of, write_study
from tests.commands import nlgraft as command

ARMS = ["random_init", "avg_eg", "patt_eg"]


@pytest.fixture
def at_scale(make_arms, scored):
    """Build the result of a scale from its scores: by metric, a list of seeds for each of three arms."""

    def build(name, **metrics):
        study = make_arms(ARMS, name=name, seeds=[1, 2, 3])
        labels = ("baseline", "arm=avg_eg", "arm=patt_eg")
        scores = {
            label: {metric.replace("_", "/"): values[index] for metric, values in metrics.items()}
            for index, label in enumerate(labels)
        }
        return scored(study, scores)

    return build


LARGE = [[1, 2, 3], [3, 4, 5], [5, 6, 7]]
"""Means 2, 4, 6: the third is best, the first is worst."""


@pytest.mark.parametrize(
    ("small", "share"),
    [
        ([[1, 1, 1], [2, 2, 2], [3, 3, 3]], 1),
        ([[3, 3, 3], [2, 2, 2], [1, 1, 1]], 0),
        ([[2, 2, 2], [1, 1, 1], [3, 3, 3]], 2 / 3),  # one of three pairs is turned
        ([[1, 1, 1], [3, 3, 3], [1, 1, 1]], (1 + 0 + 0.5) / 3),  # one right, one turned, one tie
        ([[0.1, 0.2, 0.3], [0.3, 0.2, 0.1], [3, 3, 3]], (2 + 0.5) / 3),  # a tie but for rounding
        ([[0, 0, 9], [2, 2, 2], [4, 4, 4]], 2 / 3),  # means 3, 2, 4: by most seeds all three are right
    ],
)
def test_the_share_of_pairs_by_hand(at_scale, small, share):
    outcome = agreement([at_scale("small", dev_bleu=small), at_scale("large", dev_bleu=LARGE)])
    (row,) = outcome.rows
    assert row.share == pytest.approx(share)
    assert (row.num_arms, row.num_seeds) == (3, (3, 3))


def test_the_interval_is_that_of_other_seeds(at_scale):
    # The first arm is above the second with the third seed alone: never drawn in (2/3)^3 = .296 of draws, and
    # drawn once in .444, with which its mean, 3, is above 2 as well.
    large = at_scale("large", dev_bleu=LARGE)
    (row,) = agreement([at_scale("small", dev_bleu=[[0, 0, 9], [2, 2, 2], [4, 4, 4]]), large]).rows
    # Drawn twice or thrice, in .259, its mean, 6 or 9, is above 4 too: one pair of three is left.
    assert row.ci == (pytest.approx(1 / 3), 1)
    (row,) = agreement([at_scale("small", dev_bleu=LARGE), large]).rows
    assert row.ci == (1, 1), "seeds are drawn for all arms together: none turns a pair"


def test_a_metric_to_be_minimised_and_a_proxy_of_another(at_scale):
    losses = [[3, 3, 3], [2, 2, 2], [1, 1, 1]]
    small = at_scale("small", dev_bleu=[[2, 2, 2], [1, 1, 1], [3, 3, 3]], dev_loss=losses)
    large = at_scale("large", dev_bleu=LARGE, dev_loss=losses)
    outcome = agreement([small, large], metrics=["dev/bleu", "dev/loss"])
    assert [(row.metric, row.share) for row in outcome.rows] == [
        ("dev/bleu", pytest.approx(2 / 3)),
        ("dev/loss", 1),
    ]
    assert agreement([small, large], "dev/loss").rows[0].share == 1


def test_the_cheapest_that_is_good_enough(at_scale):
    scales = [
        at_scale("turned", dev_bleu=[[2, 2, 2], [1, 1, 1], [3, 3, 3]]),
        *(at_scale(name, dev_bleu=LARGE) for name in ("dear", "cheap", "large")),
    ]
    for result, seconds in zip(scales, (1.0, 9.0, 3.0, 90.0), strict=True):
        object.__setattr__(result.provenance, "computed_s", seconds)
    assert agreement(scales).cheapest.scale == "cheap"
    assert agreement(scales, threshold=0.6).cheapest.scale == "turned"
    assert agreement(scales[:1] + scales[3:]).cheapest is None


def test_what_cannot_be_compared_is_refused(at_scale):
    large = at_scale("large", dev_bleu=LARGE)
    with pytest.raises(NlgraftError, match="two or more"):
        agreement([large])
    with pytest.raises(NlgraftError, match=r"no metric 'dev/blue'.*dev/bleu"):
        agreement([large, large], "dev/blue")
    with pytest.raises(DataError, match="two arms with common seeds"):
        agreement([large, large], "dev/loss")


def test_the_command_reads_what_has_finished_and_names_what_has_not(make_arms, run, store, tmp_path):
    document = make_arms(
        ARMS,
        seeds=[1, 2],
        storage={"path": store.uri},
        scales={"small": {"base": {"segments": 10}}, "large": {"base": {"segments": 80}}},
    ).to_dict()
    path = write_study(tmp_path / "study.json", document)
    scales = {name: nlgraft.Study.from_yaml(path, [f"@{name}"]) for name in ("small", "large")}
    run(scales["large"], store)
    run(scales["small"], store, skip=[("arm=avg_eg", 2)])
    document = json_of("agreement", "--json", path, "@small", "@large", "--metric", "dev/bleu")
    (row,) = document["rows"]
    assert row["num_seeds"] == [1, 2]
    assert row["ci"] is None, "one seed has no interval"
    (by_overrides,) = json_of("agreement", "--json", path, "segments=10 seeds=[1]", "@large")["rows"]
    assert by_overrides["share"] == row["share"], "overrides in one word are a scale, too"
    assert nlgraft.api.ledger(storage=store.uri) == {}, "dev scores cost nothing"
    shown = command("agreement", path, "@small", "@large", "--target", "test/bleu")
    assert len(nlgraft.api.ledger(storage=store.uri)) == 2
    assert "@small" in shown.stdout
    assert "0.5" in shown.stdout
    assert f"lacks trials of arm=avg_eg: nlgraft run {path} @small" in shown.stderr
