"""Rows that break a transplant, planted where a model has coherent rows and the donor has not."""

import numpy as np
import pytest
from scipy.linalg import eigh
from scipy.sparse import csr_matrix, vstack

from nlgraft.vocab.methods.neighbours import matching_pursuit
from nlgraft.vocab_tool.checks import crafted_tokens
from tests.tiny_causal_lms import release
from tests.tiny_checkpoints import OTHER_LINES, load, run

NUM_SHARED, NUM_CLEAN, NUM_CRAFTED = 400, 200, 30


def world(seed, widths):
    """Rows of the same tokens in a donor and a base: clusters of meaning, norms that vary, a common mean."""
    draw = np.random.default_rng(seed)
    count = NUM_SHARED + NUM_CLEAN
    meaning = 0.8 * draw.standard_normal((30, 40))[draw.integers(0, 30, count)]
    meaning += draw.standard_normal((count, 40))
    norms = np.exp(0.25 * draw.standard_normal((count, 1)))
    tables = []
    for width in widths:
        rows = meaning @ draw.standard_normal((40, width)) / 40**0.5
        rows = (rows + 0.5 * draw.standard_normal((count, width))) * norms + 0.5 * draw.standard_normal(width)
        tables.append(rows.astype(np.float32))
    return tables


def transplant(targets, donor, base):
    """Weights of the shared tokens, whose rows are given, and the rows that they give in the base."""
    chosen, values = matching_pursuit(targets, donor, 64)
    weights = np.zeros((len(targets), len(donor)), dtype=np.float32)
    for row, places, row_values in zip(weights, chosen, values, strict=True):
        row[places] = row_values
    return csr_matrix(weights), weights @ base


def crafted(seed, donor, base):
    """Rows of ordinary norm in the donor whose weights give most in the base.

    The weights are the first vector of the generalised eigenproblem of the Gram matrices of some shared
    tokens, salience over inertia; then again for the tokens that the pursuit chooses for this row.
    """
    draw = np.random.default_rng(seed)
    ordinary = np.median(np.linalg.norm(donor, axis=1))
    chosen = [draw.choice(NUM_SHARED, 48, replace=False) for _ in range(NUM_CRAFTED)]
    for _ in range(2):
        rows = []
        for places in chosen:
            inert, salient = (table[places] @ table[places].T for table in (donor, base))
            inert += 3e-3 * np.trace(inert) / len(places) * np.eye(len(places))
            row = eigh(salient, inert)[1][:, -1] @ donor[places]
            rows.append(row * ordinary / np.linalg.norm(row))
        made = np.array(rows, dtype=np.float32)
        chosen, _ = matching_pursuit(made, donor[:NUM_SHARED], 64)
    return made


@pytest.mark.parametrize("widths", [(64, 48), (128, 64), (96, 96)])
def test_crafted_rows_are_found_and_clean_ones_are_not(widths):
    """The demands on the audit: at least 90 % of the crafted rows, at most 1 % of the others."""
    donor, base = world(widths[0], widths)
    planted = crafted(1, donor, base)
    norms = np.linalg.norm(donor, axis=1)
    assert (np.linalg.norm(planted, axis=1) < np.quantile(norms, 0.9)).all()  # nothing to see in the donor
    targets = np.concatenate([donor[NUM_SHARED:], planted])
    weights, rows = transplant(targets, donor[:NUM_SHARED], base[:NUM_SHARED])
    sizes = np.linalg.norm(rows, axis=1)
    # what is planted is salient there, twice as long as a row of the model is
    assert np.median(sizes[NUM_CLEAN:]) > 2 * np.median(np.linalg.norm(base, axis=1))
    is_crafted = crafted_tokens(weights, donor[:NUM_SHARED], targets, base[:NUM_SHARED], base)
    assert is_crafted[NUM_CLEAN:].mean() >= 0.9
    assert is_crafted[:NUM_CLEAN].mean() <= 0.01
    clean = crafted_tokens(
        weights[:NUM_CLEAN], donor[:NUM_SHARED], targets[:NUM_CLEAN], base[:NUM_SHARED], base
    )
    assert clean.mean() <= 0.01


@pytest.fixture
def models(tmp_path):
    """A model, and a donor with another tokenizer whose shared tokens have rows akin to the model's."""
    release(tmp_path / "base", "gpt2")
    release(tmp_path / "donor", "gpt2", OTHER_LINES, seed=4)
    (base, base_ids), (donor, donor_ids) = (
        (model.get_input_embeddings().weight.data, tokenizer.get_vocab())
        for model, tokenizer in (load(tmp_path / "base"), load(tmp_path / "donor"))
    )
    for surface, row in donor_ids.items():
        if surface in base_ids:
            donor[row] = base[base_ids[surface]]
    return tmp_path, donor, donor_ids, base, base_ids


def save(place, name, table):
    model, _ = load(place / name)
    model.get_input_embeddings().weight.data.copy_(table)
    model.save_pretrained(place / name)


def test_a_donor_is_audited_on_the_command_line(models):
    place, donor, donor_ids, base, base_ids = models
    save(place, "donor", donor)
    clean = run("doctor", place / "donor", "--audit", place / "base").stdout
    assert "ok    rows survive a transplant" in clean
    assert "0 as if crafted" in clean
    # in the base, one shared token's row grows: a token on it alone is salient there
    words = sorted(surface for surface in donor_ids if surface.isascii() and surface.isalpha())
    shared = [surface for surface in words if surface in base_ids]
    victim = next(surface for surface in words if surface not in base_ids)
    donor[donor_ids[victim]] = 1.5 * donor[donor_ids[shared[10]]]
    base[base_ids[shared[10]]] *= 8
    save(place, "donor", donor)
    save(place, "base", base)
    broken = run("doctor", place / "donor", "--audit", place / "base", code=1).stdout
    assert "0 as if crafted" not in broken
    assert victim in broken


def test_what_is_planted_is_found_where_a_transplant_reads_it(models):
    """A pursuit by inner products may pass over a token with a short row for its own multiple.

    Then nothing that was planted at this token enters the rebuilt row, and nothing is reported.
    """
    _, donor, donor_ids, base, base_ids = models
    both = sorted({*donor_ids} & {*base_ids})
    atoms, rows = (
        table[[ids[surface] for surface in both]].numpy()
        for table, ids in ((donor, donor_ids), (base, base_ids))
    )
    honest = donor[[i for surface, i in donor_ids.items() if surface not in base_ids]].numpy()
    honest_weights, _ = transplant(honest, atoms, rows)
    num_found = num_words = 0
    for place, surface in enumerate(both):
        if not (surface.isascii() and surface.isalpha()):
            continue
        victim, grown = 1.5 * atoms[[place]], rows.copy()
        grown[place] *= 8
        weight, _ = transplant(victim, atoms, grown)
        is_crafted = crafted_tokens(
            vstack([honest_weights, weight]), atoms, np.concatenate([honest, victim]), grown, grown
        )
        assert is_crafted[-1] == (weight[0, place] != 0), surface
        num_found, num_words = num_found + is_crafted[-1], num_words + 1
    assert 20 < num_found < num_words - 20
