"""Invariants V18 to V23: splitting and merging; V24 to V27: distillation."""

import collections
import random

import numpy as np
import pytest
import torch

from nlgraft.text.tokenizer_config import SegmentationRates
from nlgraft.vocab.tokenizers.vocabulary import SENTENCEPIECE, SUBWORD_NMT, WORDPIECE, Tok
from tests.tiny_vocabularies import greedy_vocabulary
from trainables.embedding_transfer.generators import NO_WORD, ChangedSide, distillation_loss


def surfaces_of(perturbed, vocab):
    return [
        vocab.marking.surface(token) if isinstance(token, Tok) else vocab.surfaces[token]
        for token in perturbed.tokens
    ]


def generator(*place):
    return np.random.default_rng(place)


def test_merging_never_crosses_a_word():
    """Invariant V18: [ima, ##gine, the] can become [imagine, the] and nothing else."""
    vocab = greedy_vocabulary(["ima", "##gine", "the"])
    perturber = ChangedSide(vocab, SegmentationRates(split=0, merge=0.5))
    seen = {tuple(surfaces_of(perturber.perturb([0, 1, 2], generator(i)), vocab)) for i in range(200)}
    assert seen == {("ima", "##gine", "the"), ("imagine", "the")}


def test_rates_of_splitting():
    """V19: seven characters, cut .2, nothing known: P(split)=1-.8^6, 2.2 pieces; .4 of it overall."""
    vocab = greedy_vocabulary(["abcdefg"])
    always = ChangedSide(vocab, SegmentationRates(split=1, cut=0.2, cut_edge=0.2, merge=0))
    source = generator(19)
    counts = np.array([len(always.perturb([0], source).tokens) for _ in range(30_000)])
    assert abs((counts > 1).mean() - 0.7379) < 0.01
    assert abs(counts.mean() - 2.2) < 0.02
    sometimes = ChangedSide(vocab, SegmentationRates(split=0.4, cut=0.2, cut_edge=0.2, merge=0))
    is_split = [len(sometimes.perturb([0], source).tokens) > 1 for _ in range(30_000)]
    assert abs(np.mean(is_split) - 0.2951) < 0.01


def test_cuts_at_the_edge_are_rarer():
    """Source side: a cut that leaves one character has its own probability."""
    vocab = greedy_vocabulary(["abcdefg"])
    perturber = ChangedSide(vocab, SegmentationRates(split=1, cut=1, cut_edge=0, merge=0))
    assert surfaces_of(perturber.perturb([0], generator(0)), vocab) == ["ab", "##cd", "##efg"]


def test_rates_of_merging():
    """Invariant V20: three pieces, p=.5: unchanged, abc, ab and bc a quarter each."""
    vocab = greedy_vocabulary(["a", "##b", "##c"])
    perturber = ChangedSide(vocab, SegmentationRates(split=0, merge=0.5))
    source = generator(20)
    drawn = [tuple(surfaces_of(perturber.perturb([0, 1, 2], source), vocab)) for _ in range(20_000)]
    seen = collections.Counter(drawn)
    expected = {("a", "##b", "##c"), ("abc",), ("ab", "##c"), ("a", "##bc")}
    assert set(seen) == expected
    assert all(abs(seen[key] / 20_000 - 0.25) < 0.015 for key in expected)


def test_a_cut_that_makes_a_known_token_is_refused():
    """Invariant V21: the left piece must be new; the last piece may exist and then keeps its own row."""
    vocab = greedy_vocabulary(["abcdefg", "abc", "##fg"])
    perturber = ChangedSide(vocab, SegmentationRates(split=1, cut=0.5, cut_edge=0.5, merge=0))
    all_pieces = [perturber.perturb([0], generator(i)).tokens for i in range(300)]
    firsts = {tokens[0] for tokens in all_pieces if len(tokens) > 1}
    assert Tok(b"ab", True, None) in firsts
    assert not firsts & {1, Tok(b"abc", True, None)}
    assert any(tokens[-1] == 2 for tokens in all_pieces)


@pytest.mark.parametrize("marking", [WORDPIECE, SENTENCEPIECE, SUBWORD_NMT])
def test_the_text_never_changes(marking):
    """Invariant V22: tokens and words before and after spell the same text."""
    rng = random.Random(22)
    toks = set()
    for _ in range(60):
        core = "".join(rng.choices("abcdéß", k=rng.randint(1, 9))).encode()
        toks |= {Tok(core, rng.random() < 0.5, rng.random() < 0.5)}
    vocab = greedy_vocabulary(sorted({marking.surface(tok) for tok in toks}), marking)
    perturber = ChangedSide(vocab, SegmentationRates(min_split_chars=3))
    num_changed = 0
    for index in range(400):
        ids = rng.choices(range(len(vocab)), k=rng.randint(1, 12))
        changed = perturber.perturb(ids, generator(index))
        num_changed += changed.tokens != ids

        def by_word(tokens, words):
            texts = collections.defaultdict(bytes)
            for token, word in zip(tokens, words, strict=True):
                texts[word] += (token if isinstance(token, Tok) else vocab.tokens[token]).core
            return dict(texts)

        assert by_word(changed.tokens, changed.words) == by_word(ids, perturber.words(ids))
    assert num_changed > 200


def test_draws_depend_on_seed_epoch_and_sentence_alone():
    """Invariant V23: any order and any number of workers give the same sentences."""
    vocab = greedy_vocabulary(["abcdefgh", "##ijk", "##lmnopqrst"])
    perturber = ChangedSide(vocab, SegmentationRates())
    serial = [perturber.perturb([0, 1, 2], generator(7, 0, index)) for index in range(64)]
    eight = [None] * 64
    for worker in reversed(range(8)):
        for index in range(worker, 64, 8):
            eight[index] = perturber.perturb([0, 1, 2], generator(7, 0, index))
    assert serial == eight
    assert serial != [perturber.perturb([0, 1, 2], generator(7, 1, index)) for index in range(64)]


TEACHER = torch.tensor([[[9.0, 9.0], [1.0, 1.0], [3.0, 1.0], [5.0, 5.0]]])
TEACHER_WORDS = torch.tensor([[NO_WORD, 0, 0, 1]])
STUDENT = torch.tensor([[[-7.0, 3.0], [2.0, 3.0], [5.0, 5.0], [8.0, 8.0]]])
STUDENT_WORDS = torch.tensor([[NO_WORD, 0, 1, NO_WORD]])


def test_distillation_by_hand():
    """V24: [2,1] against [2,3] and an equal word: (4+0)/2=2, lambda .5 adds 1."""
    loss = distillation_loss(TEACHER, TEACHER_WORDS, STUDENT, STUDENT_WORDS)
    assert loss.tolist() == [2.0]
    assert (0.5 * loss).tolist() == [1.0]


def test_distillation_counts_words_not_tokens():
    """Invariant V26: one more token in an equal word changes nothing."""
    longer = torch.cat([STUDENT[:, :3], STUDENT[:, 2:]], 1)
    words = torch.tensor([[NO_WORD, 0, 1, 1, NO_WORD]])
    assert distillation_loss(TEACHER, TEACHER_WORDS, longer, words).tolist() == [2.0]


def test_distillation_leaves_out_words_that_are_not_compared():
    """Invariant V27: a word masked in only one sequence enters neither the sum nor its denominator."""
    for word, expected in ((0, 0.0), (1, 4.0)):
        words = STUDENT_WORDS.masked_fill(word == STUDENT_WORDS, NO_WORD)
        assert distillation_loss(TEACHER, TEACHER_WORDS, STUDENT, words).tolist() == [expected]


def test_distillation_treats_sentences_alone():
    """Every sentence is divided by its own number of words; one without words gives 0."""
    teacher = torch.cat([TEACHER, TEACHER, TEACHER])
    student = torch.cat([STUDENT, STUDENT, STUDENT])
    two_tokens = torch.tensor([[NO_WORD, 0, 0, NO_WORD]])
    one_token = torch.tensor([[NO_WORD, 0, NO_WORD, NO_WORD]])
    nothing = torch.full((1, 4), NO_WORD)
    teacher_words = torch.cat([TEACHER_WORDS, two_tokens, nothing])
    student_words = torch.cat([STUDENT_WORDS, one_token, nothing])
    loss = distillation_loss(teacher, teacher_words, student, student_words)
    assert loss.tolist() == [2.0, 4.0, 0.0]
    empty = distillation_loss(TEACHER, nothing, STUDENT, nothing)
    assert empty.tolist() == [0.0]


def test_what_is_not_marked_is_a_word_where_inner_pieces_are():
    """BERT's punctuation does not mark a preceding space, yet it is never merged with its neighbours."""
    vocab = greedy_vocabulary(
        ["[UNK]", "ta", "##ta", ","], specials=["[UNK]"], is_isolated=lambda text: text == ","
    )
    perturber = ChangedSide(vocab, SegmentationRates(split=0, merge=1))
    assert perturber.words([1, 2, 3, 0, 1, 3]) == [0, 0, 1, 2, 3, 4]
    assert surfaces_of(perturber.perturb([1, 2, 3, 0, 1, 3], generator(0)), vocab) == [
        "tata",
        ",",
        "[UNK]",
        "ta",
        ",",
    ]
