"""TRICE as a system: which model, views and transitions its settings give, and what its stages do to text."""

import json

import pytest
import tokenizers
import torch
from pydantic import ValidationError
from transformers import BertForMaskedLM

from nlgraft.basics.errors import DataError
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.stages.run.seq2seq_stages import last_sentence
from nlgraft.stages.run.text_stages import open_tokenizer, read_encoded
from nlgraft.training.models import read_model
from tests.contract.toys.multi_source import ARMS
from tests.tensors import differing
from tests.tiny_causal_lms import release
from tests.tiny_models import family_config
from tests.unit.stages.runs import finish
from trainables.multi_source import Config, stage_graph
from trainables.multi_source.stages import joined, previous

TRICE = {key: ARMS["trice"][key] for key in ("data", "tokenizer", "model", "decode", "upstream")}
TRICE |= {key: ARMS["trice"][key] for key in ("single_source", "multi_source")}
CONCATENATION = {"segments": "none", "cross_attention": "joint", "fine_encoder": {"num_layers": 0}}
BERT = {"directory": "google-bert/bert-base-multilingual-cased", "revision": "main"}
FIVE = {"sources": list("abcde"), "target": "f"}
CLS = 2
"""Its id in the tiny checkpoint."""
TABLES = ("source_embedding.table.weight", "target_embedding.table.weight")
SIZES = TransformerConfig(**ARMS["trice"]["model"])


def configured(**settings):
    return Config.model_validate_json(json.dumps({**TRICE, **settings}))


def model_of(config):
    return config.model.transformer(**config.wiring())


def graph_of(config, seed=1):
    return stage_graph(config, seed=seed, splits=("dev",))


def trained(config, name="multi_source", seed=1):
    return graph_of(config, seed).find(name)


def test_the_default_is_trice_and_its_ablation_the_concatenation_baseline():
    """Invariants F1 and F2 on the system's settings; what the models do is tested on the same presets."""
    sizes = SIZES.model_dump()
    for name in ("num_sources", "segments", "cross_attention", "encoding", "fine_encoder"):
        del sizes[name]
    assert model_of(configured()) == family_config("trice", **sizes)
    assert model_of(configured(sources=CONCATENATION)) == family_config("dualbart", **sizes)
    alone = configured(read=[1], multi_source=None)
    assert trained(alone, "single_source").config["model"] is None
    untrained = configured(read=[1], multi_source=None, upstream=None)
    assert TransformerConfig(**trained(untrained, "single_source").config["model"]) == SIZES


def test_cells_share_what_they_have_in_common():
    full = configured()
    for other in (configured(sources={"segments": "none"}), configured(sources=CONCATENATION)):
        assert trained(other).fingerprint != trained(full).fingerprint
        assert trained(other, "single_source").fingerprint == trained(full, "single_source").fingerprint
    direct = graph_of(configured(single_source=None))
    assert trained(full, "upstream") in direct.stages
    alone = configured(read=[0], multi_source=None)
    assert trained(alone, "task_encoded").fingerprint == trained(full, "task_encoded").fingerprint
    per_seed = configured(upstream={**TRICE["upstream"], "is_per_seed": True})
    assert trained(full, "upstream", seed=2).fingerprint == trained(full, "upstream").fingerprint
    assert trained(per_seed, "upstream", seed=2).fingerprint != trained(per_seed, "upstream").fingerprint


def test_a_language_id_follows_each_source_and_begins_the_target():
    """Post-editing: the draft is in the target's language. Ids: four special ones, mask, languages."""
    view = trained(configured()).config["view"]
    assert [side["suffix"] for side in view["sources"]] == [[3, 5], [3, 6]]
    assert view["target_start"] == 6
    drawn = trained(configured(), "single_source").config["view"]
    assert drawn["is_one_source_drawn"]
    draft = configured(single_source={**TRICE["single_source"], "draws": [1]})
    [side] = trained(draft, "single_source").config["view"]["sources"]
    assert side["stream"] == "source 1"


def test_the_length_limit_follows_the_translated_sentence():
    graph = graph_of(Config.model_validate_json(json.dumps(ARMS["previous sentence"])))
    assert graph.find("translation_dev").config["view"]["length_source"] == 1
    assert trained(configured(), "translation_dev").config["view"]["length_source"] is None
    swapped = graph_of(Config.model_validate_json(json.dumps(ARMS["previous sentence"] | {"read": [1, 0]})))
    assert swapped.find("translation_dev").config["view"]["length_source"] == 0
    drawn = graph.find("single_source").config["view"]
    assert drawn["is_one_source_drawn"]
    assert drawn["length_source"] is None, "whichever is drawn is translated"


def test_the_fine_encoder_has_its_own_learning_rate():
    """Invariant F12: a group for what is new, none where nothing is."""
    faster = {**TRICE["multi_source"], "new_lr_multiplier": 10.0}
    [group] = trained(configured(multi_source=faster)).config["learned"]["groups"]
    assert group["lr_multiplier"] == 10.0
    config = configured(multi_source=faster, sources=CONCATENATION)
    assert trained(config).config["learned"]["groups"] == []
    scratch = ARMS["dual transformer, learned positions"] | {"multi_source": faster}
    assert trained(Config.model_validate_json(json.dumps(scratch))).config["learned"]["groups"] == []


def test_every_transition_is_reported(store):
    """Invariants F10 and F12: only the fine encoder is new, and what is frozen stays as it was."""
    frozen = {**TRICE["multi_source"], "is_rest_frozen": True}
    record, at = finish(store, graph_of(configured(multi_source=frozen)))
    reports = {
        name: json.loads((at(name) / "carried.json").read_text())
        for name in ("single_source", "multi_source")
    }
    assert reports["single_source"]["initialised"] == reports["single_source"]["dropped"] == []
    assert reports["multi_source"]["dropped"] == []
    new = reports["multi_source"]["initialised"]
    assert new == [name for name in new if name.startswith("fine_encoder.")] != []
    before, after = (read_model(at(name)).state_dict() for name in ("single_source", "multi_source"))
    assert set(before) == set(reports["multi_source"]["carried"])
    assert not differing(before, after) & before.keys()
    tokenizer = open_tokenizer(at("shared_tokenizer"))
    assert [tokenizer.id(piece) for piece in ("<mask>", "<first>", "<target>")] == [4, 5, 6]
    languages = read_encoded(at("text_encoded"), "dev").stream("language")
    assert languages.values.tolist() == [5] * 4 + [6] * 4
    assert record.metrics["dev/loss.step_0"] != record.metrics["single_source/dev_loss"]


def test_a_released_bert_is_both_sides_of_dual_bert(store, tmp_path):
    """Table 2's DualBERT from a checkpoint: its words keep their rows, languages begin as [CLS]."""
    directory = release(tmp_path / "bert", "bert")
    reference = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    upstream = {"objective": "masked_tokens", "checkpoint": {"directory": str(directory)}}
    config = configured(
        data={**TRICE["data"], "max_tokens": 60},
        upstream=upstream,
        sources=CONCATENATION,
        single_source=None,
    )
    _, at = finish(store, graph_of(config))
    tokenizer = open_tokenizer(at("shared_tokenizer"))
    assert tokenizer.pieces[4:7] == ["<mask>", "<first>", "<target>"]
    assert tokenizer.pieces[7:] == [reference.id_to_token(i) for i in range(5, reference.get_vocab_size())]
    assert all(config.language_id(name) in (5, 6) for name in config.languages)
    assert all(not {5, 6} & {*ids} for ids in tokenizer.encode(["<first> <target>"])), "text makes none"
    tables = [read_model(at("upstream")).state_dict()[name] for name in TABLES]
    released = BertForMaskedLM.from_pretrained(directory).bert.embeddings.word_embeddings.weight
    for table in tables:
        assert torch.equal(table[[5, 6]], released[[CLS, CLS]])
        assert torch.equal(table[7:], released[5:])


def test_the_sentence_before_by_hand():
    lines, documents = ["a", "b", "c", "d"], ["1", "1", "2", "2"]
    before = previous(lines, documents)
    assert before == ["", "a", "", "c"]
    assert joined(before, lines, "<sep>") == ["a", "a <sep> b", "c", "c <sep> d"]
    for line in joined(before, ["ls | sort", "b", "c", "d |"], "<sep>"):
        assert last_sentence(line, "<sep>") in ("ls | sort", "b", "c", "d |")
    with pytest.raises(DataError, match="no stream 'document'"):
        previous(lines, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"read": [0]}, "multi_source is given, but one source is read"),
        ({"read": [2], "multi_source": None}, "sources 0 to 1"),
        ({"multi_source": None}, "without multi_source"),
        ({"multi_source": None, "single_source": None, "read": [0]}, "nothing is finetuned"),
        (
            {"data": {**TRICE["data"], "languages": ["first", "target"]}},
            "the task has 2 sources and a target",
        ),
        ({"data": {**TRICE["data"], "text": {}}}, "learns from data.text, which lacks first, target"),
        ({"documents": "previous"}, "needs one source and a stream 'document'"),
        (
            {"upstream": {"checkpoint": {"directory": "mbart", "language_ids": {"first": 7}}}},
            "checkpoint.language_ids lacks target",
        ),
        (
            {"upstream": {"objective": "masked_tokens", "checkpoint": BERT | {"language_ids": {"first": 7}}}},
            "a BERT has no tokens of languages",
        ),
        (
            {"read": [0], "multi_source": None, "is_adversarial": True},
            "is_adversarial needs multi_source and examples of 2 to 4 sources",
        ),
        (
            {
                "data": {
                    "task": {"corpus": "files", **dict.fromkeys(("train", "dev", "test"), FIVE)},
                    "languages": list("abcdef"),
                },
                "upstream": None,
                "is_adversarial": True,
            },
            "is_adversarial needs multi_source and examples of 2 to 4 sources",
        ),
    ],
)
def test_contradictions_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        configured(**settings)
