"""Released checkpoints are looked at when a study is planned, in every system that takes one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tokenizers

from nlgraft.errors import DataError
from nlgraft.study.public import Study
from tests.contract.toys.multi_source import ARMS as TRICE
from tests.contract.toys.prlm_fusion import ARMS as FUSION
from tests.contract.toys.vocabulary_transfer import ARMS as VIPI
from tests.tiny_checkpoints import KINDS, LINES
from tests.unit.multi_source.test_documents import released_mbart

SPM = "sentencepiece.bpe.model"


def study(system, toy, metric="dev/bleu", **base):
    settings = {name: value for name, value in toy.items() if name != "data"} | base
    return {
        "name": "released",
        "system": f"trainables.{system}",
        "data": toy["data"] | ({"max_tokens": 60} if "task" in toy["data"] else {}),
        "base": {name: value for name, value in settings.items() if value is not None},
        "objective": {"metric": metric, "direction": "maximize"},
        "seeds": [1],
    }


def trice_mbart(path):
    upstream = {"checkpoint": {"directory": path, "language_ids": {"first": 121, "target": 122}}}
    return study("multi_source", TRICE["two sentences joined"], upstream=upstream)


def trice_bert(path):
    upstream = {"objective": "masked_tokens", "checkpoint": {"directory": path}}
    return study("multi_source", TRICE["two sentences joined"], upstream=upstream)


def exchange_mbart(path):
    corpus = {"corpus": "conlang", "train": 60, "dev": 6, "test": 4}
    train = {"max_steps": 2, "batch_tokens": 800}
    toy = {"data": {"upstream": corpus, "downstream": corpus | {"domain": "b"}}}
    return study(
        "embedding_transfer",
        toy,
        tokenizers={"downstream": {"vocab_size": 150, "is_shared": True}},
        upstream={"objective": "denoising", "checkpoint": path, "start_id": 122},
        generator={"max_steps": 2, "batch_tokens": 800},
        transfer={"method": "patt_eg", "sides": "decoder"},
        downstream={"train": train},
    )


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
    "prlm_fusion": (fusion, "bert"),
    "vocabulary_transfer": (vipi, "bert"),
}


def released(kind, directory):
    directory.mkdir()
    if kind == "mbart":
        released_mbart(directory, LINES)
        return directory
    write_tokenizer, model = KINDS[kind]
    write_tokenizer(directory, LINES)
    ids = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    model(ids).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    where = tmp_path_factory.mktemp("released")
    return {kind: released(kind, where / kind) for kind in ("bert", "mbart", "t5")}


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
    assert problems(make(str(directory))) == [f"{weights}: not a whole safetensors file; download it again"]
    weights.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"garbage" * 100)
    [problem] = problems(make(str(directory)))
    assert "pytorch_model.bin: not a whole file of torch's weights" in problem
    (directory / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "a pointer of Git LFS" in problems(make(str(directory)))[0]
    (directory / "pytorch_model.bin").unlink()
    for name in ("tokenizer.json", "vocab.txt", SPM):
        (directory / name).unlink(missing_ok=True)
    found = problems(make(str(directory)))
    assert [problem.split(";")[0].split(": ")[1] for problem in found] == ["no weights", "no tokenizer"]


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_directory_that_is_not_there_is_refused_by_the_plan(system, tmp_path):
    [problem] = problems(SYSTEMS[system][0](str(tmp_path / "no" / "where")))
    assert "no such directory" in problem or "no directory" in problem
    assert str(tmp_path) in problem


@pytest.mark.parametrize("system", [name for name in SYSTEMS if name != "prlm_fusion"])
def test_another_type_is_refused_by_its_name(system, checkpoints):
    make, kind = SYSTEMS[system]
    found = problems(make(str(checkpoints["t5"])))
    assert f"model_type is 't5', allowed is {kind}" in found[0]


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
