"""An mBART of transformers as the pretrained model: renumbered, its vocabulary exchanged (Table 3)."""

import shutil
from pathlib import Path

import pytest
import sentencepiece
import torch
from sentencepiece import sentencepiece_model_pb2

from nlgraft.basics.errors import DataError, TrialFailed
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.conversion.checkpoint import from_hugging_face
from nlgraft.pipeline.stage import NullReporter, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.stages.released_graph import released
from nlgraft.stages.run.released_stages import SPM_FILE, renumbered, their_rows
from nlgraft.text.tokenizers import SentencePiece
from nlgraft.training.models import read_model
from tests.released_translators import write_mbart
from tests.tiny_checkpoints import edit
from tests.unit.embedding_transfer.bert_configs import check_exchanged, corpus, exchange_settings, run
from trainables.embedding_transfer import Config


@pytest.fixture(scope="module")
def mbart(tmp_path_factory):
    """A directory as released ones are: 120 pieces, three languages, a mask."""
    directory = tmp_path_factory.mktemp("mbart")
    write_mbart(directory, corpus("train").text())
    return directory


def configured(directory, method="patt_eg", sides="decoder", **upstream):
    upstream = {"objective": "denoising", "start_id": 122} | upstream
    tokenizer = {"vocab_size": 150, "is_shared": True}
    return Config(**exchange_settings(directory, tokenizer, method, sides, **upstream))


def their_ids(directory, line):
    """Tokenize a line as an mBART's tokenizer does: pieces one place on, unknown 3."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / SPM_FILE))
    return [identity + 1 if identity else 3 for identity in model.encode(line)]


def test_a_renumbered_checkpoint_says_the_same(store, mbart):
    """Logits of every token agree with transformers' on their ids, for text, begin, end, padding and mask."""
    import transformers

    _, at = run(store, configured(mbart, "pretrain_finetune"))
    tokenizer = SentencePiece(at("upstream_shared_tokenizer") / "tokenizer.model")
    rows = their_rows(tokenizer.vocab_size, 122, 124)
    model = read_model(at("upstream")).eval()
    reference = transformers.MBartForConditionalGeneration.from_pretrained(mbart).eval()
    lines = corpus("dev").sources[0][:3]
    encoded = tokenizer.encode(lines)
    assert [[rows[i] for i in ids] for ids in encoded] == [their_ids(mbart, line) for line in lines]
    source = Tokens.from_lists([[*ids, 4, 3] for ids in encoded])
    target = Tokens.from_lists([[2, *ids] for ids in encoded])
    index = torch.tensor(rows)
    with torch.no_grad():
        expected = reference(
            input_ids=index[source.ids],
            attention_mask=source.valid.long(),
            decoder_input_ids=index[target.ids],
        ).logits[..., index]
        logits = model.logits(model(Batch([source], target, target.ids)))
    assert torch.allclose(logits[target.valid], expected[target.valid], atol=1e-5)
    assert [rows[i] for i in (0, 1, 2, 3, 4)] == [1, 3, 122, 2, 124]


def test_its_vocabulary_is_exchanged(store, mbart):
    record, at = run(store, configured(mbart))
    check_exchanged(at, "downstream_shared_tokenizer")
    assert record.metrics["generator/parameters"] == 6 * 16


def test_what_a_target_starts_with_must_be_known(store, mbart, tmp_path):
    shutil.copytree(mbart, tmp_path, dirs_exist_ok=True)
    edit(tmp_path / "config.json", decoder_start_token_id=None)
    with pytest.raises(TrialFailed, match="start_id"):
        run(store, configured(tmp_path, "pretrain_finetune", start_id=None))


def test_another_tokenizer_is_refused():
    proto = sentencepiece_model_pb2.ModelProto()
    for name in ("<pad>", "<unk>", "<s>"):
        proto.pieces.add().piece = name
    with pytest.raises(DataError, match="another kind"):
        renumbered(proto, Path("here"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "translation"}, "of an OPUS-MT with start_id 122, which belongs to an mBART"),
        ({"checkpoint": None}, "without a checkpoint"),
    ],
)
def test_contradictions_of_checkpoints_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        configured("somewhere", **changes)


def test_languages_of_an_mbart_get_tokens_behind_the_mask(mbart, tmp_path):
    """As multi_source reads it: theirs are 121 and 123, and 122 starts the targets."""
    checkpoint = released(str(mbart), None, read_as="mbart", max_tokens=60)
    tokenizer = checkpoint.tokenizer("tokenizer", ("<one>", "<other>"))
    graph = StageGraph(checkpoint.encoder_decoder("model", tokenizer, 122, (121, 123)))
    store = ArtifactStore.open(tmp_path)
    record = run_trial(graph, store, reporter=NullReporter(), config={}, is_waiting=True)
    assert record.state == "finished"
    pieces = SentencePiece(store.fetch(tokenizer) / "tokenizer.model")
    assert [pieces.id(token) for token in ("<mask>", "<one>", "<other>")] == [4, 5, 6]
    released_table = from_hugging_face(str(mbart))[0].source_embedding.table.weight
    table = read_model(store.fetch(graph.find("model"))).source_embedding.table.weight
    assert torch.equal(table[[2, 5, 6]], released_table[[122, 121, 123]])
    assert torch.equal(table[7:], released_table[4 : 4 + len(table) - 7])
