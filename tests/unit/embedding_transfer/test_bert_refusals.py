"""How a BERT is identified, and which checkpoints and settings are refused."""

import os
import shutil

import pytest

from nlgraft.basics.errors import DataError, TrialFailed
from tests.processes import python
from tests.tiny_checkpoints import edit
from tests.unit.embedding_transfer.bert_configs import CORPUS, ROOM, configured, graph_of, run


def test_it_is_known_by_its_files_or_its_name(bert, tmp_path):
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    upstreams = [graph_of(configured(path)).find("upstream_masked_lm") for path in (bert, tmp_path)]
    assert upstreams[0] == upstreams[1]
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text() + " ")
    assert graph_of(configured(tmp_path)).find("upstream_masked_lm") != upstreams[0]
    name = "google-bert/bert-base-multilingual-cased"
    named = graph_of(configured(name)).find("upstream_masked_lm")
    assert named.config["content"] == {
        "checkpoint": "google-bert/bert-base-multilingual-cased",
        "revision": "main",
    }
    pinned = {"objective": "masked_tokens", "checkpoint": "org/bert", "revision": "0123abc"}
    assert (
        graph_of(configured("", upstream=pinned)).find("upstream_masked_lm").config["content"]["revision"]
        == "0123abc"
    )
    with pytest.raises(DataError, match="a directory has no revisions"):
        graph_of(configured("", upstream=pinned | {"checkpoint": str(bert)}))
    with pytest.raises(DataError, match="no directory and no name on the Hugging Face hub"):
        graph_of(configured(tmp_path / "nowhere"))


def test_a_name_on_the_hub_is_read_at_its_revision(bert, tmp_path):
    """As from the hub's cache on this machine: another process, for which the hub is offline."""
    commits = {"main": "a" * 40, "v2": "b" * 40}
    repository = tmp_path / "hub" / "models--org--bert"
    (repository / "refs").mkdir(parents=True)
    for name, commit in commits.items():
        (repository / "refs" / name).write_text(commit)
        shutil.copytree(bert, repository / "snapshots" / commit)
    edit(repository / "snapshots" / commits["v2"] / "config.json", layer_norm_eps=0.25)
    script = """
import sys
from nlgraft.nn.conversion.encoders import encoder_from_hugging_face, read_checkpoint_config
from nlgraft.vocab.tokenizers.loading import find_tokenizer
for revision in (None, "v2"):
    found = encoder_from_hugging_face("org/bert", revision)
    assert found.model.config.norm_eps == read_checkpoint_config("org/bert", revision)["layer_norm_eps"]
    print(found.model.config.norm_eps, find_tokenizer("org/bert", revision).name)
"""
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = python("-c", script, env=environment)
    assert done.stdout.split("\n") == [f"1e-12 {commits['main']}", f"0.25 {commits['v2']}", ""], done.stderr


def test_text_must_fit_its_positions(bert):
    data = {"upstream": CORPUS, "downstream": CORPUS, "max_tokens": ROOM}
    graph_of(configured(bert, data=data))
    with pytest.raises(DataError, match=f"has room for {ROOM} tokens beside begin and end"):
        graph_of(configured(bert, data=data | {"max_tokens": ROOM + 1}))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["tokenizer.json"], "no tokenizer; a BERT's directory holds"),
        (["model.safetensors"], "not readable as a BERT"),
    ],
)
def test_a_directory_must_be_complete(store, bert, tmp_path, names, message):
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    for name in names:
        (tmp_path / name).unlink()
    with pytest.raises(TrialFailed, match=message):
        run(store, configured(tmp_path, "pretrain_finetune"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "joint_vocab"}, "pretrains a translation model"),
        (
            {"upstream": {"objective": "masked_tokens", "checkpoint": "x", "start_id": 5}},
            "belongs to an mBART",
        ),
        ({"upstream": {"revision": "v1"}}, "upstream.revision is v1 without a checkpoint"),
        ({"tokenizers": {"downstream": {"kind": "bpe", "sampling_alpha": 0.1}}}, "cuts text in one way"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        configured("x", **changes)
