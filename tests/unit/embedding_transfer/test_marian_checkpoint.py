"""Released translators as the pretrained model: an OPUS-MT, and those of many languages by name."""

import json

import pytest
import torch

from nlgraft.basics.errors import DataError, StudyError
from nlgraft.evaluation.artifact import read_lines
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.stages.run.seq2seq_stages import HYPOTHESES_FILE
from nlgraft.stages.run.text_stages import open_tokenizer, read_encoded
from nlgraft.stages.seq2seq_graph import TRANSLATE
from nlgraft.study.public import Study
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizers import UNK, SentencePiece
from nlgraft.training.models import read_model
from nlgraft.training.views import Seq2SeqData
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.contract.toy_arms import study_of
from tests.released_translators import FAMILIES, check_alike, copy_of, write_marian, write_multilingual
from tests.tensors import assert_near, differing
from tests.tiny_checkpoints import edit, quiet
from tests.unit.embedding_transfer.bert_configs import check_exchanged, corpus, exchange_settings, graph_of
from tests.unit.stages.runs import finish, made
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
        study = study_of("embedding_transfer", settings_of(directory, **changes), "dev/bleu")
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


# Checkpoints of many languages.


METHODS = ["avg_eg", "att_eg", "patt_eg"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    where = tmp_path_factory.mktemp("released")
    lines = corpus("train").text()
    for family in FAMILIES:
        (where / family).mkdir()
        write_multilingual(where / family, family, lines)
    return where


def make_study(directory, languages, *, methods=METHODS, sides="decoder", is_shared=False, **upstream):
    """A study of methods that give a checkpoint the vocabulary of another domain."""
    tokenizer = {"vocab_size": 120, "is_shared": is_shared}
    settings = exchange_settings(directory, tokenizer, sides=sides, languages=languages, **upstream)
    del settings["transfer"]["method"]
    factor = {"target": "transfer.method", "levels": methods, "baseline": methods[0]}
    return Study.from_dict(
        study_of("embedding_transfer", settings, "dev/bleu") | {"factors": {"method": factor}}
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_it_reads_and_says_what_it_does_in_transformers(store, family, checkpoints):
    """Batches, logits and greedy translations of the pretrained model, in its own vocabulary."""
    methods = ["pretrain_finetune", "fvt"]
    graph = make_study(checkpoints / family, FAMILIES[family][2], methods=methods).plan().trials[0].graph
    settings = TRANSLATE.settings_of(graph.find("translation_dev"))
    assert settings.view == TRANSLATE.settings_of(graph.find("upstream_translation")).view
    encoded = read_encoded(made(store, graph.find("downstream_encoded")), "dev")
    batch = Seq2SeqData(encoded, settings.view, batch_tokens=10_000).batch(torch.arange(6).numpy(), 0)
    corpus = read_corpus(made(store, graph.find("downstream_corpus")) / "dev")
    model = read_model(made(store, graph.find("upstream"))).eval()
    lines = [*corpus.sources[0]], [*corpus.target]
    check_alike(checkpoints / family, family, model, batch, lines, settings.generation)


@pytest.mark.parametrize(
    ("family", "sides", "methods"),
    [
        ("mbart", "decoder", METHODS),
        ("mbart_50", "both", ["patt_eg"]),
        ("m2m_100", "encoder", ["att_eg"]),
        ("nllb", "decoder", ["patt_eg"]),
        ("nllb", "both", ["avg_eg"]),
    ],
)
def test_a_study_runs_to_the_end(store, family, sides, methods, checkpoints):
    """Planned with each generator; languages keep their rows and places in the new vocabulary."""
    languages = FAMILIES[family][2]
    plan = make_study(checkpoints / family, languages, sides=sides, is_shared=sides == "both").plan()
    assert len(plan.trials) == len(METHODS)
    for trial in [trial for trial in plan.trials if trial.config["transfer"]["method"] in methods]:
        record, at = finish(store, trial.graph)
        assert {"dev/bleu", "upstream/dev_bleu"} <= set(record.metrics)
        before, after = read_model(at("upstream")), read_model(at("transfer"))
        for side in ("encoder", "decoder") if sides == "both" else (sides,):
            name = "source" if side == "encoder" else "target"
            tokenizer = open_tokenizer(at(f"downstream_{'shared' if sides == 'both' else name}_tokenizer"))
            assert [tokenizer.id(f"<{language}>") for language in languages] == [5, 6]
            old, new = (model.state_dict()[f"{name}_embedding.table.weight"] for model in (before, after))
            assert len(new) == tokenizer.vocab_size
            assert torch.equal(new[5:7], old[5:7])
            transfer = TransferPlan.load(at("transfer") / f"plan-{side}")
            assert transfer.provenance[5:7].tolist() == [Provenance.SPECIAL] * 2
            assert len(transfer.rows(Provenance.COMPOSED)) > 0
        assert all("embedding.table" in name or "output" in name for name in differing(before, after))
        lines = read_lines(at("translation_dev") / HYPOTHESES_FILE)
        assert not any(language in line for line in lines for language in languages)


def test_other_layers_are_put_before_it(store, checkpoints):
    """The first phase of independent_encoder reads languages, too."""
    languages = FAMILIES["nllb"][2]
    trial = (
        make_study(checkpoints / "nllb", languages, methods=["independent_encoder", "fvt"]).plan().trials[0]
    )
    settings = trial.graph.find("independent").config["view"]
    assert (settings["target_start"], settings["target"]["prefix"]) == (3, [6])


def test_languages_are_refused_where_nothing_reads_them(checkpoints, tmp_path):
    def problems(directory, languages, **settings):
        with pytest.raises((DataError, StudyError)) as caught:
            make_study(directory, languages, **settings).plan()
        return str(caught.value)

    nllb = checkpoints / "nllb"
    two = ["eng_Latn", "deu_Latn"]
    messages = problems(nllb, two, objective="denoising")
    assert "languages are eng_Latn, deu_Latn, for a checkpoint of translation" in messages
    assert "a translation model with start_id 3" in problems(nllb, two, start_id=3)
    train = corpus("train")
    write_marian(tmp_path, train.sources[0], train.target)
    assert "'marian', allowed is mbart or m2m_100" in problems(tmp_path, two)
    assert "allowed is marian, or m2m_100 with upstream.languages" in problems(nllb, None)
