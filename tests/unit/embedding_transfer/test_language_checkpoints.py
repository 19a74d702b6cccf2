"""mBART, mBART-50, M2M-100 and NLLB as the pretrained model: languages by name, a new vocabulary."""

import pytest
import torch

from nlgraft.basics.errors import DataError, StudyError
from nlgraft.evaluation.artifact import read_lines
from nlgraft.stages.run.text_stages import open_tokenizer, read_encoded
from nlgraft.stages.run.translation_stages import HYPOTHESES_FILE
from nlgraft.stages.seq2seq_graph import TRANSLATE
from nlgraft.study.public import Study
from nlgraft.text.corpora import read_corpus
from nlgraft.training.models import read_model
from nlgraft.training.views import Seq2SeqData
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.released_translators import FAMILIES, check_alike, write_marian, write_multilingual
from tests.tensors import differing
from tests.unit.embedding_transfer.bert_configs import corpus, exchange_settings
from tests.unit.stages.runs import finish, made

METHODS = ["avg_eg", "att_eg", "patt_eg"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    where = tmp_path_factory.mktemp("released")
    lines = corpus("train").text()
    for family in FAMILIES:
        (where / family).mkdir()
        write_multilingual(where / family, family, lines)
    return where


def study_of(directory, languages, *, methods=METHODS, sides="decoder", is_shared=False, **upstream):
    """A study of methods that give a checkpoint the vocabulary of another domain."""
    tokenizer = {"vocab_size": 120, "is_shared": is_shared}
    settings = exchange_settings(directory, tokenizer, sides=sides, languages=languages, **upstream)
    del settings["transfer"]["method"]
    return Study.from_dict(
        {
            "name": "languages",
            "system": "trainables.embedding_transfer",
            "data": settings.pop("data"),
            "base": settings,
            "factors": {
                "method": {"target": "transfer.method", "levels": methods, "baseline": methods[0]},
            },
            "objective": {"metric": "dev/bleu", "direction": "maximize"},
            "seeds": [1],
        }
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_it_reads_and_says_what_it_does_in_transformers(store, family, checkpoints):
    """Batches, logits and greedy translations of the pretrained model, in its own vocabulary."""
    methods = ["pretrain_finetune", "fvt"]
    graph = study_of(checkpoints / family, FAMILIES[family][2], methods=methods).plan().trials[0].graph
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
    plan = study_of(checkpoints / family, languages, sides=sides, is_shared=sides == "both").plan()
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
    trial = study_of(checkpoints / "nllb", languages, methods=["independent_encoder", "fvt"]).plan().trials[0]
    settings = trial.graph.find("independent").config["view"]
    assert (settings["target_start"], settings["target"]["prefix"]) == (3, [6])


def test_languages_are_refused_where_nothing_reads_them(checkpoints, tmp_path):
    def problems(directory, languages, **settings):
        with pytest.raises((DataError, StudyError)) as caught:
            study_of(directory, languages, **settings).plan()
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
