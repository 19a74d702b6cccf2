"""Methods that fill missing rows."""

import numpy as np
import pytest

from nlgraft.basics.errors import DataError
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.methods.interface import PlanChoices, PlanMaterial, TokenVectors
from nlgraft.vocab.methods.registry import METHODS
from nlgraft.vocab.tokenizers.vocabulary import SENTENCEPIECE, Kind
from nlgraft.vocab.transfer_plan import Provenance
from tests.tiny_vocabularies import greedy_vocabulary

OLD = greedy_vocabulary(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "motor", "##cycle", "##s", "##motor"],
    specials={"[PAD]", "[UNK]", "[CLS]", "[SEP]"},
)
E8 = np.eye(8, dtype=np.float32)


def test_average_over_similar_tokens():
    """Invariant V1 on a plan: two members, half each."""
    new = greedy_vocabulary(["motorcycle", "motor"])
    plan = build_plan(OLD, new, "avg")
    assert plan.apply(E8)[0].tolist() == [0, 0, 0, 0, 0.5, 0.5, 0, 0]
    assert plan.apply(E8)[1].tolist() == E8[4].tolist()
    assert plan.describe(0) == "motorcycle: composed (2 subwords, 0 hyperwords) = 0.5 motor + 0.5 ##cycle"
    assert plan.counts() == {"copy": 1, "composed": 1}


def test_pieces_weighted_alike_and_by_length():
    new = greedy_vocabulary(["motorcycles"])
    assert build_plan(OLD, new, "fvt").apply(E8)[0, 4:7] == pytest.approx([1 / 3, 1 / 3, 1 / 3])
    assert build_plan(OLD, new, "wvt").apply(E8)[0, 4:7] == pytest.approx([5 / 11, 5 / 11, 1 / 11])


def test_the_control_gives_each_id_its_old_row_whatever_the_token():
    new = greedy_vocabulary(
        ["[PAD]", "s", "[CLS]", "[SEP]", "cycle", "motor"] + ["x"] * 4, specials={"[PAD]", "[CLS]", "[SEP]"}
    )
    plan = build_plan(OLD, new, "same_ids")
    assert np.array_equal(plan.apply(E8)[:8], E8)
    assert plan.describe(5) == "motor: composed (the old row with this id) = 1 ##cycle"
    assert plan.reasons[8:] == ("no old token has this id",) * 2


def test_special_tokens_go_by_role():
    """Invariant V44: [CLS] serves `<s>`, [SEP] serves `</s>`; never random."""
    specials = {"<s>", "<pad>", "</s>", "<unk>", "<lang>"}
    new = greedy_vocabulary(["<s>", "<pad>", "</s>", "<unk>", "<lang>", "▁motor"], SENTENCEPIECE, specials)
    plan = build_plan(OLD, new, "avg")
    assert plan.provenance.tolist() == [1, 1, 1, 1, 5, 0]
    assert np.array_equal(plan.apply(E8)[:4], E8[[2, 0, 3, 1]])
    assert plan.reasons[0] == "role bos served by cls"


def test_fallbacks_are_taken_in_order_and_told():
    """V13, second half: the other boundary variant, then characters, then a drawn row; never NaN."""
    old = greedy_vocabulary(["ab", "##q", "x"])
    new = greedy_vocabulary(["##ab", "qx", "??"])
    plan = build_plan(old, new, "avg")
    kinds = [Provenance.BOUNDARY, Provenance.CHARACTERS, Provenance.NOISE]
    assert plan.provenance.tolist() == [int(kind) for kind in kinds]
    rows = plan.apply(np.eye(3, dtype=np.float32))
    assert rows[0].tolist() == [1, 0, 0]
    assert rows[1].tolist() == [0, 0.5, 0.5]
    assert np.isfinite(rows).all()


def test_random_rows_have_the_asked_deviation():
    new = greedy_vocabulary([f"zz{i}" for i in range(300)])
    plan = build_plan(OLD, new, "random", PlanChoices(noise_std=0.5, seed=1))
    rows = plan.apply(np.ones((8, 32), dtype=np.float32))
    assert abs(rows.std() / 0.5 - 1) < 0.05
    mean = build_plan(OLD, new, "mean").apply(E8)
    assert np.allclose(mean, E8[4:].mean(axis=0))
    hewitt = build_plan(OLD, new, "hewitt").apply(E8)
    assert np.allclose(hewitt, E8[4:].mean(axis=0), atol=1e-3)
    assert len(np.unique(hewitt, axis=0)) == 300


def test_every_method_fills_every_row():
    new = greedy_vocabulary(["[PAD]", "motorcycle", "##otor", "motor", "Ωmega", "m"], specials={"[PAD]"})
    generator = np.random.default_rng(0)
    material = PlanMaterial(
        old_rows=E8 + 1,
        new_vectors=TokenVectors(np.float32(generator.normal(size=(6, 8))), np.array([0, 3, 2, 5, 0, 1])),
        old_vectors=TokenVectors(np.float32(generator.normal(size=(8, 8))), np.ones(8, dtype=np.int64)),
        donor=TokenVectors(np.float32(generator.normal(size=(6, 5))), np.array([0, 1, 1, 1, 0, 1])),
    )
    for method in METHODS:
        rows = build_plan(OLD, new, method, material=material).apply(E8 + 1)
        assert np.isfinite(rows).all(), method.name
        assert (np.abs(rows).sum(axis=1) > 0).all(), method.name
        assert method.source


def test_normalised_copies_say_so():
    old = greedy_vocabulary(["motor"], normalise=str.lower)
    plan = build_plan(old, greedy_vocabulary(["Motor"]), "avg")
    assert plan.reasons == ("same token once normalised to 'motor'",)


def test_a_method_says_what_it_lacks():
    with pytest.raises(DataError, match=r"new_vectors \(skipgram.*old_vectors"):
        build_plan(OLD, greedy_vocabulary(["x"]), "wechsel")
    with pytest.raises(DataError, match="old_rows"):
        build_plan(OLD, greedy_vocabulary(["x"]), "reconstruction")


def test_a_token_that_no_text_gives_is_copied_by_its_name():
    surfaces = ["motor", "[unused1]", "##,"]
    kinds = [Kind.NORMAL, Kind.UNUSED, Kind.UNUSED]
    old, new = (greedy_vocabulary(surfaces[:count], kinds=kinds[:count]) for count in (2, 3))
    plan = build_plan(old, new, "avg")
    assert plan.counts() == {"copy": 2, "noise": 1}
    assert plan.reasons[1:] == ("same token, never produced", "reserved, never produced")
