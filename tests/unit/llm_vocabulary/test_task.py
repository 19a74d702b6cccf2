"""Tasks of llm_vocabulary: targets after prompts, what they cost, and what is written."""

import json
import logging
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
from tests.contract.toys.llm_vocabulary import ARMS
from tests.tiny_causal_lms import RELEASED, release, trial_of
from tests.tiny_checkpoints import LINES, OTHER_LINES
from tests.unit.llm_vocabulary.trials import graph_of, run
from tests.unit.stages.runs import artifact

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
