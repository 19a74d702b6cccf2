"""An OPUS-MT as the pretrained model: its two tokenizers, its logits, its vocabulary exchanged."""

import json

import pytest
import torch

from nlgraft.basics.errors import DataError, StudyError
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.study.public import Study
from nlgraft.text.tokenizers import UNK, SentencePiece
from nlgraft.training.models import read_model
from tests.released_translators import copy_of, write_marian
from tests.tensors import assert_near
from tests.tiny_checkpoints import edit, quiet
from tests.unit.embedding_transfer.bert_configs import check_exchanged, corpus, exchange_settings, graph_of
from tests.unit.stages.runs import finish
from trainables.embedding_transfer import Config


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("opus")
    train = corpus("train")
    write_marian(directory, train.sources[0], train.target)
    return directory


def settings_of(directory, method="patt_eg", **upstream):
    return exchange_settings(directory, {"vocab_size": 120}, method, objective="translation", **upstream)


def run(store, document):
    config = Config.model_validate_json(json.dumps(document))
    return finish(store, graph_of(config), config)


def test_it_says_the_same_as_in_transformers(store, opus):
    """Pieces, logits on them and greedy translations; no text gives the other side's pieces."""
    import transformers

    record, at = run(store, settings_of(opus, "pretrain_finetune"))
    assert "upstream/dev_bleu" in record.metrics
    sides = {
        side: SentencePiece(at(f"upstream_{side}_tokenizer") / "tokenizer.model")
        for side in ("source", "target")
    }
    model = read_model(at("upstream")).eval()
    reference = transformers.MarianMTModel.from_pretrained(opus).eval()
    tokenizer = quiet(transformers.AutoTokenizer.from_pretrained, opus)
    document = json.loads((at("upstream_source_tokenizer") / "their_ids.json").read_text())
    pad, end, unknown = reference.config.pad_token_id, 0, document["unknown"]
    rows = torch.tensor([pad, unknown, pad, end, unknown, *document["pieces"]])
    dev = corpus("dev")
    expected = quiet(tokenizer, dev.sources[0], text_target=dev.target)
    sources, targets = sides["source"].encode(dev.sources[0]), sides["target"].encode(dev.target)
    assert [rows[[*ids, 3]].tolist() for ids in sources] == expected["input_ids"]
    assert [rows[[*ids, 3]].tolist() for ids in targets] == expected["labels"]
    lines = [" ".join(line.split()) for line in dev.target]
    # The vocabulary lacks the full stop.
    assert sides["target"].decode(targets) == [line.replace(".", " \u2047 ") for line in lines]
    source = Tokens.from_lists([[*ids, 3] for ids in sources])
    target = Tokens.from_lists([[2, *ids] for ids in targets])
    settings = {"input_ids": rows[source.ids], "attention_mask": source.valid.long()}
    with torch.no_grad():
        their = reference(**settings, decoder_input_ids=rows[target.ids]).logits[target.valid][:, rows]
        logits = model.logits(model(Batch([source], target, target.ids)))[target.valid]
    distinct = [i for i in range(len(rows)) if rows[i] not in rows[:i]]
    assert_near(logits[:, distinct], their[:, distinct], 1e-4)
    silent = [i for i in range(len(rows)) if i not in distinct]
    assert {2, 4} < {*silent}  # the begin is the padding, the mask and a piece without an id unknown
    assert float(logits[:, silent].max()) < -1e3
    greedy = GenerationConfig(beam=1, max_length_ratio=0, max_length_offset=9)
    generated = reference.generate(**settings, max_new_tokens=10, num_beams=1, bad_words_ids=[[pad]])[
        :, 1:
    ].tolist()
    decoded = [rows[best[0].ids].tolist() for best in beam_search(model, [source], config=greedy)]
    assert decoded == [row[: row.index(end)] if end in row else row[:9] for row in generated]


def test_no_text_becomes_a_token_that_the_model_is_kept_from_saying(store, opus):
    """The full stop that its vocabulary lacks is unknown; as text it would have a loss of 10,000 nats."""
    _, at = run(store, settings_of(opus, "pretrain_finetune"))
    text = corpus("train").target
    tokenizer = SentencePiece(at("upstream_target_tokenizer") / "tokenizer.model")
    tokens = sorted({i for ids in tokenizer.encode(text) for i in ids})
    bias = read_model(at("upstream")).output_projection.bias.detach()
    assert tokens[0] == UNK
    assert float(bias[tokens].min()) > -100


@pytest.mark.parametrize("method", ["patt_eg", "fvt"])
def test_its_vocabulary_is_exchanged(store, opus, method):
    _, at = run(store, settings_of(opus, method))
    check_exchanged(at, "downstream_target_tokenizer")


def test_it_is_planned_or_refused_by_a_study(opus, tmp_path):
    def problems(directory, **changes):
        document = settings_of(directory, **changes)
        study = {
            "name": "opus",
            "system": "trainables.embedding_transfer",
            "data": document.pop("data"),
            "base": document,
            "objective": {"metric": "dev/bleu", "direction": "maximize"},
            "seeds": [1],
        }
        with pytest.raises((DataError, StudyError)) as caught:
            Study.from_dict(study).plan()
        return str(caught.value)

    broken = copy_of(opus, tmp_path / "opus")
    (broken / "target.spm").unlink()
    assert "no target.spm beside source.spm" in problems(broken)
    edit(broken / "config.json", model_type="t5")
    assert "'t5', allowed is marian (t5 has relative positions" in problems(broken)
    assert "start_id 3, which belongs to an mBART" in problems(opus, start_id=3)
    assert "joint_vocab, which pretrains a translation model" in problems(opus, method="joint_vocab")


def test_languages_of_a_vocabulary_are_refused(store, opus, tmp_path):
    directory = copy_of(opus, tmp_path / "opus")
    ids = json.loads((directory / "vocab.json").read_text())
    moved = {piece if i != 5 else ">>deu<<": i for piece, i in ids.items()}
    (directory / "vocab.json").write_text(json.dumps(moved))
    with pytest.raises(Exception, match="an OPUS-MT with languages"):
        run(store, settings_of(directory, "pretrain_finetune"))
