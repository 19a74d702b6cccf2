"""What a hypothesis may say next, how long it may be, and how hypotheses of different length compare.

Shape letters: B sentences, R rows = B x hypotheses, V vocabulary, T tokens so far, C candidates of a row.
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
        length: Tokens of the hypothesis, its end token counted.
        kind: Formula.
        alpha: Its strength.

    Returns:
        The divisor; 1 for ``none``.

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


def top_candidates(logits_RV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The likeliest tokens of each row, best first; exact.

    The largest values lie in the blocks with the largest maxima, so only that many blocks are searched: one
    vectorised pass over the vocabulary instead of a partial sort.

    Args:
        logits_RV: Scores [R, V].
        count: How many, C; fewer are returned when V is smaller.

    Returns:
        Their scores [R, C] and ids, int64 [R, C].
    """
    num_rows, vocab = logits_RV.shape
    num_blocks = vocab // _BLOCK
    if num_blocks <= 2 * count:
        scores, ids = logits_RV.topk(min(count, vocab), dim=1)
        return scores, ids
    body, rest = logits_RV[:, : num_blocks * _BLOCK], logits_RV[:, num_blocks * _BLOCK :]
    blocks = body.unflatten(1, (num_blocks, _BLOCK))
    best_RC = blocks.amax(2).topk(count, dim=1).indices
    scores = blocks.gather(1, best_RC[:, :, None].expand(-1, -1, _BLOCK)).flatten(1)
    ids = (best_RC[:, :, None] * _BLOCK + torch.arange(_BLOCK, device=best_RC.device)).flatten(1)
    rest_ids = torch.arange(num_blocks * _BLOCK, vocab, device=ids.device).expand(num_rows, -1)
    scores, ids = torch.cat([scores, rest], dim=1), torch.cat([ids, rest_ids], dim=1)
    scores, place = scores.topk(count, dim=1)
    return scores, ids.gather(1, place)
