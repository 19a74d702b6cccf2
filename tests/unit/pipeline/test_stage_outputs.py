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
    ("name", "metric", "message", "values"),
    [
        (
            "curves",
            "dev/loss",
            r"\[step, value, unix_ms\]",
            [1, [1], [[1, 2]], [[1, 2, 3, 4]], [[1, "low", 3]], ["123"], [[1, 2, 3], 4]],
        ),
        (
            "metrics",
            "test/bleu",
            r"\"value\": a number",
            [3, None, {}, {"value": None}, {"value": True}, {"value": "high"}],
        ),
    ],
)
def test_what_is_no_curve_or_metric_is_refused(tmp_path, name, metric, message, values):
    for value in values:
        (tmp_path / f"{name}.json").write_text(json.dumps({metric: value}))
        with pytest.raises(ContractError, match=f"^{name}.json: {metric}.*{message}"):
            check_results(tmp_path)
