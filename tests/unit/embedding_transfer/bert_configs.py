"""Configs of trials with a BERT as the pretrained model, and their runs."""

import functools

from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizers import SentencePiece
from nlgraft.training.models import read_model
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.small_studies import GREEDY, TRAIN
from tests.tensors import differing
from tests.unit.stages.runs import finish
from trainables.embedding_transfer import METRICS, Config, stage_graph

CORPUS = {"corpus": "conlang", "train": 80, "dev": 6, "test": 4}
GENERATOR = {"max_steps": 2, "batch_tokens": 800, "eval_every_steps": 2, "num_dev_sentences": 4}
ROOM = 126
"""Tokens that the checkpoint can read beside begin and end."""
SPECIAL = {"[PAD]": 0, "[UNK]": 2, "[CLS]": 3, "[SEP]": 4, "[MASK]": 5}
"""As a BERT numbers them: with room between padding and the others."""


@functools.cache
def corpus(split, domain="a"):
    """The text of a split."""
    return load_corpus(ConlangConfig(**CORPUS, domain=domain))[split]


def exchange_settings(directory, tokenizer, method="patt_eg", sides="decoder", **upstream):
    """Settings of a trial that gives a released checkpoint the vocabulary of another domain."""
    return {
        "data": {"upstream": CORPUS, "downstream": CORPUS | {"domain": "b"}},
        "tokenizers": {"downstream": tokenizer},
        "upstream": {"checkpoint": str(directory), **upstream},
        "generator": GENERATOR,
        "transfer": {"method": method, "sides": sides},
        "downstream": {"train": TRAIN},
        "decode": GREEDY,
    }


def configured(directory, method="patt_eg", sides="decoder", **changes):
    tokenizer = {"kind": "bpe", "vocab_size": 150, "is_shared": False}
    base = exchange_settings(directory, tokenizer, method, sides, objective="masked_tokens")
    base["data"]["max_tokens"] = 100
    return Config(**base | {"decode": {"beam": 2, "max_length_offset": 3}} | changes)


def graph_of(config):
    return stage_graph(config, seed=1, splits=("dev",))


def run(store, config):
    return finish(store, graph_of(config), config, METRICS)


def check_exchanged(at, tokenizer):
    """Only the tables of a decoder are new, and hold the vocabulary of this stage."""
    before, after = (read_model(at(name)) for name in ("upstream", "transfer"))
    assert (before.config.tying, after.config.tying) == ("all", "decoder")
    table = after.state_dict()["target_embedding.table.weight"]
    assert len(table) == SentencePiece(at(tokenizer) / "tokenizer.model").vocab_size
    assert len(TransferPlan.load(at("transfer") / "plan-decoder").rows(Provenance.COPY)) > 10
    assert all("embedding.table" in name or "output" in name for name in differing(before, after))


def states(at, *names):
    """The tensors of the models of some stages."""
    return [read_model(at(name)).state_dict() for name in names]
