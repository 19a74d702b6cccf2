"""OMP in a donor's space: by hand, step by step, and as a transplant on the command line."""

import json

import numpy as np
import pytest

from nlgraft.basics.errors import DataError
from nlgraft.vocab.methods.building import build_plan, donor_rows
from nlgraft.vocab.methods.interface import PlanMaterial
from nlgraft.vocab.methods.neighbours import matching_pursuit
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.tiny_causal_lms import release
from tests.tiny_checkpoints import OTHER_LINES, load, run
from tests.tiny_vocabularies import greedy_vocabulary

rng = np.random.default_rng(1)


def test_matching_pursuit_ends_where_it_is_exact():
    [chosen], [values] = matching_pursuit(np.float32([[2, 2]]), np.float32([[1, 0], [0, 1], [1, 1]]), 2)
    assert (chosen.tolist(), values.tolist()) == ([2], pytest.approx([2]))


def test_matching_pursuit_equals_least_squares_after_every_choice():
    atoms, targets = rng.standard_normal((60, 24)), rng.standard_normal((30, 24))
    choices = matching_pursuit(targets.astype(np.float32), atoms.astype(np.float32), 9)
    for target, places, row in zip(targets, *choices, strict=True):
        chosen, rest = [], target
        for _ in range(9):
            products = abs(atoms @ rest)
            products[chosen] = -1
            chosen.append(int(products.argmax()))
            values = np.linalg.lstsq(atoms[chosen].T, target, rcond=None)[0]
            rest = target - values @ atoms[chosen]
        assert places.tolist() == chosen
        assert row == pytest.approx(values, abs=1e-5)


def test_weights_of_the_donor_are_used_on_old_rows():
    """In the donor x = 2 a - b; y is no token of it, and falls back to its characters, all unknown."""
    old, new, donor = (
        greedy_vocabulary(names) for names in (["a", "b", "c"], ["b", "x", "a", "y"], ["x", "a", "b"])
    )
    table = np.float32([[2, -1, 0], [1, 0, 0], [0, 1, 0]])
    material = PlanMaterial(donor=donor_rows(new, donor, table))
    plan = build_plan(old, new, "omp", material=material)
    rows = np.float32([[1, 10], [3, 5], [7, 7]])
    assert plan.apply(rows)[1] == pytest.approx(2 * rows[0] - rows[1])
    assert plan.provenance.tolist() == [
        Provenance.COPY,
        Provenance.COMPOSED,
        Provenance.COPY,
        Provenance.NOISE,
    ]
    with pytest.raises(DataError, match="donor"):
        build_plan(old, new, "omp")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model, and another of twice its width with another tokenizer; both byte-level."""
    where = tmp_path_factory.mktemp("models")
    release(where / "model", "gpt2")
    release(where / "other", "gpt2", OTHER_LINES)
    return where


def test_a_tokenizer_is_transplanted(models, tmp_path):
    """The other model's tokenizer as it is, as speculative decoding needs; the model loads and is sound."""
    model, other = models / "model", models / "other"
    run("plan", "--old", model, "--like", other, "--model", model, "--out", tmp_path / "plan")
    plan = TransferPlan.load(tmp_path / "plan")
    assert plan.method == "omp"
    assert plan.counts()["composed"] > 10
    run("apply", "--plan", tmp_path / "plan", "--model", model, "--out", tmp_path / "new")
    run("verify", tmp_path / "new")
    made, tokenizer = load(tmp_path / "new")
    donor = load(other)[1]
    assert tokenizer.get_vocab() == donor.get_vocab()
    assert all(tokenizer(line)["input_ids"] == donor(line)["input_ids"] for line in OTHER_LINES[:20])
    assert made(**tokenizer("a b", return_tensors="pt")).logits.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the new tokenizer by --new TOK, or by --like MODEL"),
        (["--new", "OTHER", "--like", "OTHER"], "and not by both"),
        (["--new", "OTHER", "--method", "omp"], "needs a model with the new tokens; give --donor MODEL"),
        (["--new", "OTHER", "--donor", "OTHER"], "method 'avg' does not read --donor"),
    ],
)
def test_contradictions_are_refused(models, arguments, message):
    argv = [str(models / "other") if each == "OTHER" else each for each in arguments]
    assert message in run("plan", "--old", models / "model", *argv, code=2).stderr


def test_another_method_may_be_used_on_a_transplant(models):
    options = ("--like", models / "other", "--method", "fvt", "--json")
    assert json.loads(run("plan", "--old", models / "model", *options).stdout)["counts"]["composed"] > 10
