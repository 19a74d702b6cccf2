"""Which stages trials share, and what changes which."""

import pytest

from trainables.embedding_transfer import Config, stage_graph
from trainables.embedding_transfer.config import (
    PRETRAINED_VOCABULARIES,
    UNTRAINED_METHODS,
    Method,
)

DATA = {
    "upstream": {"corpus": "conlang", "domain": "a", "train": 50},
    "downstream": {"corpus": "conlang", "domain": "b", "train": 20},
}


def graph(method="patt_eg", seed=1, splits=("dev", "test"), **changes):
    if method == "bpe_dropout" and "tokenizers" not in changes:
        changes["tokenizers"] = {"upstream": {"kind": "bpe", "is_shared": False, "sampling_alpha": 0.1}}
    return stage_graph(
        Config(**({"data": DATA, "transfer": {"method": method}} | changes)), seed=seed, splits=splits
    )


def stage(name, *arguments, **changes):
    return graph(*arguments, **changes).find(name)


def names(method):
    return {node.name for node in graph(method).stages}


@pytest.mark.parametrize(
    "method", sorted({*Method.__args__} - {*UNTRAINED_METHODS, "bpe_dropout", *PRETRAINED_VOCABULARIES})
)
@pytest.mark.parametrize("seed", [1, 2])
def test_every_arm_and_seed_shares_one_pretraining(method, seed):
    assert stage("upstream", method, seed) == stage("upstream", "random_init", 1)


def test_pretraining_per_seed_is_a_choice():
    upstream = {"is_per_seed": True}
    assert stage("upstream", seed=1, upstream=upstream) != stage("upstream", seed=2, upstream=upstream)
    assert stage("upstream", seed=1, upstream=upstream) == stage("upstream", "avg_eg", 1, upstream=upstream)


def test_arms_have_the_stages_they_need():
    assert not {"upstream", "upstream_corpus"} & names("single_run")
    assert "transfer" not in names("pretrain_finetune")
    assert not any(
        name.startswith("downstream_") and "tokenizer" in name for name in names("pretrain_finetune")
    )
    assert "generator" not in names("avg_eg")
    assert {"upstream", "generator", "transfer", "finetuned", "upstream_scores"} <= names("att_eg")


def test_files_that_moved_are_the_same_corpus(tmp_path):
    graphs = []
    for name in ("here", "there"):
        directory = tmp_path / name
        directory.mkdir()
        for side in ("source", "target"):
            (directory / side).write_text("a b\n")
        split = {"sources": str(directory / "source"), "target": str(directory / "target")}
        corpus = {"corpus": "files", "train": split, "dev": split, "test": split}
        graphs.append(graph(data={"upstream": DATA["upstream"], "downstream": corpus}))
    assert graphs[0].fingerprint == graphs[1].fingerprint
    assert graphs[0].find("downstream_corpus").locations != graphs[1].find("downstream_corpus").locations


def test_each_pretrained_vocabulary_is_one_pretraining_of_its_own():
    methods = ("random_init", "downstream_vocab", "joint_vocab", "bpe_dropout")
    pretrainings = {method: stage("upstream", method) for method in methods}
    assert len({pretraining.fingerprint for pretraining in pretrainings.values()}) == 4
    for method, pretraining in pretrainings.items():
        assert stage("upstream", method, 2) == pretraining
        assert pretraining.inputs["encoded"].inputs["corpus"] == stage("upstream_corpus")


def test_pretrained_vocabularies_are_of_the_exchanged_side_only():
    """Section 4.1: all vocabulary transfers are conducted on the decoder side only."""
    for method, domain in PRETRAINED_VOCABULARIES.items():
        for sides, source, target in [
            ("decoder", "upstream", domain),
            ("encoder", domain, "upstream"),
            ("both", domain, domain),
        ]:
            built = graph(method, transfer={"method": method, "sides": sides})
            for stage_name in ("upstream", "finetuned"):
                inputs = built.find(stage_name).inputs["encoded"].inputs
                assert inputs["tokenizers/source 0"].name == f"{source}_source_tokenizer"
                assert inputs["tokenizers/target"].name == f"{target}_target_tokenizer"
            assert "transfer" not in {node.name for node in built.stages}


def test_the_joint_vocabulary_reads_both_corpora():
    inputs = stage("joint_target_tokenizer", "joint_vocab").inputs
    assert {name: node.name for name, node in inputs.items()} == {
        "corpora/upstream": "upstream_corpus",
        "corpora/downstream": "downstream_corpus",
    }


def test_bpe_dropout_samples_upstream_text_only():
    built = graph("bpe_dropout")
    assert built.find("upstream").config["sampling_alpha"] == 0.1
    assert built.find("finetuned").config["sampling_alpha"] is None
    assert built.find("finetuned").inputs["start"] == built.find("upstream")


def test_methods_share_the_vectors_they_have_in_common():
    def vectors(method, seed=1):
        return stage("transfer_plan", method, seed).inputs["new_vectors"]

    assert vectors("word2vec") == vectors("focus") == vectors("wechsel")
    assert vectors("cbow") != vectors("focus")
    assert vectors("focus", 2) != vectors("focus", 1), "downstream vectors are part of a replicate"
    old = {stage("transfer_plan", "wechsel", seed).inputs["old_vectors"] for seed in (1, 2)}
    assert len(old) == 1, "upstream vectors serve every replicate"


def test_independent_layers_learn_between_pretraining_and_finetuning():
    built = graph("independent_encoder")
    assert built.find("finetuned").inputs["start"] == built.find("independent")
    assert built.find("independent").inputs["start"] == stage("upstream")
    assert "transfer" not in names("independent_encoder")


FAST = {"peak_lr": 1e-3, "initial_lr": 1e-3}
"""Rates that do not suit the default of the first phase of independent layers."""


def test_finetuning_settings_leave_what_comes_before_alone():
    changes = {"downstream": {"train": FAST}}
    assert stage("transfer") == stage("transfer", **changes)
    assert stage("finetuned") != stage("finetuned", **changes)
    beam = {"decode": {"beam": 2}}
    assert stage("finetuned") == stage("finetuned", **beam)
    assert stage("translation_dev") != stage("translation_dev", **beam)


def test_search_trials_share_their_finetuning_with_replicates():
    dev = graph(splits=("dev",))
    assert dev.find("finetuned") == stage("finetuned")
    assert dev.find("translation_dev") == stage("translation_dev")
    assert not any(node.name == "translation_test" for node in dev.stages)


def test_sides_decide_the_tokenizers():
    for sides, source, target in [
        ("decoder", "upstream", "downstream"),
        ("encoder", "downstream", "upstream"),
        ("both", "downstream", "downstream"),
    ]:
        built = graph("avg_eg", transfer={"method": "avg_eg", "sides": sides})
        inputs = built.find("transfer_plan").inputs
        changed = ("encoder", "decoder") if sides == "both" else (sides,)
        assert {key for key in inputs if key.startswith("new/")} == {f"new/{side}" for side in changed}
        inputs = built.find("downstream_encoded").inputs
        assert inputs["tokenizers/source 0"].name == f"{source}_source_tokenizer"
        assert inputs["tokenizers/target"].name == f"{target}_target_tokenizer"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"tying": "all"}}, "is_shared"),
        ({"downstream": {"train": {"best_metric": "dev/greedy_bleu"}}}, "num_bleu_sentences"),
        (
            {"data": {**DATA, "downstream": {"corpus": "conlang", "task": "monolingual"}}},
            "data.downstream needs source 0 and target; the conlang corpus of task monolingual has source 0",
        ),
        ({"transfer": {"method": "bpe_dropout"}}, "sampling_alpha"),
        (
            {"transfer": {"method": "independent_encoder"}, "downstream": {"train": FAST}},
            "independent: init",
        ),
        ({"generator": {"max_steps": 5, "warmup_steps": 9}}, "generator: warmup_steps=9 exceeds max_steps=5"),
    ],
)
def test_contradictions_are_refused_when_read(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**{"data": DATA, **changes})
