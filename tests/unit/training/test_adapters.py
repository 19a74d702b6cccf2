"""Parts of pretrained models that are finetuned, in trials of two systems; their sharding is an invariant."""

import torch

from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.reading.system_import import load_system
from nlgraft.training.adapters import top_layers
from nlgraft.training.models import read_encoder, read_model
from tests.contract.effects import changed, config_of, graph_of
from tests.contract.toy_arms import arms_of
from tests.tensors import differing
from tests.unit.stages.runs import StopsAt, artifact, finish, run


def arm_of(path, arm, **settings):
    system, values = load_system(path), arms_of(path)[arm]
    for setting, value in settings.items():
        values = changed(values, setting.replace("__", "."), value)
    return graph_of(system, config_of(system, values))


def test_adapters_change_matrices_by_their_rank_and_leave_a_plain_model(store, tmp_path):
    """Stopped and resumed as well: the same bits."""
    graph = arm_of("trainables.prlm_fusion", "sum, adapters")
    assert run(store, graph, StopsAt("trained", 2)).state == "stopped"
    finish(store, graph)
    trained = read_model(artifact(store, graph, "trained"))
    for name in ("gpt", "electra"):
        before = read_encoder(artifact(store, graph, f"{name}_pretrained")).state_dict()
        after = trained.named_contexts()[name].encoder.state_dict()
        assert before.keys() == after.keys()
        moved = differing(before, after)
        # The second of two layers is read; the matrices of the first are adapted.
        assert 4 <= len(moved) <= 6
        for key in moved:
            assert torch.linalg.matrix_rank(after[key] - before[key], rtol=1e-3) == 2, key
    another = ArtifactStore.open(tmp_path / "another")
    finish(another, graph)
    assert not differing(trained.state_dict(), read_model(artifact(another, graph, "trained")).state_dict())


def test_top_layers_are_the_last_of_each_stack():
    names = {"a.layers.0.w", "a.layers.9.w", "a.layers.10.parts.0.w", "b.1.w", "b.2.w", "norm.w"}
    assert top_layers(names, 1) == {"a.layers.10.parts.0.w", "b.2.w"}
    assert top_layers(names, 2) == names - {"a.layers.0.w", "norm.w"}


def test_top_layers_alone_are_finetuned(store):
    path, arm = "trainables.multi_source", "dual transformer, pretrained"
    graph = arm_of(path, arm, multi_source__train__average_last=1)
    finish(store, graph)
    before, after = (
        read_model(artifact(store, graph, name)).state_dict() for name in ("single_source", "multi_source")
    )
    shared = before.keys() & after.keys()
    moved = differing({name: before[name] for name in shared}, {name: after[name] for name in shared})
    assert moved
    assert moved <= top_layers(shared, 1)
