"""Metrics and curves that stages write."""

import json

import pytest

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.trial import check_results


def test_what_stages_write_is_accepted(tmp_path):
    (tmp_path / "metrics.json").write_text('{"test/bleu": {"value": 3}}')
    (tmp_path / "curves.json").write_text('{"dev/loss": [[1, 0.5, 1000], [2, 0.25, 1001]], "dev/none": []}')
    check_results(tmp_path)


@pytest.mark.parametrize(
    "points", [1, [1], [[1, 2]], [[1, 2, 3, 4]], [[1, "low", 3]], ["123"], [[1, 2, 3], 4]]
)
def test_what_is_no_curve_is_refused(tmp_path, points):
    (tmp_path / "curves.json").write_text(json.dumps({"dev/loss": points}))
    with pytest.raises(ContractError, match=r"^curves.json: dev/loss.*\[step, value, unix_ms\]"):
        check_results(tmp_path)


@pytest.mark.parametrize("entry", [3, None, {}, {"value": None}, {"value": True}, {"value": "high"}])
def test_what_is_no_metric_is_refused(tmp_path, entry):
    (tmp_path / "metrics.json").write_text(json.dumps({"test/bleu": entry}))
    with pytest.raises(ContractError, match=r"^metrics.json: test/bleu.*\"value\": a number"):
        check_results(tmp_path)
