"""Which parts of a model are divided, what a worker holds of them, and layers that are computed twice."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nlgraft.basics.errors import ContractError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.model_config import LlamaConfig
from nlgraft.nn.transformers_lms import fresh_llama
from nlgraft.training.causal_text import causal_objective
from nlgraft.training.loop import make_optimizer, train
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.sharding import is_divided, layers_of, local, shard
from nlgraft.training.step import ObjectiveModule, Training
from nlgraft.training.train_config import TrainConfig
from nlgraft.training.train_state import optimizer_state
from tests.tiny_models import batch_of, build, examples, hugging_face
from tests.unit.training.toy import Recorder, ToyData, make_context

CPU = torch.device("cpu")
OBJECTIVE = Seq2SeqObjective(0.1)


@pytest.fixture
def group_of_four():
    """Be the second of four workers, of whom the others do nothing: shapes are right, values are not."""
    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def divided(case):
    model = build(case).train()
    module, layers = ObjectiveModule(model, OBJECTIVE), layers_of(model)
    shard(module, layers, CPU, is_bf16=False)
    return model, module, layers


@pytest.mark.parametrize(
    ("case", "counts"),
    [
        ("dual_transformer", {"EncoderLayer": 6, "DecoderLayer": 2}),
        ("trice", {"EncoderLayer": 2, "FineLayer": 1, "DecoderLayer": 2}),
        ("bert_fused", {"BertLayer": 3, "EncoderLayer": 2, "DecoderLayer": 2}),
        ("tgt_ft", {"LanguageModelLayer": 2, "EncoderLayer": 2, "DecoderLayer": 2}),
    ],
)
@pytest.mark.parametrize("optimizer", ["adamw", "nesterov"])
def test_a_worker_holds_its_share_of_everything(case, counts, optimizer, group_of_four):
    model, module, layers = divided(case)
    names = [type(layer).__name__.removeprefix("FSDP") for layer in layers]
    assert {name: names.count(name) for name in names} == counts
    optimizer = make_optimizer(model, TrainConfig(optimizer=optimizer))
    module(batch_of(examples(model))).loss_sum.backward()
    optimizer.step()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    moments = [tensor for tensor in optimizer_state(optimizer).values() if tensor.ndim]
    for tensors in (parameters, [parameter.grad for parameter in parameters], moments):
        share = sum(local(tensor).numel() for tensor in tensors) / sum(tensor.numel() for tensor in tensors)
        assert share == pytest.approx(1 / 4, abs=0.001)


def test_layers_are_divided_again_once_they_have_their_gradients(group_of_four):
    """Else the gradients of all layers would be whole until the end of the step."""
    model, module, layers = divided("transformer")
    seen = []

    def look(_module, _inputs, output):
        output.register_hook(lambda _: seen.extend(is_divided(next(layer.parameters())) for layer in layers))

    model.source_input.register_forward_hook(look)  # it has its gradient last
    module(batch_of(examples(model))).loss_sum.backward()
    assert seen == [True] * 4


def test_layers_are_gathered_in_bf16_and_all_else_in_fp32(group_of_four):
    """Autocast would keep a copy in bf16 of each weight of a layer that it finds in fp32."""
    model = fresh_llama(LlamaConfig(), 30, end_id=2, max_tokens=8, seed=1)
    module, seen = ObjectiveModule(model, causal_objective), {}
    shard(module, layers_of(model), CPU, is_bf16=True)

    def look(part, *_):
        seen[type(part).__name__] = part.weight.dtype

    for name, part in model.named_modules():
        if name.endswith(("q_proj", "embed_tokens")):
            part.register_forward_hook(look)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(Tokens.from_lists([[2, 3, 4], [2, 5]])).loss_sum.backward()
    assert seen == {"Linear": torch.bfloat16, "Embedding": torch.float32}
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_single_number_is_not_divided(group_of_four):
    with pytest.raises(ContractError, match=r"cannot divide .*pooling\.scale.*resources\.sharding"):
        divided("src_elmo")


@pytest.mark.parametrize("kind", ["bert", "gpt2", "mbart", "distilbert"])
def test_layers_of_released_models_are_found(kind):
    assert len({type(layer) for layer in layers_of(hugging_face(kind))}) == (2 if kind == "mbart" else 1)


def test_layers_that_are_computed_twice_give_the_same_bits(tmp_path):
    """Dropout included; afterwards the model is as before."""
    outcomes = []
    for is_on in (False, True):
        config = TrainConfig(max_steps=3, warmup_steps=0, average_last=1, activation_checkpointing=is_on)
        model, calls = build("transformer").train(), []
        model.decoder[1].ffn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        context = make_context(tmp_path / str(is_on), Recorder())
        train(Training(model, OBJECTIVE, ToyData(), config), context)
        assert len(calls) == (6 if is_on else 3)
        assert all("forward" not in vars(layer) for layer in layers_of(model))
        outcomes.append([tensor.tolist() for tensor in model.state_dict().values()])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("setting", ["compile", "activation_checkpointing"])
def test_what_acts_on_layers_is_refused_for_a_model_without_layers(tmp_path, setting):
    training = Training(
        torch.nn.Linear(2, 2), OBJECTIVE, ToyData(), TrainConfig(average_last=1, **{setting: True})
    )
    with pytest.raises(ContractError, match=f"train.{setting}"):
        train(training, make_context(tmp_path, Recorder()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:The .grad attribute:UserWarning")
@pytest.mark.slow  # most of a minute in the compiler
def test_compiled_layers_learn_the_same(tmp_path):
    """On batches of several lengths; afterwards the model is as before."""
    trained = []
    for is_on in (False, True):
        config = TrainConfig(
            max_steps=3, warmup_steps=0, average_last=1, compile=is_on, activation_checkpointing=is_on
        )
        model = build("transformer")
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        context = make_context(tmp_path / str(is_on), Recorder())
        train(Training(model, OBJECTIVE, ToyData(), config), context)
        assert all("forward" not in vars(layer) for layer in layers_of(model))
        trained.append(model.state_dict())
    torch.testing.assert_close(*trained, rtol=1e-4, atol=1e-5)
