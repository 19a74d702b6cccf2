"""What a hypothesis may say next, how long it may be, and how hypotheses of different length compare.

Shape letters: B sentences, K hypotheses of a sentence, R = B x K rows, V vocabulary, T tokens so far,
C candidates of a sentence, N blocks of L tokens, X places that are searched.
"""

from __future__ import annotations

import math
from typing import Literal, overload

import torch
from torch import Tensor

from nlgraft.nn.batch import Tokens

LengthPenalty = Literal["gnmt", "average", "none"]

_BLOCK = 64


def length_limits(tokens: Tokens, ratio: float, offset: int) -> Tensor:
    """Longest hypothesis of each sentence, its end token not counted.

    Args:
        tokens: The first source, [B, T].
        ratio: Tokens allowed for each source token.
        offset: Tokens added.

    Returns:
        Limits, int64 [B], at least 1.
    """
    return (tokens.valid.sum(1) * ratio).floor().long().add(offset).clamp(min=1)


@overload
def penalty(length: float, kind: LengthPenalty, alpha: float) -> float: ...
@overload
def penalty(length: Tensor, kind: LengthPenalty, alpha: float) -> Tensor: ...
def penalty(length: float | Tensor, kind: LengthPenalty, alpha: float) -> float | Tensor:
    """What a log-probability is divided by.

    Args:
        length: Tokens of the hypothesis, its end token counted; a tensor may have any shape [...].
        kind: Formula.
        alpha: Its strength.

    Returns:
        The divisor [...]; 1 for ``none``.

    Source: Wu et al. (2016), Eq. 14 (gnmt); fairseq's lenpen (average).
    """
    if kind == "gnmt":
        return ((5 + length) / 6) ** alpha
    return length ** (alpha if kind == "average" else 0.0)


def forbid_repeats(logits_RV: Tensor, tokens_RT: Tensor, size: int) -> None:
    """Give minus infinity to every token that would end an n-gram the row already has.

    Args:
        logits_RV: Changed in place, [R, V].
        tokens_RT: What each row said so far, int64 [R, T].
        size: The n of the n-gram; 0 forbids nothing.
    """
    if size == 0 or tokens_RT.shape[1] < size:
        return
    windows = tokens_RT.unfold(1, size, 1)
    recent = tokens_RT[:, tokens_RT.shape[1] - size + 1 :]
    is_repeat = (windows[:, :, :-1] == recent[:, None, :]).all(2)
    row, place = is_repeat.nonzero(as_tuple=True)
    logits_RV[row, windows[row, place, -1]] = -math.inf


def top_candidates(scores_RV: Tensor, before_BK: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of each sentence over all its hypotheses; exact.

    The best values lie in the blocks with the largest maxima, so only as many blocks as values are searched:
    one vectorised pass over the vocabulary instead of a partial sort of it.

    Args:
        scores_RV: Log-probability of each next token, [B x K, V], hypotheses of a sentence side by side.
        before_BK: What each hypothesis has gathered so far, [B, K].
        count: How many, C; fewer are returned when there are no more.

    Returns:
        Best first, [B, C] each: the sums, which hypothesis is continued, and by which token (int64).
    """
    num_sentences, width = before_BK.shape
    vocab = scores_RV.shape[1]
    scores_BKV = scores_RV.view(num_sentences, width, vocab)
    num_blocks = vocab // _BLOCK
    if num_blocks * width <= 2 * count:
        all_BX = (scores_BKV + before_BK[:, :, None]).flatten(1)
        best_BC, place_BC = all_BX.topk(min(count, all_BX.shape[1]), dim=1)
        return best_BC, place_BC // vocab, place_BC % vocab
    blocks_BKNL = scores_BKV[:, :, : num_blocks * _BLOCK].unflatten(2, (num_blocks, _BLOCK))
    highest_BX = (blocks_BKNL.amax(3) + before_BK[:, :, None]).flatten(1)
    block_BC = highest_BX.topk(count, dim=1).indices
    parent_BC, start_BC = block_BC // num_blocks, block_BC % num_blocks * _BLOCK
    inside_L = torch.arange(_BLOCK, device=scores_RV.device)
    row_BC = parent_BC + width * torch.arange(num_sentences, device=scores_RV.device)[:, None]
    place_BX = (row_BC * vocab + start_BC)[:, :, None] + inside_L
    if vocab % _BLOCK:  # the end of the vocabulary that fills no block
        row_B1 = torch.arange(num_sentences * width, device=scores_RV.device).view(num_sentences, width, 1)
        rest_BKL = row_B1 * vocab + torch.arange(num_blocks * _BLOCK, vocab, device=scores_RV.device)
        place_BX = torch.cat([place_BX.flatten(1), rest_BKL.flatten(1)], dim=1)
    place_BX = place_BX.flatten(1)
    row_BX = place_BX // vocab
    sums_BX = scores_RV.view(-1)[place_BX] + before_BK.flatten()[row_BX]
    best_BC, chosen_BC = sums_BX.topk(count, dim=1)
    return best_BC, row_BX.gather(1, chosen_BC) % width, place_BX.gather(1, chosen_BC) % vocab
