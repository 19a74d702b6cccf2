"""Rules of decoding: forbidden tokens, length limits and length penalties.

Shape letters: B sentences, K hypotheses per sentence, R = B x K rows, V vocabulary, T tokens so far,
C candidates per sentence, N blocks of L tokens, X positions searched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor

from nlgraft.nn.batch import Tokens

LengthPenalty = Literal["gnmt", "average", "none"]

_BLOCK = 64


def length_limits(sources: Sequence[Tokens], ratio: float, offset: int) -> Tensor:
    """Compute the longest hypothesis of each sentence without its end token, int64 [B], at least 1.

    Args:
        sources: The sources that limit it, each [B, T]; the longest of each sentence counts.
        ratio: Tokens allowed per source token.
        offset: Tokens added.
    """
    lengths_B = torch.stack([tokens.valid.sum(1) for tokens in sources]).amax(0)
    return (lengths_B * ratio).floor().long().add(offset).clamp(min=1)


@overload
def penalty(length: float, kind: LengthPenalty, alpha: float) -> float: ...
@overload
def penalty(length: Tensor, kind: LengthPenalty, alpha: float) -> Tensor: ...
def penalty(length: float | Tensor, kind: LengthPenalty, alpha: float) -> float | Tensor:
    """Compute the divisor of a log-probability; 1 for ``none``.

    Args:
        length: Tokens of the hypothesis, its end token included; a tensor may have any shape.
        kind: Formula.
        alpha: Its exponent.

    Source: Wu et al. (2016), Eq. 14 (gnmt); fairseq's lenpen (average).
    """
    if kind == "gnmt":
        return ((5 + length) / 6) ** alpha
    return length ** (alpha if kind == "average" else 0.0)


def forbid_repeats(logits_RV: Tensor, tokens_RT: Tensor, size: int) -> None:
    """Set to minus infinity, in place, every token that would repeat an n-gram of its row.

    Args:
        logits_RV: Scores of the next token.
        tokens_RT: Tokens of each row so far, int64.
        size: The n of the n-gram; 0 forbids nothing.
    """
    if size == 0 or tokens_RT.shape[1] < size:
        return
    # An earlier n-gram that begins with the latest n - 1 tokens forbids its last token.
    windows = tokens_RT.unfold(1, size, 1)
    recent = tokens_RT[:, tokens_RT.shape[1] - size + 1 :]
    is_repeat = (windows[:, :, :-1] == recent[:, None, :]).all(2)
    row, place = is_repeat.nonzero(as_tuple=True)
    logits_RV[row, windows[row, place, -1]] = -math.inf


def top_candidates(scores_RV: Tensor, before_BK: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Find the best continuations of each sentence over all its hypotheses; exact.

    The C best values lie in the C blocks with the largest maxima, so only these are searched: one vectorised
    pass over the vocabulary instead of a partial sort of it.

    Args:
        scores_RV: Log-probability of each next token, hypotheses of a sentence side by side.
        before_BK: Log-probability of each hypothesis so far.
        count: Number of candidates, C; fewer are returned if there are no more.

    Returns:
        Best first, [B, C] each: the sums, the hypothesis that is continued, and the token (int64).
    """
    num_sentences, width = before_BK.shape
    vocab = scores_RV.shape[1]
    scores_BKV = scores_RV.view(num_sentences, width, vocab)
    num_blocks = vocab // _BLOCK
    # So few blocks would all be searched: sort everything at once.
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
    if vocab % _BLOCK:  # the tail of the vocabulary, shorter than a block
        row_B1 = torch.arange(num_sentences * width, device=scores_RV.device).view(num_sentences, width, 1)
        rest_BKL = row_B1 * vocab + torch.arange(num_blocks * _BLOCK, vocab, device=scores_RV.device)
        place_BX = torch.cat([place_BX.flatten(1), rest_BKL.flatten(1)], dim=1)
    place_BX = place_BX.flatten(1)
    row_BX = place_BX // vocab
    sums_BX = scores_RV.view(-1)[place_BX] + before_BK.flatten()[row_BX]
    best_BC, chosen_BC = sums_BX.topk(count, dim=1)
    return best_BC, row_BX.gather(1, chosen_BC) % width, place_BX.gather(1, chosen_BC) % vocab
