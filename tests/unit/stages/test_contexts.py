"""Pretrained encoders as contexts: in the store, live or as stored states, in a trained model."""

import shutil

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from nlgraft.basics.errors import ContractError, DataError, TrialFailed
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import ContextConfig, HuggingFaceEncoderConfig
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.pipeline.stage import StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages import context_graph, text_graph
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages.config_parts import LanguageModelPhaseConfig, ScoreConfig
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.stages.seq2seq_graph import ContextStages, DecodingSettings, TrainSettings
from nlgraft.text.corpora import load_corpus, read_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import TokenizerConfig
from nlgraft.training.models import read_encoder, read_model
from nlgraft.training.train_config import Side, SmoothedTrainConfig, View
from tests.tensors import differing
from tests.unit.stages.runs import artifact, decisions, run

DATA = ConlangConfig(corpus="conlang", train=40, dev=6, test=4)
SIZES = {"preset": "tiny", "d_model": 16, "ffn_dim": 24, "num_heads": 2, "dropout": 0.0}
TRAIN = SmoothedTrainConfig(max_steps=4, batch_tokens=400, warmup_steps=1, peak_lr=0.01, eval_every_steps=2)
DECODE = GenerationConfig(beam=2, max_length_offset=3)
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SIDE = context_graph.context_side("prlm")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A BERT of width 12 with the WordPiece tokenizer of characters that goes with it."""
    directory = tmp_path_factory.mktemp("bert")
    letters = sorted(
        {letter for line in load_corpus(DATA)["train"].text() for letter in line.lower() if letter.strip()}
    )
    pieces_ = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces_)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIALS, strict=True))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(directory)
    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 16}
    config = transformers.BertConfig(
        vocab_size=len(pieces_), max_position_embeddings=160, initializer_range=0.3, **sizes
    )
    transformers.BertForMaskedLM(config).save_pretrained(directory)
    return directory


def context_of(checkpoint, **settings):
    return ContextConfig(encoder=HuggingFaceEncoderConfig(checkpoint=str(checkpoint)), **settings)


def text_of(encoder=None, **settings):
    """The corpus in the tokens of the translator, and of a checkpoint beside them."""
    corpus = text_graph.corpus("bitext", DATA)
    tokenizers = text_graph.tokenizers("bitext", TokenizerConfig(vocab_size=150), {"bitext": corpus})
    if encoder is None:
        return text_graph.encode("bitext", corpus, tokenizers)
    tokenizers[SIDE.stream] = context_graph.released_tokenizer("prlm", encoder)
    return text_graph.encode("bitext", corpus, tokenizers, streams={SIDE.stream: "source 0"}, **settings)


def scored_by_bleu(trained, text, view, decode=DECODE):
    decoding = DecodingSettings(decode=decode, view=view)
    return StageGraph(pieces.scores(trained, text, ("test",), decoding, ScoreConfig(metrics=("bleu",))))


def fused(checkpoint, context=None, *, is_stored, merge="sum", scored=False, random_seed=None):
    """A trial: translation with a branch from the checkpoint, whose states are stored or computed live."""
    context = context or context_of(checkpoint)
    text = text_of(context.encoder, max_tokens=30)
    encoder = context_graph.released_encoder("prlm", context.encoder)
    if random_seed is not None:
        encoder = context_graph.random_encoder("prlm", encoder, seed=random_seed)
    unnamed = context.model_copy(update={"encoder": HuggingFaceEncoderConfig()})
    config = TransformerConfig(
        **SIZES, contexts={"prlm": unnamed}, fusion={"contexts": ("prlm",), "merge": merge}
    )
    view = View(contexts={"prlm": SIDE})
    states = {}
    if is_stored:
        states = {SIDE.stream: context_graph.frozen_states("prlm_states", text, context, SIDE, encoder)}
    settings = TrainSettings(train=TRAIN, model=config, view=view)
    contexts = ContextStages({"prlm": encoder}, states)
    trained = pieces.train("trained", text, settings, seed=1, contexts=contexts)
    return scored_by_bleu(trained, text, view) if scored else StageGraph(trained)


def test_tokens_are_those_of_transformers(store, checkpoint):
    """With the special tokens of the checkpoint; lines are as long as they are, and nothing is put around."""
    graph = fused(checkpoint, is_stored=True)
    run(store, graph)
    lines = read_corpus(artifact(store, graph, "bitext_corpus") / "train").sources[0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    stream = stream_of(store, graph, "train")
    assert [row.tolist() for row in stream] == tokenizer([*lines])["input_ids"]
    assert max(stream.lengths) > 32, "max_tokens must not have cut these lines"
    states = FrozenStates(artifact(store, graph, "prlm_states") / "train.safetensors")
    assert states.tokens([0, 1]).valid.sum(1).tolist() == stream.lengths[:2].tolist()


def test_stored_states_are_those_of_transformers(store, checkpoint):
    graph = fused(checkpoint, is_stored=True)
    run(store, graph)
    line = read_corpus(artifact(store, graph, "bitext_corpus") / "dev").sources[0][2]
    reference = transformers.AutoModel.from_pretrained(checkpoint)
    tokens = transformers.AutoTokenizer.from_pretrained(checkpoint)(line, return_tensors="pt")
    with torch.no_grad():
        expected = reference(**tokens, output_hidden_states=True).hidden_states[-2][0]
    stored = FrozenStates(artifact(store, graph, "prlm_states") / "dev.safetensors").tokens([2])
    torch.testing.assert_close(stored.layers[0, 0], expected, rtol=0, atol=1e-5)


def test_states_are_computed_once_for_all_that_read_the_same_layers(store, checkpoint):
    """Merge, dropout and the kind of a pooling over the same layers do not matter; other layers do."""
    record = run(store, fused(checkpoint, is_stored=True))
    graph = fused(checkpoint, is_stored=True, merge="gate")
    other = run(store, graph)
    assert decisions(graph, other)["prlm_states"] == "hit"
    assert record.metrics["dev/loss"] != other.metrics["dev/loss"]

    def fingerprint(**settings):
        return fused(checkpoint, context_of(checkpoint, **settings), is_stored=True).find("prlm_states")

    assert fingerprint() == fingerprint(dropout=0.3)
    assert fingerprint(pooling={"kind": "mean"}) == fingerprint(pooling={"kind": "dynamic_cls"})
    assert fingerprint() != fingerprint(pooling={"kind": "index", "index": -1})
    assert fingerprint() != fingerprint(max_tokens=8)
    assert fingerprint(pooling={"kind": "mean"}) != fingerprint(pooling={"kind": "scalar_mix"})


@pytest.mark.parametrize("max_tokens", [None, 8])
def test_training_on_states_equals_training_with_the_live_encoder(store, checkpoint, max_tokens):
    context = context_of(checkpoint, max_tokens=max_tokens)
    stored, live = (run(store, fused(checkpoint, context, is_stored=stored)) for stored in (True, False))
    assert stored.metrics["dev/loss"] == pytest.approx(live.metrics["dev/loss"], abs=1e-5)
    other = run(store, fused(checkpoint, context_of(checkpoint, max_tokens=12), is_stored=False))
    assert other.metrics["dev/loss"] != pytest.approx(live.metrics["dev/loss"], abs=1e-5)


def test_a_trained_model_is_rebuilt_without_its_checkpoint(store, checkpoint, tmp_path):
    """From the artifact alone: the checkpoint's directory and the hub are not read."""
    moved = tmp_path / "moved"
    shutil.copytree(checkpoint, moved)
    graph = fused(moved, is_stored=False, scored=True)
    assert graph.find("trained") == fused(checkpoint, is_stored=False).find("trained"), "the same files"
    run(store, StageGraph(graph.find("trained")))
    shutil.rmtree(moved)
    record = run(store, graph)
    assert "test/bleu" in record.metrics
    model = read_model(artifact(store, graph, "trained"))
    reference = transformers.AutoModel.from_pretrained(checkpoint)
    encoded = model.contexts["prlm"].encoder(Tokens.from_lists([[2, 7, 8, 3]]))
    with torch.no_grad():
        expected = reference(torch.tensor([[2, 7, 8, 3]])).last_hidden_state
    torch.testing.assert_close(encoded.output.detach(), expected)
    again = artifact(store, graph, "trained") / "contexts" / "prlm" / "model.safetensors"
    assert again.samefile(artifact(store, graph, "prlm_encoder") / again.name), "stored once"
    manifest = store.manifest(graph.find("trained"))
    linked = again.stat().st_size + again.with_name("config.json").stat().st_size
    assert manifest.bytes == sum(file.bytes for file in manifest.files.values()) - linked


def test_a_finetuned_encoder_is_in_the_trained_model(store, checkpoint):
    context = context_of(checkpoint, is_frozen=False)
    graph = fused(checkpoint, context, is_stored=False)
    record = run(store, graph)
    frozen = run(store, fused(checkpoint, is_stored=False))
    assert record.metrics["parameters/trained"] > frozen.metrics["parameters/trained"]
    encoder = read_model(artifact(store, graph, "trained")).contexts["prlm"].encoder
    before = read_encoder(artifact(store, graph, "prlm_encoder")).state_dict()
    changed = differing(encoder, before)
    assert changed
    assert not [name for name in changed if ".layer.1." in name], "the state before the last layer is read"


def test_an_input_longer_than_the_position_table_is_refused(checkpoint):
    encoder = HuggingFaceEncoder.load(HuggingFaceEncoderConfig(checkpoint=str(checkpoint)))
    encoder(Tokens.from_lists([[5] * 160]))
    with pytest.raises(DataError, match="161 tokens, but BertModel has positions for 160: set the context's"):
        encoder(Tokens.from_lists([[5] * 161]))


def test_states_of_an_encoder_that_changes_are_refused(checkpoint):
    for settings in ({"is_frozen": False}, {"has_frozen_dropout": True}):
        with pytest.raises(ContractError, match="only a frozen encoder without dropout has states"):
            fused(checkpoint, context_of(checkpoint, **settings), is_stored=True)


def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TrialFailed, match=rf"{tmp_path}: not readable"):
        run(
            ArtifactStore.open(tmp_path / "store"),
            StageGraph(context_graph.released_encoder("prlm", context_of(tmp_path).encoder)),
        )


@pytest.mark.parametrize("is_centred", [False, True])
@pytest.mark.parametrize("kind", ["bi_lm", "uni_lm"])
def test_a_language_model_of_ours_takes_the_place_of_a_table(store, kind, is_centred):
    """SRC-ELMO of the two-tower model, TGT-ELMO of the other, stored and live; decoded from the artifact."""
    text = text_of()
    is_source = kind == "bi_lm"
    stream = "source 0" if is_source else "target"
    sizes = {"kind": kind, "d_model": 8, "num_layers": 1, "num_heads": 2, "ffn_dim": 8}
    phase = LanguageModelPhaseConfig(model=sizes, train={"max_steps": 2, "batch_tokens": 400})
    lm = pieces.language_model("lm", text, phase, seed=1, stream=stream)
    pooling = {"kind": "scalar_mix", "is_centred": is_centred}
    context = ContextConfig(encoder=sizes, pooling=pooling, prepend_id=3 if is_source else None)
    read = Side(stream=stream) if is_source else Side(stream=stream, prefix=(3,), suffix=())
    means = {"lm": context_graph.state_means("lm_means", text, context, read, lm)} if is_centred else {}
    side = "source_context" if is_source else "target_context"
    model = TransformerConfig(**SIZES, contexts={"lm": context}, **{side: "lm"}, tying="none")
    view = View(target_start=3)
    settings = TrainSettings(train=TRAIN, model=model, view=view)
    losses = []
    for is_stored in (False, True) if is_source else (False,):
        states = {}
        if is_stored:
            states = {stream: context_graph.frozen_states("lm_states", text, context, read, lm)}
        contexts = ContextStages({"lm": lm}, states, means)
        trained = pieces.train("trained", text, settings, seed=1, contexts=contexts)
        graph = scored_by_bleu(trained, text, view, DECODE.model_copy(update={"start_id": 3}))
        record = run(store, graph)
        losses.append(record.metrics["dev/loss"])
        used = read_model(artifact(store, graph, "trained")).named_contexts()["lm"]
        pretrained = read_encoder(artifact(store, graph, "lm")).state_dict()
        assert not differing(used.encoder, pretrained)
        if is_centred:
            rows = stream_of(store, graph, "train", stream)
            behind = [3] if is_source else []
            states = [
                torch.stack(used.encoder(Tokens.from_lists([[3, *row, *behind]])).layers)[:, 0]
                for row in rows
            ]
            stacked = torch.cat([layers[:, is_source:] for layers in states], dim=1)
            torch.testing.assert_close(used.pooling.means, stacked.mean(1), rtol=0, atol=1e-5)
    assert losses == pytest.approx(losses[:1] * len(losses), abs=1e-5)


def direct(checkpoint):
    """A trial: translation with a checkpoint in place of the source's embeddings."""
    encoder = HuggingFaceEncoderConfig(checkpoint=str(checkpoint))
    text = text_of(encoder, max_tokens=10)
    contexts = {"prlm": ContextConfig(encoder=HuggingFaceEncoderConfig())}
    model = TransformerConfig(**SIZES, contexts=contexts, source_context="prlm", tying="decoder")
    view = View(sources=(SIDE,))
    settings = TrainSettings(train=TRAIN, model=model, view=view)
    stages = ContextStages({"prlm": context_graph.released_encoder("prlm", encoder)})
    trained = pieces.train("trained", text, settings, seed=1, contexts=stages)
    return scored_by_bleu(trained, text, view)


def stream_of(store, graph, split, name=SIDE.stream):
    return read_encoded(artifact(store, graph, "bitext_encoded"), split).stream(name)


def test_text_beyond_the_positions_of_an_encoder_in_place_of_embeddings_is_refused_before_a_step(
    store, checkpoint, tmp_path
):
    """Also a single sentence of dev; a longer one of test is cut."""
    graph = direct(checkpoint)
    assert "test/bleu" in run(store, graph).metrics
    longest = max(int(stream_of(store, graph, split).lengths.max()) for split in ("train", "dev"))
    small = shutil.copytree(checkpoint, tmp_path / "small")
    for room in (longest - 1, longest):
        config = transformers.BertConfig.from_pretrained(small, max_position_embeddings=room)
        transformers.BertForMaskedLM(config).save_pretrained(small)
        if room < longest:
            message = rf"source text has up to {longest} tokens.* {room} positions; .*leave longer lines out"
            with pytest.raises(TrialFailed, match=message):
                run(store, direct(small))
        else:
            assert "test/bleu" in run(store, direct(small)).metrics


def test_a_random_encoder_has_the_architecture_and_nothing_else_of_a_pretrained_one(store, checkpoint):
    first, again, other = (
        fused(checkpoint, is_stored=True, random_seed=seed).find("prlm_random") for seed in (1, 1, 2)
    )
    assert first == again != other
    graph = fused(checkpoint, is_stored=True, random_seed=1)
    run(store, graph)
    random, released = (
        read_encoder(artifact(store, graph, name)).state_dict() for name in ("prlm_random", "prlm_encoder")
    )
    shapes, expected = ({k: v.shape for k, v in state.items()} for state in (random, released))
    assert shapes == expected
    weight = "model.encoder.layer.0.output.dense.weight"
    both = torch.stack([random[weight].flatten(), released[weight].flatten()])
    assert abs(torch.corrcoef(both)[0, 1]) < 0.3
    trained = read_model(artifact(store, graph, "trained")).contexts["prlm"].encoder.state_dict()
    assert torch.equal(trained[weight], random[weight])
