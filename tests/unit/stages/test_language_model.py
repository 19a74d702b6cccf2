"""Pretraining of language models as a stage."""

import math

import pytest
import torch
from pydantic import ValidationError

from nlgraft.basics.errors import TrialFailed
from nlgraft.nn.batch import Tokens
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages import text_graph
from nlgraft.stages.config_parts import LanguageModelPhaseConfig
from nlgraft.stages.metrics import LANGUAGE_MODEL, prefixed
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import TokenizerConfig
from nlgraft.training.language_model_training import read_language_model
from tests.tensors import differing
from tests.unit.stages.runs import TRAIN, StopsAt, artifact, run

SIZES = {"d_model": 16, "num_layers": 1, "num_heads": 2, "ffn_dim": 16}


def pretrained(kind="uni_lm", seed=1, max_tokens=20, train=TRAIN, **phase):
    config = ConlangConfig(corpus="conlang", task="monolingual", train=60, dev=12, test=4)
    lines = text_graph.text("lm", config)
    tokenizer = text_graph.tokenizer("lm", TokenizerConfig(vocab_size=120), {"lm": lines})
    text = text_graph.encode("lm", lines, {"source 0": tokenizer}, max_tokens=max_tokens)
    phase = LanguageModelPhaseConfig(model={"kind": kind, **SIZES}, train=train, **phase)
    return StageGraph(pieces.language_model("lm", text, phase, seed=seed))


def predicted(model, kind, ids):
    """Log-probability of each predicted token of one sentence with its end tokens, from a pass over it."""
    batch = Tokens.from_lists([ids])
    with torch.inference_mode():
        hidden = model(batch).output[0, :-1] if kind == "uni_lm" else model.cloze(batch)[0]
        rows = model.logits(hidden).log_softmax(-1).double()
    return [float(row[token]) for row, token in zip(rows, ids[1:] if kind == "uni_lm" else ids, strict=True)]


@pytest.mark.parametrize("kind", ["uni_lm", "bi_lm"])
def test_perplexities_by_hand(store, kind):
    """Loss and perplexities are those of the artifact's model, sentence by sentence; cut lines have no
    perplexity per character."""
    graph = pretrained(kind)
    record = run(store, graph)
    assert record.state == "finished", record.reason
    assert set(record.metrics) == set(prefixed("lm", LANGUAGE_MODEL))
    model = read_language_model(artifact(store, graph, "lm"))
    sentences = [
        row.tolist() for row in read_encoded(artifact(store, graph, "lm_encoded"), "dev").stream("source 0")
    ]
    logs = [predicted(model, kind, [3, *ids, 3]) for ids in sentences]
    loss = -sum(map(sum, logs)) / sum(map(len, logs))
    assert record.metrics["lm/dev_loss"] == pytest.approx(loss, abs=1e-5)
    assert record.metrics["lm/dev_perplexity"] == pytest.approx(math.exp(loss), rel=1e-5)
    lines = read_corpus(artifact(store, graph, "lm_text") / "dev").sources[0]
    is_whole = [len(ids) < 20 for ids in sentences]
    assert 0 < sum(is_whole) < len(lines), "the text must have both kinds of lines"
    nats = -sum(sum(row) for row, whole in zip(logs, is_whole, strict=True) if whole)
    characters = sum(len(line) for line, whole in zip(lines, is_whole, strict=True) if whole)
    assert record.metrics["lm/dev_char_perplexity"] == pytest.approx(math.exp(nats / characters), rel=1e-5)
    curve = [value for _, value, _ in record.curves["lm/dev_perplexity"]]
    assert min(curve) == pytest.approx(record.metrics["lm/dev_perplexity"], rel=1e-6)


def test_trials_share_the_model_unless_each_seed_has_its_own():
    assert pretrained(seed=1).fingerprint == pretrained(seed=2).fingerprint
    per_seed = [pretrained(seed=seed, is_per_seed=True) for seed in (1, 2)]
    assert per_seed[0].fingerprint != per_seed[1].fingerprint
    assert per_seed[0].find("lm_encoded") == per_seed[1].find("lm_encoded")


def test_a_stopped_pretraining_resumes_bit_for_bit(tmp_path):
    graph = pretrained(train={**TRAIN, "eval_every_steps": 1})
    models = []
    for name in ("whole", "stopped"):
        store = ArtifactStore.open(tmp_path / name)
        if name == "stopped":
            assert run(store, graph, StopsAt("lm", 4)).state == "stopped"
        record = run(store, graph)
        assert record.state == "finished", record.reason
        models.append(read_language_model(artifact(store, graph, "lm")).state_dict())
        assert [step for step, *_ in record.curves["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert not differing(*models)


def test_lines_that_were_all_cut_are_refused(store):
    with pytest.raises(TrialFailed, match=r"every dev line has 1 tokens or more.*raise max_tokens"):
        run(store, pretrained(max_tokens=1))


def test_settings_are_checked_when_the_study_is_read():
    with pytest.raises(ValidationError, match="vocab_size is that of the text's tokenizer"):
        LanguageModelPhaseConfig(model={"kind": "uni_lm", "vocab_size": 7})
    with pytest.raises(ValidationError, match="measured: dev/loss, dev/perplexity"):
        LanguageModelPhaseConfig(model={"kind": "bi_lm"}, train={"best_metric": "dev/bleu"})
