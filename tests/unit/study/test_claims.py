"""Claims take their figures from the published tables."""

from nlgraft.study.data.claim import Claim, claims_of
from nlgraft.study.public import Study

THESIS = {
    "source": "T2, Thesis",
    "metric": "test/bleu",
    "signature": "tok:13a",
    "values": {"att_eg": 37.4, "full": 37.0},
}
LAWS = {
    "source": "T2, Laws",
    "metric": "test/bleu",
    "values": {"depth=2": 53.3, "arm=att_eg": 53.4, "depth=1": 52.1},
}
LOSS = {"source": "T3", "metric": "dev/loss", "values": {"avg_eg": 2.5, "att_eg": 2.0}}


def _claims(good, claims, published=(THESIS, LAWS, LOSS)):
    return claims_of(Study.from_dict(good | {"published": list(published), "claims": claims}))


def test_an_ordering_is_claimed_once_per_table_that_has_both_cells(good):
    assert _claims(good, [{"better": "att_eg", "worse": "avg_eg"}]) == [
        Claim(
            better="att_eg",
            worse="avg_eg",
            metric="test/bleu",
            source="T2, Thesis",
            figures=[37.4, 37.0],
            signature="tok:13a",
        ),
        Claim(better="att_eg", worse="avg_eg", metric="test/bleu", source="T2, Laws", figures=[53.4, 53.3]),
        Claim(better="att_eg", worse="avg_eg", metric="dev/loss", source="T3", figures=[2.0, 2.5]),
    ]


def test_metrics_and_several_worse_cells_are_told_apart(good):
    stated = {"better": "att_eg", "worse": ["avg_eg", "depth=1"], "metric": "test/bleu"}
    pairs = [(claim.worse, claim.source) for claim in _claims(good, [stated])]
    assert pairs == [("avg_eg", "T2, Thesis"), ("avg_eg", "T2, Laws"), ("depth=1", "T2, Laws")]
    stated["metric"] = ["dev/loss", "test/bleu"]
    assert len(_claims(good, [stated | {"worse": "avg_eg"}])) == 3


def test_a_claim_knows_the_data_of_its_column(good):
    table = THESIS | {"data": {"corpus": "con*", "train": 20}}
    (claim,) = _claims(good, [{"better": "att_eg", "worse": "avg_eg"}], [table])
    assert claim.other_data({"corpus": "conlang", "train": 20}) == ""
    assert claim.other_data({"corpus": "files", "train": 20}) == "corpus is files, the paper's is con*"
    assert claim.other_data({"corpus": "conlang"}) == "train is missing, the paper's is 20"
    (bare,) = _claims(good, [{"better": "att_eg", "worse": "avg_eg"}], [THESIS])
    assert bare.other_data({"corpus": "conlang"}) == "the claim does not state its data"


def test_gains_and_margins_are_claimed_with_all_their_figures(good):
    good["design"] = {"kind": "full"}
    table = THESIS | {"values": {"arm=att_eg, depth=3": 9.0, "depth=3": 5.0, "arm=att_eg": 3.0, "full": 2.0}}
    stated = {"better": "depth=3, arm=att_eg", "worse": "depth=3", "exceeds": ["att_eg", "full"]}
    stated["margin"] = 2.0
    (claim,) = _claims(good, [stated], [table])
    assert claim.figures == [9.0, 5.0, 3.0, 2.0]
    assert claim.text == (
        "depth=3, arm=att_eg gains no less over depth=3 than att_eg over full on test/bleu by more than 2"
    )


def test_an_ordering_with_a_source_of_its_own_has_no_figures(good):
    stated = {
        "better": "att_eg",
        "worse": "avg_eg",
        "metric": ["test/bleu", "dev/loss"],
        "source": "Figure 4",
    }
    assert [(claim.metric, claim.source, claim.figures) for claim in _claims(good, [stated])] == [
        ("test/bleu", "Figure 4", ()),
        ("dev/loss", "Figure 4", ()),
    ]


def test_a_cell_is_compared_with_itself_on_another_metric(good):
    stated = {
        "better": "att_eg",
        "worse": "att_eg",
        "metric": "test/bleu",
        "worse_metric": "dev/bleu",
        "source": "Table 8",
    }
    (claim,) = _claims(good, [stated])
    assert claim.text == "att_eg's test/bleu better than att_eg's dev/bleu"
    assert claim.metrics == ("test/bleu", "dev/bleu")
    (claim,) = _claims(good, [stated | {"margin": 0.5}])
    assert claim.text == "att_eg's test/bleu no worse than att_eg's dev/bleu by more than 0.5"


def test_cells_of_several_factors_are_named_by_their_levels(good):
    good["design"] = {"kind": "full"}
    table = THESIS | {"values": {"depth=1, arm=att_eg": 3.0, "arm=att_eg, depth=3": 4.0}}
    (claim,) = _claims(good, [{"better": "depth=3, arm=att_eg", "worse": "depth=1, arm=att_eg"}], [table])
    assert claim.figures == [4.0, 3.0]
