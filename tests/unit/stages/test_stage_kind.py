from collections.abc import Mapping
from dataclasses import field

import pytest

from nlgraft.basics.errors import ContractError
from nlgraft.pipeline.checkpoints import Checkpoints
from nlgraft.pipeline.local_files import LocalFiles
from nlgraft.pipeline.stage import Stage, StageContext
from nlgraft.stages.stage_kind import Inputs, NoSettings, Settings, StageKind, T


class _Settings(Settings):
    steps: int = 3
    betas: tuple[float, float] = (0.9, 0.98)


class _Inputs(Inputs[T]):
    encoded: T
    start: T | None = None
    splits: Mapping[str, T] = field(default_factory=dict)


KIND = StageKind("package.module:function", _Settings, _Inputs, version=2, workers="train")


def _leaf(name):
    return Stage(name=name, run="package.module:leaf")


def _context(stage, tmp_path):
    return StageContext(
        stage=stage,
        directory=tmp_path,
        inputs={name: tmp_path / name for name in stage.inputs},
        checkpoints=Checkpoints(LocalFiles(tmp_path), "checkpoints"),
    )


def test_a_running_stage_reads_back_what_the_graph_asked_for(tmp_path):
    inputs = _Inputs(encoded=_leaf("text"), splits={"dev": _leaf("dev"), "test": _leaf("test")})
    stage = KIND.stage("trained", _Settings(steps=5), inputs, seed=7)
    settings, directories = KIND.read(_context(stage, tmp_path))
    assert settings == _Settings(steps=5)
    assert settings.betas == (0.9, 0.98)
    assert directories == _Inputs(
        encoded=tmp_path / "encoded",
        splits={"dev": tmp_path / "splits/dev", "test": tmp_path / "splits/test"},
    )
    assert (stage.version, stage.seed, stage.is_training) == (2, 7, True)


def test_every_setting_and_input_enters_the_fingerprint():
    text = _leaf("text")
    stages = [
        KIND.stage("trained", _Settings(), _Inputs(encoded=text)),
        KIND.stage("trained", _Settings(steps=4), _Inputs(encoded=text)),
        KIND.stage("trained", _Settings(), _Inputs(encoded=text, start=text)),
        KIND.stage("trained", _Settings(), _Inputs(encoded=text, splits={"dev": text})),
    ]
    assert len({stage.fingerprint for stage in stages}) == len(stages)


def test_an_input_that_the_kind_does_not_have_is_refused(tmp_path):
    stage = Stage(name="trained", run=KIND.run, inputs={"text": _leaf("text")}, config={"steps": 3})
    with pytest.raises(ContractError, match=r"stage trained: inputs of package\.module:function: .*'text'"):
        KIND.read(_context(stage, tmp_path))


def test_a_stage_without_settings_has_an_empty_slice():
    kind = StageKind("package.module:function", NoSettings, Inputs)
    assert kind.stage("copied", NoSettings(), Inputs()).config == {}
