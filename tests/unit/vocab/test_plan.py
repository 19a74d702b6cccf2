"""Transfer plans: application, noise, bias, files, differences, norms."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from nlgraft.basics.errors import DataError
from nlgraft.vocab.transfer_plan import (
    GAP_BIAS,
    Noise,
    Provenance,
    TransferPlan,
    moments,
    norm_report,
    row_norms,
)
from tests.tiny_checkpoints import edit

OLD = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0]], dtype=np.float32)


def plan(noise=None, **changes):
    """Rows: a copied, ab = mean of a and b, x drawn, a dense row, a gap."""
    weights = csr_matrix((np.float32([1, 0.5, 0.5]), [0, 0, 1], [0, 1, 3, 3, 3, 3]), shape=(5, 3))
    values = {
        "matrix": weights,
        "provenance": np.array([0, 2, 5, 6, 7], dtype=np.int8),
        "reasons": (
            "same token",
            "2 subwords, 0 hyperwords",
            "drawn",
            "auxiliary vector",
            "no token has this id",
        ),
        "old_surfaces": ("a", "b", "[PAD]"),
        "new_surfaces": ("a", "ab", "x", "y", ""),
        "is_real": np.array([True, True, False]),
        "noise": noise or Noise(center="mean", spread="none"),
        "dense": np.array([[7.0, 8.0]], dtype=np.float32),
        "method": "example",
    }
    return TransferPlan(**(values | changes))


def test_every_provenance_gets_its_row():
    new = plan().apply(OLD)
    assert new.dtype == np.float32
    assert new.tolist() == [[1, 0], [0.5, 0.5], [0.5, 0.5], [7, 8], [0.5, 0.5]]
    assert plan().counts() == {"copy": 1, "composed": 1, "noise": 1, "dense": 1, "gap": 1}


def test_bias_follows_the_same_weights():
    """Invariant V43: bias 1 and 3, the new `ab` gets 2."""
    bias = plan().apply_bias(np.array([1.0, 3.0, 100.0]))
    assert bias.tolist() == [1.0, 2.0, 2.0, 2.0, GAP_BIAS]


def test_padding_rows_never_enter_a_mean():
    """Invariant V45: rows beyond the tokenizer are not read; an id beyond the rows is named."""
    padded = np.concatenate([OLD, np.full((4, 2), 1e6, dtype=np.float32)])
    assert np.array_equal(plan().apply(padded), plan().apply(OLD))
    with pytest.raises(DataError, match=r"token '\[PAD\]'"):
        plan().apply(OLD[:2])


def drawn(count, old, noise, **options):
    """So many rows, all of them drawn."""
    return TransferPlan(
        matrix=csr_matrix((count, len(old)), dtype=np.float32),
        provenance=np.full(count, int(Provenance.NOISE), dtype=np.int8),
        reasons=("drawn",) * count,
        old_surfaces=tuple(map(str, range(len(old)))),
        new_surfaces=tuple(map(str, range(count))),
        is_real=np.ones(len(old), dtype=bool),
        noise=noise,
    ).apply(old, **options)


def test_drawn_rows_are_distinct_seeded_and_independent_of_their_order():
    """Invariant V39: all rows differ, their standard deviation is the initialiser's within 5 %."""

    def rows(seed=3, **options):
        noise = Noise(center="zero", spread="fixed", scale=0.02, seed=seed)
        return drawn(400, np.ones((1, 64), dtype=np.float32), noise, **options)

    assert len(np.unique(rows(), axis=0)) == 400
    assert abs(rows().std() / 0.02 - 1) < 0.05
    assert np.array_equal(rows(), rows())
    assert not np.array_equal(rows(), rows(stream=1))
    assert not np.array_equal(rows(), rows(seed=4))


@pytest.mark.parametrize("spread", ["column", "covariance"])
def test_noise_follows_the_old_rows(spread):
    generator = np.random.default_rng(0)
    old = generator.normal(size=(5000, 2)).astype(np.float32) @ np.float32([[2, 1], [0, 1]]) + np.float32(
        [5, -3]
    )
    new = drawn(4000, old, Noise(center="mean", spread=spread))
    assert np.allclose(new.mean(axis=0), old.mean(axis=0), atol=0.15)
    assert np.allclose(new.std(axis=0), old.std(axis=0), rtol=0.08)
    correlation = np.corrcoef(new.T)[0, 1]
    expected = np.corrcoef(old.T)[0, 1] if spread == "covariance" else 0.0
    assert abs(correlation - expected) < 0.06


def test_plan_survives_its_files(tmp_path):
    original = plan(Noise(center="zero", spread="fixed", scale=0.5, seed=9), new_roles={"pad": 1})
    original.save(tmp_path / "plan")
    loaded = TransferPlan.load(tmp_path / "plan")
    assert loaded.new_roles == original.new_roles == {"pad": 1}
    assert np.array_equal(loaded.apply(OLD), original.apply(OLD))
    assert loaded.reasons == original.reasons
    assert loaded.noise == original.noise
    rows = range(len(original))
    assert [*map(loaded.describe, rows)] == [*map(original.describe, rows)]
    assert loaded.describe(1) == "ab: composed (2 subwords, 0 hyperwords) = 0.5 a + 0.5 b"
    with pytest.raises(DataError, match="no plan here"):
        TransferPlan.load(tmp_path)
    edit(tmp_path / "plan" / "plan.json", norm_match="median")
    with pytest.raises(DataError, match="scales rows"):
        TransferPlan.load(tmp_path / "plan")


def test_a_plan_for_another_width_is_refused():
    with pytest.raises(DataError, match="2 dimensions"):
        plan().apply(np.ones((3, 5), dtype=np.float32))


def test_parts_are_the_whole(monkeypatch):
    """Rows of all kinds are the same in parts of two rows, of one, and with columns apart."""
    mixed = plan(noise=Noise())
    whole = mixed.apply(OLD)
    monkeypatch.setattr("nlgraft.vocab.transfer_plan.PART_BYTES", 16)
    assert [(start, len(rows)) for start, rows in mixed.parts(OLD)] == [(0, 2), (2, 2), (4, 1)]
    assert np.array_equal(mixed.apply(OLD), whole)
    monkeypatch.setattr("nlgraft.vocab.transfer_plan.PART_BYTES", 4)
    monkeypatch.setattr("nlgraft.vocab.transfer_plan.CHUNK_NUMBERS", 2)
    assert np.array_equal(mixed.apply(OLD), whole)


def test_norm_report_sees_what_is_out_of_the_ordinary():
    """Invariant V48: shrunken, exploded, zero and infinite rows are reported."""
    new = plan().apply(OLD)
    report = norm_report(plan(), OLD, new)
    assert report.old_median == 1.0
    assert report.medians["composed"] == pytest.approx(0.7071, abs=1e-4)
    assert report.outside == {"copy": 0, "composed": 0, "noise": 0, "dense": 1, "gap": 0}
    assert report.warnings == ["1 dense rows have norms outside 0.3-1.5 times the old median 1"]
    new[0] = 0
    new[1] = np.nan
    report = norm_report(plan(), OLD, new)
    assert (report.num_zero, report.num_not_finite) == (1, 1)
    assert len(report.warnings) == 5


def test_moments_and_norms_of_many_rows_are_numpys():
    """Taken in portions, over rows that count alone."""
    generator = np.random.default_rng(2)
    rows = (generator.normal(size=(20_001, 3)) * [1, 2, 3] + [5, 0, -5]).astype(np.float32)
    is_real = generator.random(20_001) < 0.7
    statistics = moments(rows, is_real, has_covariance=True)
    real = rows[is_real].astype(np.float64)
    assert np.allclose(statistics.mean, real.mean(axis=0), atol=1e-6)
    assert np.allclose(statistics.std, real.std(axis=0), atol=1e-6)
    assert np.allclose(statistics.covariance, np.cov(real, rowvar=False), atol=1e-6)
    assert moments(rows, is_real).covariance is None
    assert np.allclose(row_norms(rows.astype(np.float16)), np.linalg.norm(rows, axis=1), rtol=1e-3)


def test_plans_that_cannot_be_read_say_so(tmp_path):
    plan().save(tmp_path)
    (tmp_path / "plan.safetensors").write_bytes(b"x")
    with pytest.raises(DataError, match="cannot be read"):
        TransferPlan.load(tmp_path)
    plan().save(tmp_path)
    edit(tmp_path / "plan.json", format=99)
    with pytest.raises(DataError, match="plan format 99, this version reads 1"):
        TransferPlan.load(tmp_path)
