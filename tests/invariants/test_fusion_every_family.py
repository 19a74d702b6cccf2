"""Invariants that hold for every family."""

import pytest
import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model_config import GenerationConfig
from tests.tensors import assert_near
from tests.tiny_models import CASES, batch_of, build, examples, logits_of

every_family = pytest.mark.parametrize("family", list(CASES))


def views():
    """Every family with every view of the data that it can be trained on."""
    for family, case in CASES.items():
        config = case().config
        yield family, "all"
        if config.num_sources > 1:
            yield family, "one_source"
        frozen = [context.encoder.kind for context in config.contexts.values() if context.is_frozen]
        if frozen and "own_embeddings" not in frozen and not config.target_context:
            yield family, "frozen_states"


def precomputed(model, batch):
    """The batch with the hidden states of its frozen contexts instead of their tokens."""
    contexts = {name: t.with_layers(model.contexts[name].layers(t)) for name, t in batch.contexts.items()}
    sources = batch.sources
    if model.config.source_context:
        sources = [t.with_layers(model.source_embedding.layers(t)) for t in sources]
    return Batch(sources, batch.target_input, batch.target_output, contexts)


@pytest.mark.parametrize(("family", "view"), list(views()))
def test_each_sentence_alone_equals_the_batch(family, view):
    """Invariants F5, F17 and F37: padding, by the batch or by hand, changes nothing in any view."""
    model = build(family)
    rows = examples(model, num_sources=1 if view == "one_source" else None)
    batch = batch_of(rows, extra_padding=3)
    together = logits_of(model, precomputed(model, batch) if view == "frozen_states" else batch)
    for index, row in enumerate(rows):
        alone = logits_of(model, batch_of([row]))[0]
        assert_near(together[index, : len(row.target)], alone)


@every_family
def test_logits_do_not_see_the_future(family):
    """Invariants F20 and F26: changing y from j on leaves the logits before j."""
    model = build(family)
    rows = examples(model)
    batch = batch_of(rows)
    before = logits_of(model, batch)
    batch.target_input.ids[:, 2:] = 9
    after = logits_of(model, batch)
    assert_near(after[:, :2], before[:, :2])
    assert not torch.allclose(after[:, 2:], before[:, 2:])


@every_family
def test_cached_equals_uncached_under_random_reorders(family):
    """Invariant F27: beams that are shuffled at every step, sentences that leave, against whole prefixes."""
    model = build(family)
    rows = examples(model)
    beam, draw = 3, torch.Generator().manual_seed(7)
    batch = batch_of(rows)
    state = model.start(model.encode(batch.sources, batch.contexts))
    state.expand(beam)
    alive = list(range(len(rows)))
    prefixes = [[[2] for _ in range(beam)] for _ in rows]
    for step in range(6):
        newest = torch.tensor([prefix[-1] for i in alive for prefix in prefixes[i]])
        logits = model.logits(model.decode_step(state, newest))
        whole = [
            type(rows[i])(rows[i].sources, prefix, rows[i].contexts) for i in alive for prefix in prefixes[i]
        ]
        assert_near(logits, logits_of(model, batch_of(whole))[:, -1])
        parents = torch.randint(beam, (len(alive), beam), generator=draw)
        state.reorder(parents)
        for place, i in enumerate(alive):
            words = torch.randint(8, 40, (beam,), generator=draw).tolist()
            moved = [prefixes[i][parent] for parent in parents[place].tolist()]
            prefixes[i] = [[*prefix, word] for prefix, word in zip(moved, words, strict=True)]
        if step == 2:
            state.select(torch.tensor([0, 2]))
            alive = [alive[0], alive[2]]


@every_family
def test_beam_search_equals_itself_on_single_sentences(family):
    """Invariants F27 and F37 under the real search; scores equal teacher-forced ones."""
    model = build(family)
    rows = examples(model, count=4)
    batch = batch_of(rows)
    config = GenerationConfig(beam=3, num_return=2, max_length_offset=4, stopping="exact")
    outputs = beam_search(model, batch.sources, batch.contexts, config)
    for row, hypotheses in zip(rows, outputs, strict=True):
        alone = batch_of([row])
        [expected] = beam_search(model, alone.sources, alone.contexts, config)
        assert [h.ids for h in hypotheses] == [h.ids for h in expected]
        for hypothesis in hypotheses:
            forced = batch_of([type(row)(row.sources, [2, *hypothesis.ids], row.contexts)])
            logs = logits_of(model, forced)[0].detach().log_softmax(-1)
            settings = torch.tensor([*hypothesis.ids, 3])
            total = float(logs.gather(1, settings[:, None]).sum())
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-5)


@every_family
def test_every_trainable_parameter_gets_a_gradient(family):
    """Invariants F21 and F24, and DDP without unused-parameter tricks."""
    model = build(family).train()
    logits_of(model, batch_of(examples(model))).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name


@every_family
def test_absent_context_or_source_is_never_nan(family):
    """Invariant F7: a sentence without tokens in a source or context; gradients are numbers too."""
    model = build(family)
    rows = examples(model)
    empty = type(rows[0])(
        [rows[0].sources[0], *([] for _ in rows[0].sources[1:])],
        rows[0].target,
        {name: [] for name in rows[0].contexts},
    )
    batch = batch_of([empty, *rows[1:]])
    logits = logits_of(model, batch)
    assert logits[batch.target_input.valid].isfinite().all()
    logits[batch.target_input.valid].square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    together = logits_of(model, batch_of(rows))
    assert_near(logits[1, : len(rows[1].target)], together[1, : len(rows[1].target)])


@every_family
def test_bf16_autocast_trains(family):
    """Mixed precision in every family: logits close to those of fp32, gradients finite and in fp32."""
    model = build(family).float()
    batch = batch_of(examples(model))
    expected = logits_of(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        logits = logits_of(model, batch)
    torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.5)
    logits.float().square().mean().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)


def test_tokens_know_their_padding():
    tokens = Tokens.from_lists([[5, 6, 7], [], [8]])
    assert tokens.ids.tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]]
    assert tokens.valid.tolist() == [[True] * 3, [False] * 3, [True, False, False]]
    assert (tokens.has_padding, tokens.has_absent) == (True, True)
    assert tokens.select(torch.tensor([2])).ids.tolist() == [[8]]
