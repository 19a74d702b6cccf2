"""Table 2's arms that make rows from text or put new layers in place of the pretrained embeddings."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from nlgraft.stages.run.exchange_stages import read_vectors
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig
from nlgraft.text.tokenizers import train_sentencepiece
from nlgraft.training.models import read_model
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.contract.toys.embedding_transfer import ARMS
from tests.tensors import differing
from tests.unit.embedding_transfer.bert_configs import graph_of
from tests.unit.stages.runs import finish
from trainables.embedding_transfer import METRICS, Config

BASE = ARMS["mean"]
TABLE = "target_embedding.table.weight"


def run(store, method, sides="decoder"):
    config = Config(**{**BASE, "transfer": {"method": method, "sides": sides}})
    record, at = finish(store, graph_of(config), config, METRICS)
    assert {"dev/bleu", "dev/length_saved", "upstream/dev_bleu"} <= set(record.metrics)
    return at


def exchanged(store, method, kind):
    """Plan, new rows, old rows and vectors of a transfer of the decoder."""
    at = run(store, method)
    plan = TransferPlan.load(at("transfer") / "plan-decoder")
    new, old = (read_model(at(name)).state_dict()[TABLE].numpy() for name in ("transfer", "upstream"))
    return plan, new, old, read_vectors(at(f"downstream_{kind}_vectors"), "decoder")


def test_word2vec_keeps_shared_rows_and_takes_the_others_from_text(store):
    plan, new, old, vectors = exchanged(store, "word2vec", "skipgram")
    dense, copied = plan.rows(Provenance.DENSE), plan.rows(Provenance.COPY)
    assert len(dense) > 10
    assert len(copied) > 10
    assert np.array_equal(new[dense], vectors.vectors[dense])
    assert np.array_equal(new[copied], old[[plan.matrix[row].indices[0] for row in copied]])
    assert vectors.counts[dense].min() >= 1
    assert vectors.vectors.shape == (200, 16)


def test_cbow_replaces_shared_rows_too(store):
    plan, new, old, vectors = exchanged(store, "cbow", "cbow")
    assert not len(plan.rows(Provenance.COPY))
    dense, special = plan.rows(Provenance.DENSE), plan.rows(Provenance.SPECIAL)
    assert np.array_equal(new[dense], vectors.vectors[dense])
    assert np.array_equal(new[special], old[special])
    assert len(dense) + len(special) + len(plan.rows(Provenance.NOISE)) == 200


def test_the_joint_vocabulary_is_that_of_all_text(store, tmp_path):
    at = run(store, "joint_vocab")
    texts = [read_corpus(at(f"{domain}_corpus") / "train").target for domain in ("downstream", "upstream")]
    lines = [line for text in texts for line in text or []]
    train_sentencepiece(
        lines, LearnedTokenizerConfig(**BASE["tokenizers"]["joint"]), tmp_path / "joint.model", 0
    )
    made = at("joint_target_tokenizer") / "tokenizer.model"
    assert made.read_bytes() == (tmp_path / "joint.model").read_bytes()


@pytest.mark.parametrize("sides", ["decoder", "encoder", "both"])
def test_the_model_is_frozen_while_new_layers_learn(store, sides):
    at = run(store, "independent_encoder", sides)
    before, after, done = (read_model(at(name)) for name in ("upstream", "independent", "finetuned"))
    replaced = {"encoder": ("source_embedding.",), "decoder": ("target_embedding.", "output_projection.")}
    gone = tuple(p for side in replaced if sides in (side, "both") for p in replaced[side])
    assert all(name.startswith(gone) for name in differing(before, after))
    assert not all(name.startswith(gone) for name in differing(after, done)), "all of it is finetuned"
    fresh = load_file(at("independent") / "model.safetensors")
    assert any("layers.0.attention" in name or "tower.0.attention" in name for name in fresh)
