"""Trials of llm_vocabulary: what users get of each change, method and training."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from pydantic import ValidationError

from nlgraft.evaluation.artifact import read_lines, read_metrics, read_segments
from nlgraft.evaluation.translation import complete
from nlgraft.nn.transformers_lms import load_causal_lm
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizers import learn_byte_tokenizer
from nlgraft.vocab.methods.registry import METHODS
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.contract.toys.llm_vocabulary import ARMS
from tests.tensors import differing
from tests.tiny_causal_lms import RELEASED, release, trial_of
from tests.tiny_checkpoints import LINES, OTHER_LINES, gpt2
from tests.unit.llm_vocabulary.trials import graph_of, run
from tests.unit.stages.runs import artifact
from trainables.llm_vocabulary import Config
from trainables.llm_vocabulary.config import DONOR_METHODS, VECTOR_METHODS
from trainables.llm_vocabulary.graph import TEXT

BY_CHARACTERS = {
    "max_steps": 3,
    "batch_characters": 900,
    "warmup_steps": 1,
    "peak_lr": 0.01,
    "eval_every_steps": 1,
}


def changed(arm="extend", training=None, **vocabulary):
    """A toy with another vocabulary and another training, or none."""
    values = ARMS[arm]
    return {**values, "vocabulary": {**values["vocabulary"], **vocabulary}, "training": training}


def weights_of(store, graph, name):
    return load_causal_lm(str(artifact(store, graph, name)), None).state_dict()


# --- vocabularies ---------------------------------------------------------------------------------------


def test_a_byte_level_vocabulary_gives_every_text_back(tmp_path):
    learn_byte_tokenizer(LINES, 300, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "  Überall 字 \U0001f600,\ttwo  spaces "
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (len(tokenizer), tokenizer.eos_token) == (300, "<|endoftext|>")
    first = (tmp_path / "tokenizer.json").read_bytes()
    learn_byte_tokenizer(LINES, 300, tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == first


def test_extended_and_pruned_vocabularies_keep_what_they_should(store):
    old = load_vocabulary(artifact(store, run(store, changed("none"))[0], "upstream_tokenizer"))
    vocabularies = {}
    for change in ("extend", "prune", "prune_extend"):
        graph, record = run(store, changed(change))
        vocabularies[change] = load_vocabulary(artifact(store, graph, "changed_tokenizer"))
        assert record.metrics["text/unknown_tokens"] == 0.0
    assert len(vocabularies["extend"]) == len(old) + 20
    assert vocabularies["extend"].surfaces[: len(old)] == old.surfaces
    assert len(vocabularies["prune"]) <= 280 < len(old)
    assert set(vocabularies["prune"].surfaces) < set(old.surfaces)
    assert len(vocabularies["prune_extend"]) == len(vocabularies["prune"]) + 20
    assert set(vocabularies["prune"].surfaces) < set(vocabularies["prune_extend"].surfaces)


def test_the_config_knows_what_a_method_needs():
    assert {method.name for method in METHODS if method.vectors} == {*VECTOR_METHODS}
    assert {method.name for method in METHODS if method.needs_donor} == {*DONOR_METHODS}


OTHERS = {method.name for method in METHODS} - {*VECTOR_METHODS, *DONOR_METHODS}
"""Methods that no toy of tests/contract/toys runs."""


@pytest.mark.parametrize("method", sorted(OTHERS))
def test_every_further_method_runs_to_its_scores(method, store):
    _, record = run(store, changed("replace", method=method))
    assert 0 < record.metrics["test/bits_per_byte"] < 16


def test_a_donor_says_of_which_rows_a_new_one_is_the_sum(tmp_path, store):
    """In the donor a new token is twice one old token and half another; all other rows are nothing there."""
    base = release(tmp_path / "base", "gpt2")
    values = trial_of(base, OTHER_LINES[:60]) | {"training": None}
    extended = {"change": "extend", "num_added": 15, "method": "mean"}
    graph, _ = run(store, values | {"vocabulary": extended})
    donor = tmp_path / "donor"
    shutil.copytree(artifact(store, graph, "changed_tokenizer"), donor)
    ids = load_vocabulary(donor).ids_by_surface
    model, new = gpt2(ids), len(ids) - 1
    table = model.get_input_embeddings().weight.data.zero_()
    table[ids["a"], 0] = table[ids["b"], 1] = 1.0
    table[new, 0], table[new, 1] = 2.0, 0.5
    model.save_pretrained(donor)
    extended |= {"method": "omp", "donor": {"checkpoint": str(donor)}}
    graph, _ = run(store, values | {"vocabulary": extended})
    old, rows = (
        load_causal_lm(str(artifact(store, graph, name)), None).input_table.detach()
        for name in ("released", "transfer")
    )
    torch.testing.assert_close(rows[new], 2 * old[ids["a"]] + 0.5 * old[ids["b"]])


@pytest.mark.parametrize(
    ("donor", "message"),
    [
        (None, "give vocabulary.donor a checkpoint, or model and train"),
        ({"checkpoint": "x", "model": {}}, "checkpoint and model are both given"),
        ({"model": {}}, "train is that of model"),
    ],
)
def test_a_donor_that_is_missing_or_half_described_is_refused(donor, message):
    with pytest.raises(ValidationError, match=message):
        graph_of(changed(method="omp", donor=donor))


def test_a_donor_that_is_not_there_enters_no_key_of_a_cell():
    config = Config.model_validate_json(json.dumps(changed()))
    assert "donor" not in config.model_dump(mode="json")["vocabulary"]


# --- training -------------------------------------------------------------------------------------------


def test_all_vocabularies_read_the_same_bytes(store):
    training = {"train": BY_CHARACTERS}
    records = [run(store, changed(change, training))[1] for change in ("none", "replace", "extend")]
    assert len({record.metrics["train_bytes"] for record in records}) == 1
    assert len({record.metrics["train_tokens"] for record in records}) == 3
    in_tokens = {"train": {**BY_CHARACTERS, "batch_characters": None, "batch_tokens": 400}}
    records = [run(store, changed(change, in_tokens))[1] for change in ("none", "extend")]
    assert records[0].metrics["train_bytes"] < records[1].metrics["train_bytes"]


def test_new_rows_alone_learn_at_first(store):
    """With as many such steps as there are, old rows and body keep their bits."""
    training = {"train": {**BY_CHARACTERS, "average_last": 1}, "new_rows_first_steps": 3}
    graph, _ = run(store, changed(training=training, method="random"))
    before, after = (weights_of(store, graph, name) for name in ("transfer", "continued"))
    num_old = len(load_vocabulary(artifact(store, graph, "upstream_tokenizer")))
    for name, tensor in before.items():
        if "embed_tokens" in name or "lm_head" in name:
            assert torch.equal(tensor[:num_old], after[name][:num_old])
            assert not torch.equal(tensor[num_old:], after[name][num_old:])
        else:
            assert torch.equal(tensor, after[name]), name


def test_tables_have_a_rate_of_their_own(store):
    """One step of AdamW without clipping is as long as the rate."""
    steps = []
    for multiplier in (1.0, 10.0):
        train = {**BY_CHARACTERS, "max_steps": 1, "clip_norm": None, "average_last": 1}
        training = {"train": train, "table_lr_multiplier": multiplier}
        graph, _ = run(store, changed(training=training))
        before, after = (weights_of(store, graph, name) for name in ("transfer", "continued"))
        names = ("embed_tokens.weight", "layers.0.mlp.up_proj.weight")
        moves = (after[f"model.model.{name}"] - before[f"model.model.{name}"] for name in names)
        steps.append([float(move.abs().max()) for move in moves])
    assert steps[1][0] == pytest.approx(10 * steps[0][0], rel=1e-3)
    assert steps[1][1] == pytest.approx(steps[0][1], rel=1e-3)


@pytest.mark.parametrize(("change", "kind"), [("extend", "llama"), ("none", "gpt2")])
def test_adapters_and_new_rows_alone_learn(change, kind, tmp_path, store):
    """What adapters make of matrices: tests/unit/training/test_adapters.py."""
    values = trial_of(release(tmp_path / kind, kind), OTHER_LINES[:60])
    values |= {"vocabulary": {"change": change, "num_added": 15, "method": "random"}}
    train = {**BY_CHARACTERS, "average_last": 1}
    values |= {"training": {"train": train, "lora": {"rank": 2}, "has_reference": False}}
    graph, _ = run(store, values)
    start, end = ("transfer", "continued") if change == "extend" else ("released", "old_vocabulary")
    before, after = (weights_of(store, graph, name) for name in (start, end))
    num_old = 350
    moved = differing(before, after)
    tables = {name for name, tensor in before.items() if len(tensor) >= num_old}
    assert len(moved - tables) >= 4
    assert all(before[name].ndim == 2 for name in moved)
    for name in tables:
        has_moved = (after[name] != before[name]).any(1)
        assert not has_moved[:num_old].any()
        # an input row that no batch reads has no gradient
        assert change == "none" or has_moved.sum() > 7


def test_adapters_learn_with_new_rows():
    training = {"train": BY_CHARACTERS, "lora": {}, "new_rows_first_steps": 1}
    with pytest.raises(ValidationError, match="new rows and adapters learn together"):
        graph_of(changed(training=training))


# --- measures -------------------------------------------------------------------------------------------


def test_untrained_tokens_are_those_that_no_batch_held(store):
    graph, record = run(store, changed())
    ids = read_encoded(artifact(store, graph, "downstream_encoded"), "test").stream(TEXT).values
    num_old = len(load_vocabulary(artifact(store, graph, "upstream_tokenizer")))
    assert record.metrics["text/untrained_tokens"] == pytest.approx((ids >= num_old).mean())
    short = {**BY_CHARACTERS, "max_steps": 1, "batch_characters": None, "batch_sentences": 2}
    _, record = run(store, changed(training={"train": short, "has_reference": False}))
    some = record.metrics["text/untrained_tokens"]
    assert 0 < some < (ids >= num_old).mean()
    all_read = {**short, "max_steps": None, "max_epochs": 1}
    _, record = run(store, changed(training={"train": all_read, "has_reference": False}))
    assert record.metrics["text/untrained_tokens"] < some


def test_tokens_per_word_and_byte_are_those_of_the_tokenizer(store):
    graph, record = run(store, changed("replace"))
    lines = read_corpus(artifact(store, graph, "downstream_corpus") / "test").sources[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(artifact(store, graph, "downstream_tokenizer"))
    num_tokens = sum(len(tokenizer(line).input_ids) for line in lines)
    assert record.metrics["text/tokens_per_word"] == pytest.approx(num_tokens / len(" ".join(lines).split()))
    text = "".join(f"{line}\n" for line in lines)
    assert record.metrics["text/tokens_per_byte"] == pytest.approx(num_tokens / len(text.encode()))


def test_a_new_vocabulary_has_caught_up_where_its_curve_meets_the_old_one(store):
    training = {"train": {**BY_CHARACTERS, "max_steps": 8}}
    for change in ("extend", "replace"):
        _, record = run(store, changed(change, training, method="fvt"))
        metrics = record.metrics
        old_bits = metrics["old_vocabulary/dev/bits_per_byte"]
        reached = [step for step, value, _ in record.curves["dev/bits_per_byte"] if value <= old_bits]
        assert metrics["catch_up/is_reached"] == bool(reached)
        assert metrics["catch_up/s"] == pytest.approx(metrics["train_s"] * (reached or [8])[0] / 8)


def test_arms_share_what_they_have_in_common(store):
    training = {"train": BY_CHARACTERS}
    kept, extended = (graph_of(changed(change, training)) for change in ("none", "extend"))
    assert kept.find("old_vocabulary").fingerprint == extended.find("old_vocabulary").fingerprint
    random = graph_of(changed("extend", training, method="random"))
    assert random.find("changed_tokenizer").fingerprint == extended.find("changed_tokenizer").fingerprint


# --- released checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change"),
    [*((kind, "replace") for kind in RELEASED), ("gemma3", "extend"), ("gpt2", "extend"), ("qwen3", "prune")],
)
def test_a_released_model_is_changed_trained_and_loads_in_transformers(kind, change, tmp_path, store):
    values = trial_of(release(tmp_path / kind, kind), OTHER_LINES[:60])
    values |= {"vocabulary": {"change": change, "size": 300, "num_added": 15, "method": "fvt"}}
    train = {**BY_CHARACTERS, "max_steps": 10, "eval_every_steps": 5}
    values |= {"training": {"train": train, "has_reference": False}}
    graph, record = run(store, values)
    curve = [value for _, value, _ in record.curves["dev/bits_per_byte"]]
    assert curve[-1] < curve[0]
    directory = artifact(store, graph, "continued")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    assert model.get_input_embeddings().num_embeddings == len(load_vocabulary(directory))
    inputs = tokenizer(OTHER_LINES[0], return_tensors="pt", add_special_tokens=False)
    assert tokenizer.decode(inputs.input_ids[0]) == OTHER_LINES[0]
    written = model.generate(**inputs, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert written.shape[1] == inputs.input_ids.shape[1] + 4


def test_what_is_no_causal_model_is_refused_before_anything_runs(tmp_path):
    checkpoint = release(tmp_path / "gpt2", "gpt2")
    values = trial_of(checkpoint, LINES[:5])
    values["causal_lm"]["model"] = {"d_model": 16}
    with pytest.raises(ValidationError, match="checkpoint and model are both given"):
        graph_of(values)
    with pytest.raises(ValidationError, match=r"no transfer method 'fokus'.*focus"):
        graph_of(trial_of(checkpoint, LINES[:5]) | {"vocabulary": {"method": "fokus"}})
    with pytest.raises(ValidationError, match=r"upstream is the pretraining of causal_lm.model"):
        graph_of(trial_of(checkpoint, LINES[:5]) | {"upstream": {}})
    with pytest.raises(ValidationError, match="best_metric is 'dev/bleu'; measured: dev/loss"):
        graph_of(changed(training={"train": {"best_metric": "dev/bleu"}}))


def test_more_positions_than_the_model_has_are_refused(tmp_path, store):
    values = trial_of(release(tmp_path / "gpt2", "gpt2"), LINES[:20]) | {"training": None}
    values["causal_lm"]["max_tokens"] = 65
    with pytest.raises(Exception, match="max_tokens is 65, but the model has positions for 64"):
        run(store, values)


# Trials with a task.


PROMPT = "Say {source} backwards:\n"
SOURCES = [" ".join(line.split()[:4]) for line in OTHER_LINES[:24]]
TARGETS = [" ".join(reversed(source.split())) for source in SOURCES]
TRAIN = {
    "max_steps": 30,
    "batch_sentences": 8,
    "warmup_steps": 1,
    "peak_lr": 0.02,
    "eval_every_steps": 15,
}


def task_of(directory: Path, kind="llama", **task):
    """A trial that reverses words, with a released checkpoint and its own vocabulary."""
    values = trial_of(release(directory / kind, kind), LINES)
    texts = {"source": SOURCES, "target": TARGETS}
    for name, lines in texts.items():
        (directory / name).write_text("\n".join(lines) + "\n")
    files = {"sources": str(directory / "source"), "target": str(directory / "target")}
    values["data"]["downstream"] = {"corpus": "files", **dict.fromkeys(("train", "dev", "test"), files)}
    task = {"prompt": PROMPT, "max_target_tokens": 20, "decode": {"beam": 1}} | task
    return values | {"vocabulary": {"change": "none"}, "training": {"train": TRAIN}, "task": task}


def opened(store, graph, name="old_vocabulary"):
    """A model and its tokenizer as transformers opens them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(artifact(store, graph, name)).eval()
    return model, transformers.AutoTokenizer.from_pretrained(artifact(store, graph, "checkpoint_tokenizer"))


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False).input_ids


def ends_of(tokenizer):
    end = tokenizer.eos_token_id
    return (end if tokenizer.bos_token_id is None else tokenizer.bos_token_id), end


@pytest.mark.parametrize("kind", RELEASED)
def test_the_loss_is_that_of_transformers_on_targets_and_their_ends_alone(kind, tmp_path, store):
    graph, record = run(store, task_of(tmp_path, kind))
    model, tokenizer = opened(store, graph)
    begin, end = ends_of(tokenizer)
    nats, num_tokens = [], 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        prompt = [begin, *ids_of(tokenizer, PROMPT.replace("{source}", source))]
        written = [*ids_of(tokenizer, target), end]
        labels = torch.tensor([[-100] * len(prompt) + written])
        with torch.no_grad():
            mean = model(input_ids=torch.tensor([prompt + written]), labels=labels).loss
        nats.append(float(mean) * len(written))
        num_tokens += len(written)
    assert record.metrics["dev/loss"] == pytest.approx(sum(nats) / num_tokens, rel=1e-4)
    assert record.metrics["test/loss"] == pytest.approx(record.metrics["dev/loss"], rel=1e-5)
    num_bytes = sum(len(target.encode()) + 1 for target in TARGETS)
    bits = sum(nats) / num_bytes / np.log(2)
    assert record.metrics["test/bits_per_byte"] == pytest.approx(bits, rel=1e-4)
    losses = [value for _, value, _ in record.curves["dev/loss"]]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("kind", "decode"),
    [
        ("llama", {"beam": 3, "alpha": 0.4}),
        ("gpt2", {"beam": 3}),
        ("qwen3", {"beam": 1}),
        ("gemma3", {"beam": 1}),
    ],
)
def test_hypotheses_are_those_of_transformers_for_each_prompt_alone(kind, decode, tmp_path, store):
    # Behind its own words an untrained model writes something else for each source.
    values = task_of(tmp_path, kind, prompt="Say {source}", decode={**decode, "batch_sentences": 8})
    graph, record = run(store, values | {"training": None})
    model, tokenizer = opened(store, graph, "released")
    begin, end = ends_of(tokenizer)
    search = {"num_beams": decode["beam"], "length_penalty": decode.get("alpha", 1.0)}
    alone = []
    for source in SOURCES:
        prompt = torch.tensor([[begin, *ids_of(tokenizer, f"Say {source}")]])
        whole = model.generate(
            prompt, max_new_tokens=20, do_sample=False, eos_token_id=end, pad_token_id=end, **search
        )[0, prompt.shape[1] :]
        text = tokenizer.decode(whole, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        alone.append(" ".join(text.splitlines()))
    lines = read_lines(artifact(store, graph, "translation_test") / "hypotheses.txt")
    assert lines == alone
    assert len(set(lines)) > 5
    assert 0 < record.metrics["test/chrf"] <= 100


@pytest.mark.parametrize("beam", [1, 4])
def test_hypotheses_do_not_depend_on_their_batch(beam, tmp_path):
    model = load_causal_lm(str(release(tmp_path / "llama", "llama")), None)
    draws = np.random.default_rng(3)
    prompts = Ragged.of([draws.integers(5, 300, size) for size in draws.integers(1, 20, 24)])
    # So flat a model ends some texts early where the end is likely.
    with torch.no_grad():
        model.model.lm_head.weight[7] *= 3.0
    settings = transformers.GenerationConfig(
        max_new_tokens=12, num_beams=beam, eos_token_id=7, pad_token_id=7, do_sample=False
    )
    alone, in_eights, together = (complete(model, prompts, settings, size)[0] for size in (1, 8, 24))
    assert alone == in_eights == together
    assert len(set(map(len, alone))) > 1


def test_what_a_checkpoint_says_of_generation_is_not_the_studys(tmp_path, store):
    values = task_of(tmp_path) | {"training": None}
    graph, _ = run(store, values)
    plain = read_lines(artifact(store, graph, "translation_test") / "hypotheses.txt")
    config = transformers.GenerationConfig(repetition_penalty=9.0, do_sample=True, temperature=5.0)
    config.save_pretrained(tmp_path / "llama")
    graph, _ = run(store, values)
    assert read_lines(artifact(store, graph, "translation_test") / "hypotheses.txt") == plain


def test_what_does_not_fit_is_cut_counted_and_said(tmp_path, store, caplog):
    values = task_of(tmp_path, max_target_tokens=7)
    values["causal_lm"]["max_tokens"] = 32
    with caplog.at_level(logging.WARNING):
        graph, record = run(store, values)
    directory = artifact(store, graph, "old_pairs")
    report, encoded = json.loads((directory / "report.json").read_text()), read_encoded(directory, "test")
    prompts, targets = encoded.stream("source 0"), encoded.stream("target")
    _, tokenizer = opened(store, graph)
    end = tokenizer.eos_token_id
    whole = [len(ids_of(tokenizer, target)) + 1 <= 7 for target in TARGETS]
    assert report["test/target"]["cut"] == whole.count(False) > 0
    assert [targets[row][-1] == end for row in range(len(targets))] == whole
    long = [len(ids_of(tokenizer, PROMPT.replace("{source}", source))) > 25 for source in SOURCES]
    assert report["test/source 0"]["cut"] == long.count(True) > 0
    assert prompts.lengths.max() <= 26
    behind = tokenizer.decode(prompts[0]).endswith(" backwards:\n")
    assert behind
    assert f"{long.count(True)} sources and {whole.count(False)} targets of 24 were cut" in caplog.text
    rows = read_segments(artifact(store, graph, "old_vocabulary"), "dev")["bits_per_byte"]
    assert [bool(row.any()) for row in rows] == whole
    assert record.metrics["dev/bits_per_byte"] > 0


def test_a_search_trial_writes_dev_alone(tmp_path, store):
    graph, record = run(store, task_of(tmp_path), splits=("dev",))
    assert {"dev/bleu", "dev/chrf", "dev/ter", "dev/loss", "train_s"} <= record.metrics.keys()
    assert not [name for name in record.metrics if name.startswith("test")]
    metrics = read_metrics(artifact(store, graph, "translation_dev"))
    assert metrics["dev/hypothesis_length"]["n"] == len(SOURCES)


def test_vocabularies_are_learned_from_sources_and_targets(store):
    values = ARMS["extend, translation"]
    graph, record = run(store, values)
    lines = read_encoded(artifact(store, graph, "downstream_encoded"), "test").stream("source 0")
    assert len(lines) == 24
    assert record.metrics["text/unknown_tokens"] == 0.0
    assert 0 <= record.metrics["dev/ece"] <= 100


SCORED_TEXT = {"task": None, "score": {"metrics": ["ter"]}}


def _without_target(values):
    return {**values, "data": {"downstream": ARMS["none"]["data"]["downstream"]}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values | {"task": None}, "data.downstream has a target, which only a task reads"),
        (_without_target, "data.downstream needs exactly source 0 and target"),
        (lambda values: values | {"task": {"prompt": "{target}"}}, "needs {source} once"),
        (lambda values: values | {"task": {"max_target_tokens": 64}}, "leaves no room for a prompt"),
        (lambda values: values | {"task": {"decode": {"beam": 1, "alpha": 2.0}}}, "alpha 2.0 has no effect"),
        (lambda values: values | {"task": {"decode": {"min_length": 64}}}, "do not fit max_target_tokens"),
        (lambda values: _without_target(values) | SCORED_TEXT, "score is given"),
    ],
)
def test_a_task_that_cannot_be_done_is_refused(change, message, tmp_path):
    with pytest.raises(ValidationError, match=message):
        graph_of(change(task_of(tmp_path)))


def test_a_prompt_without_room_for_a_source_is_refused(tmp_path, store):
    values = task_of(tmp_path, prompt="word " * 30 + "{source}", max_target_tokens=40)
    with pytest.raises(Exception, match=r"task.prompt alone has \d+ tokens, but there is room for 24"):
        run(store, values)
