"""Released checkpoints are looked at when a study is planned, in every system that takes one."""

import json
import shutil
from pathlib import Path

import pytest
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from nlgraft.basics.errors import DataError
from nlgraft.nn.checkpoint_files import CAUSAL_TYPES, ENCODERS
from nlgraft.study.public import Study
from tests.contract.toy_arms import study_of
from tests.contract.toys.embedding_transfer import ARMS as EXCHANGE
from tests.contract.toys.llm_vocabulary import ARMS as LLM
from tests.contract.toys.multi_source import ARMS as TRICE
from tests.contract.toys.prlm_fusion import ARMS as FUSION
from tests.contract.toys.vocabulary_transfer import ARMS as VIPI
from tests.released_translators import write_marian
from tests.tiny_causal_lms import RELEASED, release
from tests.tiny_checkpoints import LINES
from tests.unit.multi_source.test_documents import released_mbart

SPM = "sentencepiece.bpe.model"


def study(system, toy, metric="dev/bleu", direction="maximize", **base):
    settings = {name: value for name, value in (toy | base).items() if value is not None}
    if "task" in toy["data"]:
        settings["data"] = toy["data"] | {"max_tokens": 60}
    return study_of(system, settings, metric, direction)


def trice_mbart(path):
    upstream = {"checkpoint": {"directory": path, "language_ids": {"first": 121, "target": 122}}}
    return study("multi_source", TRICE["two sentences joined"], upstream=upstream)


def trice_bert(path):
    upstream = {"objective": "masked_tokens", "checkpoint": {"directory": path}}
    return study("multi_source", TRICE["two sentences joined"], upstream=upstream)


def exchange(upstream, *, is_shared=False):
    corpus = {"corpus": "conlang", "train": 60, "dev": 6, "test": 4}
    train = {"max_steps": 2, "batch_tokens": 800}
    toy = {"data": {"upstream": corpus, "downstream": corpus | {"domain": "b"}, "max_tokens": 60}}
    return study(
        "embedding_transfer",
        toy,
        tokenizers={"downstream": {"vocab_size": 150, "is_shared": is_shared}},
        upstream=upstream,
        generator={"max_steps": 2, "batch_tokens": 800},
        transfer={"method": "patt_eg", "sides": "decoder"},
        downstream={"train": train},
    )


def exchange_mbart(path):
    return exchange({"objective": "denoising", "checkpoint": path, "start_id": 122}, is_shared=True)


def exchange_marian(path):
    return exchange({"objective": "translation", "checkpoint": path})


def exchange_bert(path):
    return exchange({"objective": "masked_tokens", "checkpoint": path})


def exchange_masked_lm(path):
    toy = EXCHANGE["masked LM, focus"]
    masked_lm = {"checkpoint": path, "downstream_tokenizer": {"vocab_size": 180}}
    settings = {"masked_lm": masked_lm, "upstream": {**toy["upstream"]}}
    return study(
        "embedding_transfer",
        toy | {"data": toy["data"] | {"max_tokens": 60}},
        "dev/loss",
        "minimize",
        **settings,
    )


def llm(path):
    data = {"downstream": LLM["extend"]["data"]["downstream"]}
    causal_lm = {"checkpoint": path, "max_tokens": 24}
    toy = LLM["extend"] | {"data": data}
    return study("llm_vocabulary", toy, "dev/bits_per_byte", "minimize", causal_lm=causal_lm, upstream=None)


def llm_donor(path):
    toy = LLM["extend, omp"]
    vocabulary = toy["vocabulary"] | {"donor": {"checkpoint": path}}
    return study("llm_vocabulary", toy, "dev/bits_per_byte", "minimize", vocabulary=vocabulary)


def fusion(path):
    prlms = {"theirs": {"kind": "released", "checkpoint": path}}
    merged = {"prlms": ["theirs"], "layers": -1}
    toy = next(iter(FUSION.values()))
    return study("prlm_fusion", toy, prlms=prlms, fusion=merged, pretraining=None)


def vipi(path):
    arm = VIPI["vipi"]
    toy = arm | {"data": {name: text for name, text in arm["data"].items() if name != "upstream"}}
    return study("vocabulary_transfer", toy, "dev/accuracy", masked_lm={"checkpoint": path}, upstream=None)


SYSTEMS = {
    "multi_source, mBART": (trice_mbart, "mbart"),
    "multi_source, BERT": (trice_bert, "bert"),
    "embedding_transfer, mBART": (exchange_mbart, "mbart"),
    "embedding_transfer, Marian": (exchange_marian, "marian"),
    "embedding_transfer, BERT": (exchange_bert, "bert"),
    "embedding_transfer, masked LM": (exchange_masked_lm, "bert"),
    "llm_vocabulary": (llm, "gpt2"),
    "llm_vocabulary, donor": (llm_donor, "gpt2"),
    "prlm_fusion": (fusion, "bert"),
    "vocabulary_transfer": (vipi, "bert"),
}


TYPES = ("bert", "gpt2", "marian", "mbart", "t5")


def released(kind, directory):
    if kind not in ("mbart", "marian"):
        return release(directory, kind)
    directory.mkdir()
    if kind == "mbart":
        released_mbart(directory, LINES)
    else:
        write_marian(directory, LINES, LINES)
    return directory


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    where = tmp_path_factory.mktemp("released")
    return {kind: released(kind, where / kind) for kind in TYPES}


@pytest.fixture
def copied(checkpoints, tmp_path):
    return lambda kind: Path(shutil.copytree(checkpoints[kind], tmp_path / kind))


def problems(document):
    with pytest.raises(DataError) as caught:
        Study.from_dict(document).plan()
    return str(caught.value).split("\n")


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_checkpoint_that_can_be_read_is_planned(system, checkpoints):
    make, kind = SYSTEMS[system]
    assert Study.from_dict(make(str(checkpoints[kind]))).plan().trials


@pytest.mark.parametrize("system", SYSTEMS)
def test_broken_files_are_refused_by_the_plan(system, copied):
    make, kind = SYSTEMS[system]
    directory = copied(kind)
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    [problem] = problems(make(str(directory)))
    assert f"{weights}: not a whole safetensors file" in problem
    weights.write_bytes((2).to_bytes(8, "little") + b"{}")  # whole, but without weights
    assert problems(make(str(directory))) == [problem]
    weights.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"garbage" * 100)
    [problem] = problems(make(str(directory)))
    assert "pytorch_model.bin: not a whole file of torch's weights" in problem
    (directory / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "a pointer of Git LFS" in problems(make(str(directory)))[0]
    (directory / "pytorch_model.bin").unlink()
    for name in ("tokenizer.json", "vocab.txt", "source.spm", SPM):
        (directory / name).unlink(missing_ok=True)
    messages = problems(make(str(directory)))
    assert [problem.split(";")[0].split(": ")[1] for problem in messages] == ["no weights", "no tokenizer"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_directory_that_is_not_there_is_refused_by_the_plan(system, tmp_path):
    [problem] = problems(SYSTEMS[system][0](str(tmp_path / "no" / "where")))
    assert "no such directory" in problem or "no directory" in problem
    assert str(tmp_path) in problem


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "prlm_fusion"])
def test_another_type_is_refused_by_its_name(system, checkpoints):
    make, kind = SYSTEMS[system]
    messages = problems(make(str(checkpoints["t5"])))
    allowed = "an encoder-decoder, allowed is a decoder alone" if kind == "gpt2" else f"allowed is {kind}"
    assert f"model_type is 't5', {allowed}" in messages[0]


@pytest.mark.parametrize("make", [llm, llm_donor])
@pytest.mark.parametrize(
    ("kind", "what"), [("bert", "encoder"), ("marian", "encoder-decoder"), ("mbart", "encoder-decoder")]
)
def test_what_is_no_decoder_alone_is_no_causal_model(make, kind, what, checkpoints):
    """transformers would build each of these as a causal model, a BERT's positions reading later ones."""
    assert kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    where = checkpoints[kind] / "config.json"
    expected = (
        f"{where}: model_type is '{kind}', an {what}, allowed is a decoder alone; give a checkpoint of "
    )
    assert problems(make(str(checkpoints[kind])))[0] == expected + CAUSAL_TYPES


@pytest.mark.parametrize("make", [llm, llm_donor])
@pytest.mark.parametrize("kind", RELEASED)
def test_every_causal_model_of_the_tests_is_planned(make, kind, tmp_path):
    assert Study.from_dict(make(str(release(tmp_path / kind, kind)))).plan().trials


def test_encoders_are_what_transformers_trains_on_masked_tokens():
    assert set(ENCODERS) <= set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)


@pytest.mark.parametrize("kind", ["marian", "t5"])
def test_a_translator_without_languages_is_refused_by_multi_source(kind, checkpoints):
    messages = problems(trice_mbart(str(checkpoints[kind])))
    assert f"model_type is '{kind}', allowed is mbart or m2m_100" in messages[0]


def test_any_type_is_a_context(checkpoints):
    assert Study.from_dict(fusion(str(checkpoints["t5"]))).plan().trials


@pytest.mark.parametrize(
    ("file", "changes"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "MBart50Tokenizer"}),
        ("tokenizer_config.json", {"language_codes": "ML50"}),
        ("config.json", {"vocab_size": 250_054}),
    ],
)
def test_an_mbart_50_is_not_taken_for_cc25(copied, file, changes):
    path = copied("mbart") / file
    settings = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(settings | changes))
    [problem] = problems(exchange_mbart(str(path.parent)))
    assert "an mBART-50, whose lines begin with their language" in problem
    assert "in upstream.languages, or train with multi_source" in problem
    assert Study.from_dict(trice_mbart(str(path.parent))).plan().trials


def test_weights_in_parts_must_all_be_there(copied):
    directory = copied("bert")
    (directory / "model.safetensors").rename(directory / "model-1.safetensors")
    parts = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(parts))
    [problem] = problems(fusion(str(directory)))
    assert "model-2.safetensors: missing, though model.safetensors.index.json names it" in problem
