"""Distillation loss: the hidden states of a word should not depend on its segmentation.

Shape letters: B sentences, T and S positions of the teacher's and the student's sequence, D width, W words.
Source: Liu et al. (2021), eq. 4.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Reduction = Literal["sum_dim", "mean_dim"]

NO_WORD = -1
"""Word number of positions that belong to no word: begin and end of sentence, padding."""


def word_means(states_BTD: Tensor, words_BT: Tensor, num_words: int) -> Tensor:
    """Average the states of each word's tokens: [B, W, D], zero where a sentence has no such word."""
    batch, _, width = states_BTD.shape
    # positions outside any word are collected in an extra last slot, which is dropped
    index_BT = torch.where(words_BT == NO_WORD, num_words, words_BT)
    sums = states_BTD.new_zeros(batch, num_words + 1, width)
    sums = sums.scatter_add(1, index_BT[..., None].expand(-1, -1, width), states_BTD)
    counts = states_BTD.new_zeros(batch, num_words + 1)
    counts = counts.scatter_add(1, index_BT, torch.ones_like(words_BT, dtype=states_BTD.dtype))
    return (sums / counts.clamp(min=1)[..., None])[:, :num_words]


def distillation_loss(
    teacher_BTD: Tensor,
    teacher_words_BT: Tensor,
    student_BSD: Tensor,
    student_words_BS: Tensor,
    *,
    reduction: Reduction = "sum_dim",
    compared_BW: Tensor | None = None,
) -> Tensor:
    """Compute L_d of every sentence: the mean over its words of the squared distance of word states.

    Args:
        teacher_BTD: Last hidden states of the frozen model on the original segmentation.
        teacher_words_BT: Word number of each of its positions.
        student_BSD: Last hidden states with generated embeddings on the changed segmentation.
        student_words_BS: Word number of each of its positions; the same words as the teacher's.
        reduction: Squared distances summed over D (paper) or averaged (times 1/D).
        compared_BW: Words to compare, bool [B, W]; None for all words of a sentence. Excluded are words that
            are masked in only one of the two sequences, whose states would differ whatever the embeddings.

    Returns:
        L_d [B]; 0 for a sentence without words.
    """
    num_words = int(torch.maximum(teacher_words_BT.max(), student_words_BS.max())) + 1
    if num_words == 0:
        return student_BSD.new_zeros(student_BSD.shape[0])
    difference_BWD = word_means(teacher_BTD.to(student_BSD.dtype), teacher_words_BT, num_words) - word_means(
        student_BSD, student_words_BS, num_words
    )
    distance_BW = difference_BWD.square().sum(2)
    if reduction == "mean_dim":
        distance_BW = distance_BW / difference_BWD.shape[2]
    present_BW = torch.arange(num_words, device=student_BSD.device) <= student_words_BS.max(1).values[:, None]
    if compared_BW is not None:
        present_BW = present_BW & compared_BW
    return (distance_BW * present_BW).sum(1) / present_BW.sum(1).clamp(min=1)
