"""The scripts that come with nlgraft run as their studies say."""

import pytest

from tests.commands import nlgraft


@pytest.mark.parametrize(
    ("study", "cell", "settings", "metrics"),
    [
        ("shell", "rate=0.2", [], {"dev/loss", "dev/item.reached", "test/item.reached"}),
        pytest.param("nanogpt", "width=16", ["settings.max_iters=25"], {"dev/loss"}, marks=pytest.mark.slow),
        pytest.param(
            *("hf_trainer", "dropout=0.5", ["settings.max_steps=40"]),
            {"dev/loss", "dev/item.accuracy", "test/item.accuracy"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_trial_of_a_shipped_script_has_its_metrics(study, cell, settings, metrics, tmp_path):
    arguments = [f"command/{study}", *settings, "--cell", cell, "--storage", tmp_path]
    shown = nlgraft("trial", *arguments).stdout
    assert {line.split("\t")[0] for line in shown.splitlines()} == metrics | {"command_s"}
