"""The study's own language models: objectives by hand, and what their stage writes."""

import pytest
import torch
import torch.nn.functional as F
import transformers

from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch
from nlgraft.stages.run.text_stages import open_tokenizer, read_encoded
from nlgraft.text.corpora import read_corpus
from tests.contract.toys.prlm_fusion import ARMS
from tests.unit.stages.runs import artifact, run
from trainables.prlm_fusion.config import BertPrlm, Config, DistilbertPrlm, ElectraPrlm, GptPrlm
from trainables.prlm_fusion.graph import stage_graph
from trainables.prlm_fusion.pretraining import build, true_ids

SIZES = {"d_model": 16, "num_heads": 2, "ffn_dim": 24, "num_layers": 3, "dropout": 0.0}
NO = NOT_PREDICTED
# two lines, one of them padded; 4 is the mask, 2 and 3 stand around a line
BATCH = MaskedBatch.of([[2, 4, 7, 8, 3], [2, 9, 3]], [[NO, 6, NO, 5, NO], [NO, 9, NO]], 0)
CLASSES = {
    "bert": transformers.BertModel,
    "gpt": transformers.GPT2Model,
    "electra": transformers.ElectraModel,
    "distilbert": transformers.DistilBertModel,
}


def built(prlm, teacher=None):
    return build(prlm, 12, pad_id=0, max_tokens=8, seed=1, teacher=teacher, masked_share=0.15).eval()


def test_masked_tokens_alone_are_predicted():
    model = built(BertPrlm(model=SIZES))
    loss = model(BATCH)
    ids, valid = BATCH.tokens.ids, BATCH.tokens.valid.long()
    log_probabilities = model.result(input_ids=ids, attention_mask=valid).logits.log_softmax(-1)
    expected = -sum(
        log_probabilities[row, place, true] for row, place, true in ((0, 1, 6), (0, 3, 5), (1, 1, 9))
    )
    assert loss.num_tokens == 3
    torch.testing.assert_close(loss.loss_sum, expected)


def test_a_left_to_right_model_predicts_every_token_but_the_first_from_those_before():
    model = built(GptPrlm(model=SIZES))
    loss = model(BATCH)
    assert loss.num_tokens == 4 + 2
    expected = torch.zeros(())
    for line in ([2, 6, 7, 5, 3], [2, 9, 3]):
        for place in range(1, len(line)):
            logits = model.result(input_ids=torch.tensor([line[:place]])).logits[0, -1]
            expected = expected - logits.log_softmax(-1)[line[place]]
    torch.testing.assert_close(loss.loss_sum, expected)


def test_replaced_tokens_stand_at_masked_positions_and_are_told_from_true_ones():
    """A token that the generator restores counts as true (Clark et al. 2020, section 2)."""
    model = built(ElectraPrlm(model=SIZES, discriminator_weight=50.0))
    logits = torch.full((3, 12), -1e9)
    for row, token in enumerate((6, 10, 11)):  # the first is the true one
        logits[row, token] = 0.0
    assert model.corrupted(BATCH, logits).tolist() == [[2, 6, 7, 10, 3], [2, 11, 3, 0, 0]]
    torch.manual_seed(3)
    loss = model(BATCH)
    torch.manual_seed(3)
    _, logits = model.generator(BATCH)
    read, truth, valid = model.corrupted(BATCH, logits), true_ids(BATCH), BATCH.tokens.valid
    scores = model.discriminator(input_ids=read, attention_mask=valid.long()).logits[valid]
    detection = F.binary_cross_entropy_with_logits(scores, (read != truth)[valid].float(), reduction="sum")
    masked = F.cross_entropy(logits, torch.tensor([6, 5, 9]), reduction="sum")
    torch.testing.assert_close(loss.loss_sum, masked + 50 * 0.15 * detection)
    generator, discriminator = model.generator.model.electra, model.discriminator.electra
    assert generator.embeddings is discriminator.embeddings
    assert generator.config.hidden_size == discriminator.config.hidden_size / 2


@pytest.mark.parametrize("prlm", [BertPrlm, GptPrlm, ElectraPrlm])
def test_weights_begin_as_large_as_berts_relative_to_their_width(prlm):
    """0.02 at width 768 is sqrt(12) times as much at width 64; random controls read it from the config."""
    result = built(prlm(model={**SIZES, "d_model": 64, "ffn_dim": 256})).result
    assert result.config.initializer_range == pytest.approx(0.0692820323)
    table = result.get_input_embeddings().weight
    assert table[1:].std().item() == pytest.approx(0.0692820323, rel=0.1)


def test_a_student_begins_with_layers_of_its_teacher_and_equals_it_at_its_depth(tmp_path):
    """With all of the teacher's layers it is the teacher: no distance, and the teacher's cross-entropy."""
    teacher = built(BertPrlm(model=SIZES))
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    teacher.result.save_pretrained(tmp_path)
    whole = DistilbertPrlm(teacher="bert", num_layers=3, soft_weight=7.0, hard_weight=1.0, cosine_weight=9.0)
    same = built(whole, tmp_path)
    torch.testing.assert_close(same(BATCH).loss_sum, teacher(BATCH).loss_sum, rtol=1e-4, atol=1e-4)
    student = built(DistilbertPrlm(teacher="bert", num_layers=2), tmp_path)
    state, teacher_state = student.result.state_dict(), teacher.result.state_dict()
    for index, source in ((0, 0), (1, 1)):
        assert torch.equal(
            state[f"distilbert.transformer.layer.{index}.ffn.lin1.weight"],
            teacher_state[f"bert.encoder.layer.{source}.intermediate.dense.weight"],
        )
    loss = student.train()(BATCH)
    loss.loss_sum.backward()
    assert all(p.grad is None for p in student.teacher.parameters())
    assert not any(module.training for module in student.teacher.modules())


@pytest.mark.parametrize("kind", ["bert", "gpt", "electra", "distilbert"])
def test_losses_of_parts_of_a_batch_add_up(kind, tmp_path, monkeypatch):
    """So that workers, which read parts of it, learn as one does."""
    teacher = built(BertPrlm(model=SIZES))
    teacher.result.save_pretrained(tmp_path)
    prlms = {
        "bert": BertPrlm(model=SIZES),
        "gpt": GptPrlm(model=SIZES),
        "electra": ElectraPrlm(model=SIZES),
        "distilbert": DistilbertPrlm(teacher="bert", num_layers=2, cosine_weight=9.0),
    }
    model = built(prlms[kind], tmp_path)
    if kind == "electra":  # what is proposed is drawn
        monkeypatch.setattr(model, "corrupted", lambda batch, _logits: batch.tokens.ids)
    first = MaskedBatch.of([[2, 4, 7, 8, 3]], [[NO, 6, NO, 5, NO]], 0)
    second = MaskedBatch.of([[2, 9, 3]], [[NO, 9, NO]], 0)
    whole, parts = model(BATCH), [model(first), model(second)]
    assert whole.num_tokens == sum(part.num_tokens for part in parts)
    torch.testing.assert_close(whole.loss_sum, sum(part.loss_sum for part in parts))


def test_each_is_a_directory_of_transformers_with_its_tokenizer(store):
    graph = stage_graph(Config(**ARMS["four"]), seed=1, splits=("dev",))
    record = run(store, graph)
    assert {f"{kind}/dev_loss" for kind in CLASSES} <= set(record.metrics)
    line = read_corpus(artifact(store, graph, "upstream_corpus") / "dev").sources[0][0]
    for kind, base in CLASSES.items():
        directory = artifact(store, graph, f"{kind}_pretrained")
        model = transformers.AutoModel.from_pretrained(directory)
        assert isinstance(model, base)
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        ids = tokenizer(line)["input_ids"]
        assert tokenizer.convert_ids_to_tokens([ids[0], ids[-1]]) == ["[CLS]", "[SEP]"]
        assert open_tokenizer(directory).encode([line]) == [ids]
        encoded = read_encoded(artifact(store, graph, f"{kind}_encoded"), "dev").stream(f"context {kind}")
        task = read_corpus(artifact(store, graph, "downstream_corpus") / "dev").sources[0]
        assert encoded[0].tolist() == tokenizer(task[0])["input_ids"], "begin and end once, no end of ours"


@pytest.mark.parametrize("kind", ["bert", "gpt", "electra"])
def test_a_plan_knows_about_how_many_weights_a_pretraining_trains(kind):
    """Against the model that is built: what an estimate leaves out are biases, norms and positions."""
    sizes = {"d_model": 64, "num_heads": 4, "ffn_dim": 256, "num_layers": 3}
    prlm = {"bert": BertPrlm, "gpt": GptPrlm, "electra": ElectraPrlm}[kind](model=sizes)
    config = Config(**{**ARMS["sum"], "prlms": {"bert": prlm}})
    work = stage_graph(config, seed=1, splits=("dev",)).find("bert_pretrained").work
    model = build(prlm, 150, pad_id=0, max_tokens=8, seed=1, teacher=None, masked_share=0.15)
    weights = sum(parameter.numel() for parameter in model.parameters())
    assert work.num_parameters == pytest.approx(weights, rel=0.1)
