"""What a training takes of a GPU, as planned and as measured in bytes that autograd keeps on a CPU."""

import pytest
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.model_config import LlamaConfig
from nlgraft.nn.transformers_lms import fresh_llama
from nlgraft.pipeline.stage import Stage, Work
from nlgraft.study.data.study import Resources
from nlgraft.study.planning.cost import gpu_memory, gpu_notes
from nlgraft.training.causal_text import causal_objective
from nlgraft.training.sharding import layers_of, wrapped

SEVEN_BILLION = {"llama": {"d_model": 4096, "num_layers": 32, "ffn_dim": 11008, "vocab_size": 32000}}


def training(num_parameters, tokens, config, **train):
    work = Work(num_steps=5, tokens_per_step=tokens, num_parameters=num_parameters)
    config = {**config, "train": {"accumulation": 2, "optimizer": "adamw", **train}}
    return Stage(name="finetuned", run="m:f", config=config, work=work, workers="train")


@pytest.mark.parametrize("is_on", [False, True])
@pytest.mark.parametrize(
    ("width", "depth", "inner", "size"), [(64, 4, 172, 300), (64, 6, 256, 90), (96, 4, 256, 500)]
)
def test_activations_are_those_that_autograd_keeps(width, depth, inner, size, is_on):
    config = LlamaConfig(d_model=width, num_layers=depth, num_heads=4, ffn_dim=inner)
    model = fresh_llama(config, size, end_id=2, max_tokens=64, seed=1)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    tokens = Tokens.from_lists([[3 + (row + place) % 80 for place in range(65)] for row in range(4)])
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with wrapped(layers_of(model), is_recomputed=is_on, is_compiled=False), hooks:
        loss = causal_objective(model, tokens)
    measured = sum(num_bytes for place, (num_bytes, _) in kept.items() if place not in weights)
    settings = {"llama": {**config.model_dump(), "vocab_size": size}}
    planned = gpu_memory(training(10, 512, settings, activation_checkpointing=is_on), Resources())
    later = 2 * size + is_on * (11 * width + 4 * inner)  # gradients of logits, a layer that is computed again
    activations = [*planned.values()][-1] - 4 * 256 * later
    assert loss.num_tokens == 256
    assert activations == pytest.approx(measured, rel=0.15)


def test_what_a_gpu_does_not_hold_is_a_problem_and_named_with_what_helps():
    stage = training(7 * 10**9, 2 * 4096, SEVEN_BILLION, activation_checkpointing=True)
    alone = Resources(gpus_per_worker=1, gpu_memory=80)
    [text], [problem] = gpu_notes([stage], alone)
    assert "weights 28.0 GB, gradients 28.0 GB, optimiser 56.0 GB" in text
    assert problem.path == "resources.gpu_memory"
    assert text in problem.message
    assert "a GPU has 80.0 GB; what helps: resources.sharding: full" in problem.message
    divided = alone.model_copy(update={"workers": 4, "sharding": "full"})
    [text], problems = gpu_notes([stage], divided)
    assert "weights 7.0 GB, gradients 7.0 GB, optimiser 14.0 GB, the whole model" in text
    assert "28.0 GB" in text
    assert problems == []
    [problem] = gpu_notes([stage], divided.model_copy(update={"workers": 2}))[1]
    assert "what helps: more workers" in problem.message
    frozen = gpu_memory(training(10**9, 10, {"lora": {"rank": 8}}), alone)
    assert [frozen[part] for part in ("weights", "gradients", "optimiser")] == [4e9, 0, 0]
    momentum = gpu_memory(training(10**9, 10, {}, optimizer="nesterov"), alone)
    assert momentum["optimiser"] == 4e9


def test_where_no_gpu_is_asked_for_or_nothing_is_known_nothing_is_said():
    assert gpu_notes([training(10**9, 10, {})], Resources(gpu_memory=1)) == ([], [])
    assert gpu_notes([training(None, 10, {})], Resources(gpus_per_worker=1)) == ([], [])
    unsaid = {"tokenizer": {"vocab_size": None}, **SEVEN_BILLION}
    assert gpu_memory(training(10, 10, unsaid), Resources()) == gpu_memory(
        training(10, 10, SEVEN_BILLION), Resources()
    )
