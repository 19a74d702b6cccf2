"""Batched decoding of any configuration: beam search, and greedy search (beam 1).

Ended hypotheses leave their beam, finished sentences leave the batch. Nothing here loops over sentences or
hypotheses except the collection of results.

Shape letters: B sentences still being decoded, K hypotheses per sentence, R = B x K rows, V vocabulary,
T tokens so far, C candidates per row,
D sentences that have ended, N hypotheses of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from nlgraft.nn.batch import Tokens
from nlgraft.nn.decoder_state import DecoderState
from nlgraft.nn.linear import packed_weights
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.nn.modes import evaluating

# Rules of decoding: forbidden tokens, length limits and length penalties.
#
# Shape letters: B sentences, K hypotheses per sentence, R = B x K rows, V vocabulary, T tokens so far,
# C candidates per sentence, N blocks of L tokens, X positions searched.


LengthPenalty = Literal["gnmt", "average", "none"]

_BLOCK = 64


def length_limits(
    sources: Sequence[Tokens],
    ratio: float,
    offset: int,
) -> Tensor:
    """Compute the longest hypothesis of each sentence without its end token, int64 [B], at least 1.

    Args:
        sources: The sources that limit it, each [B, T]; the longest of each sentence counts.
        ratio: Tokens allowed per source token.
        offset: Tokens added.
    """
    lengths_B = torch.stack([tokens.valid.sum(1) for tokens in sources]).amax(0)
    return (lengths_B * ratio).floor().long().add(offset).clamp(min=1)


def penalty(
    length: float | Tensor,
    kind: LengthPenalty,
    alpha: float,
) -> Any:
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


def top_candidates(
    scores_RV: Tensor,
    before_BK: Tensor,
    count: int,
) -> tuple[Tensor, Tensor, Tensor]:
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


_MIN_PART_ROWS = 64
"""Fewest rows whose scores are computed at once, so that the output table is not read too often."""
_PART_SCORES = 2**20
"""Scores computed at once if that gives more rows: 4 MiB, which allocators keep and caches hold."""


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search.

    Attributes:
        ids: Its tokens, without start and end.
        score: Ranking criterion: log-probability over length penalty.
        log_probability: Natural logarithm, the end token included.
    """

    ids: list[int]
    score: float
    log_probability: float


def beam_search(
    model: Seq2Seq,
    sources: Sequence[Tokens],
    contexts: Mapping[str, Tokens] | None = None,
    config: GenerationConfig | None = None,
    length_source: int | None = None,
) -> list[list[Hypothesis]]:
    """Find the best continuations of every sentence; beam 1 is greedy search.

    Args:
        model: Run in evaluation mode and left in the mode it had.
        sources: At most ``num_sources`` entries [B, T], on any device; all sentences are decoded at once
            (``nlgraft.evaluation.translation`` takes a corpus in batches of similar length).
        contexts: Input of each fusion context.
        config: Beam, length rules, blocking; None: the defaults.
        length_source: Index of the source that limits the length of a hypothesis; None: the longest of each
            sentence.

    Returns:
        Per sentence ``num_return`` hypotheses, best first (fewer if there are no more).
    """
    config = config or GenerationConfig()
    with evaluating(model), torch.inference_mode(), packed_weights(model):
        state, limits_B = _begin(model, sources, contexts, config, length_source)
        if config.beam == 1:
            return _Greedy(model, state, limits_B, config).run()
        return _Beams(model, state, limits_B, config).run()


def _begin(
    model: Seq2Seq,
    sources: Sequence[Tokens],
    contexts: Mapping[str, Tokens] | None,
    config: GenerationConfig,
    length_source: int | None = None,
) -> tuple[DecoderState, Tensor]:
    """Read the sentences; compute the longest hypothesis of each, [B]."""
    device = model.output_projection.weight.device
    moved = [tokens.to(device) for tokens in sources]
    moved_contexts = {name: tokens.to(device) for name, tokens in (contexts or {}).items()}
    bank = model.encode(moved, moved_contexts)
    limiting = moved if length_source is None else [moved[length_source]]
    state = model.start(bank)
    limits_B = search_limits(model, limiting, config)
    for token in config.prompt[:-1]:
        model.decode_step(state, torch.full_like(limits_B, token))
    return state, limits_B


def search_limits(
    model: Seq2Seq,
    sources: Sequence[Tokens],
    config: GenerationConfig,
) -> Tensor:
    """Compute the longest hypothesis of each sentence [B]: limited by the rules and by the position table."""
    limits_B = length_limits(sources, config.max_length_ratio, config.max_length_offset)
    if model.config.target_positions != "learned":
        return limits_B
    # the given tokens take positions, too
    return limits_B.clamp(max=max(1, model.config.max_positions - len(config.prompt)))


class _Search:
    """Rows, rules for the next token and results of both searches, which begin with one hypothesis."""

    def __init__(
        self, model: Seq2Seq, state: DecoderState, limits_B: Tensor, config: GenerationConfig
    ) -> None:
        self.model, self.state, self.config = model, state, config
        self.limits_B = limits_B
        self.shortest = int(limits_B.min()) if len(limits_B) else 0
        self.index_B = torch.arange(len(limits_B), device=limits_B.device)
        self.tokens_BKT = limits_B.new_full((len(limits_B), 1, 1), config.prompt[-1])
        self.results: list[list[Hypothesis]] = [[] for _ in range(len(limits_B))]
        self.num_generated = 0

    def next_scores(self) -> Iterator[tuple[slice, Tensor]]:
        """Compute log-probabilities of the next token, minus infinity where the rules forbid it.

        Yields:
            Some sentences, and the scores of their rows, [rows, V]. On a CPU there are several parts: fresh
            memory for all rows at once would cost more than the softmax.
        """
        hidden_RD = self.model.decode_step(self.state, self.tokens_BKT[:, :, -1].flatten())
        num_sentences, width, _ = self.tokens_BKT.shape
        count = num_sentences
        if hidden_RD.device.type == "cpu":
            vocab = self.model.output_projection.out_features
            count = max(_MIN_PART_ROWS, _PART_SCORES // vocab) // width or 1
        for start in range(0, num_sentences, count):
            part = slice(start, start + count)
            yield part, self._scores(hidden_RD[start * width : part.stop * width], part)

    def _scores(self, hidden_RD: Tensor, part: slice) -> Tensor:
        logits_RV = self.model.logits(hidden_RD)
        # Half precision would lose digits in log-probabilities, which are summed over all steps.
        is_half = logits_RV.dtype in (torch.float16, torch.bfloat16)
        scores_RV = logits_RV.log_softmax(1, dtype=torch.float32 if is_half else None)
        # Kept for hypotheses that must end although the rules below forbid it.
        end_R = scores_RV[:, self.config.end_id].clone()
        scores_RV[:, self.model.config.pad_id] = -math.inf
        if self.num_generated < self.config.min_length:
            scores_RV[:, self.config.end_id] = -math.inf
        tokens_BKT = self.tokens_BKT[part]
        forbid_repeats(scores_RV, tokens_BKT[:, :, 1:].flatten(0, 1), self.config.no_repeat_ngram)
        if self.num_generated >= self.shortest:
            must_end_R = (self.num_generated >= self.limits_B[part]).repeat_interleave(tokens_BKT.shape[1])
            scores_RV[must_end_R] = -math.inf
            scores_RV[must_end_R, self.config.end_id] = end_R[must_end_R]
        # Blocking and the minimum length may together forbid every token: then the end is allowed.
        if self.config.no_repeat_ngram and self.num_generated < self.config.min_length:
            is_stuck_R = scores_RV.amax(1) == -math.inf
            scores_RV[is_stuck_R, self.config.end_id] = end_R[is_stuck_R]
        return scores_RV

    def penalty(self, length: Tensor | float) -> Any:
        """Compute the divisor of the log-probability of hypotheses of some length, forced tokens apart."""
        num_tokens = length + len(self.config.forced_ids)
        return penalty(num_tokens, self.config.length_penalty, self.config.alpha)

    def collect(
        self,
        rows_D: Tensor,
        tokens_DNT: Tensor,
        lengths_DN: Tensor,
        scores_DN: Tensor,
        logs_DN: Tensor,
    ) -> None:
        """Store the N hypotheses of each of D finished sentences, given by their rows in the batch."""
        # All sentences at once, since each copy waits for the device.
        columns = [self.index_B[rows_D], tokens_DNT, lengths_DN, scores_DN, logs_DN]
        for index, *hypotheses in zip(*(column.tolist() for column in columns), strict=True):
            self.results[index] = [
                Hypothesis(ids[:length], score, log)
                for ids, length, score, log in zip(*hypotheses, strict=True)
                if score > -math.inf
            ]


class _Greedy(_Search):
    """The likeliest continuation of each sentence, token by token."""

    def run(self) -> list[list[Hypothesis]]:
        """Extend all sentences until each has ended."""
        logs_B = torch.zeros(len(self.index_B), device=self.limits_B.device, dtype=torch.float64)
        while len(self.index_B):
            best = [scores_BV.max(1) for _, scores_BV in self.next_scores()]
            chosen_B = torch.cat([indices for _, indices in best])
            logs_B += torch.cat([values for values, _ in best])
            self.tokens_BKT = torch.cat([self.tokens_BKT, chosen_B[:, None, None]], dim=2)
            self.num_generated += 1
            is_going_B = chosen_B != self.config.end_id
            if bool(is_going_B.all()):
                continue
            self._leave(~is_going_B, logs_B)
            kept = is_going_B.nonzero()[:, 0]
            logs_B = logs_B[kept]
            self.tokens_BKT, self.limits_B = self.tokens_BKT[kept], self.limits_B[kept]
            self.index_B = self.index_B[kept]
            self.state.select(kept)
        return self.results

    def _leave(self, is_done_B: Tensor, logs_B: Tensor) -> None:
        rows_D = is_done_B.nonzero()[:, 0]
        logs_D1 = logs_B[rows_D, None]
        lengths_D1 = torch.full_like(rows_D, self.num_generated - 1)[:, None]
        scores_D1 = logs_D1 / self.penalty(float(self.num_generated))
        self.collect(rows_D, self.tokens_BKT[rows_D, :, 1:], lengths_D1, scores_D1, logs_D1)


class _Beams(_Search):
    """Beam search; ended hypotheses are stored apart, so that beams stay full of live ones."""

    def __init__(
        self, model: Seq2Seq, state: DecoderState, limits_B: Tensor, config: GenerationConfig
    ) -> None:
        super().__init__(model, state, limits_B, config)
        shape = (len(limits_B), config.beam)
        self.logs_BK = torch.zeros(len(limits_B), 1, device=limits_B.device)
        self.ended_scores_BK = torch.full(shape, -math.inf, device=limits_B.device)
        self.ended_logs_BK = self.ended_scores_BK.clone()
        self.ended_lengths_BK = torch.zeros(shape, dtype=torch.int64, device=limits_B.device)
        self.ended_tokens_BKT = self.tokens_BKT.new_zeros(*shape, 0)
        self.num_ended_B = torch.zeros_like(limits_B)

    def run(self) -> list[list[Hypothesis]]:
        """Extend all beams until each sentence is finished."""
        while len(self.index_B):
            logs_BC, parent_BC, token_BC = self._candidates()
            is_end_BC = token_BC == self.config.end_id
            self._keep_ended(logs_BC, parent_BC, is_end_BC)
            self._keep_live(logs_BC, parent_BC, token_BC, is_end_BC)
            self._leave(self._is_done())
        return self.results

    def _candidates(self) -> tuple[Tensor, Tensor, Tensor]:
        # Twice the beam: at most one candidate per hypothesis is its end token, so enough live ones remain.
        parts = [
            top_candidates(scores_RV, self.logs_BK[part], 2 * self.config.beam)
            for part, scores_RV in self.next_scores()
        ]
        logs, parents, tokens = zip(*parts, strict=True)
        return torch.cat(logs), torch.cat(parents), torch.cat(tokens)

    def _keep_ended(
        self,
        logs_BC: Tensor,
        parent_BC: Tensor,
        is_end_BC: Tensor,
    ) -> None:
        beam = self.config.beam
        # As in fairseq, an end token counts only among the first `beam` candidates.
        is_new_BK = (is_end_BC & (logs_BC > -math.inf))[:, :beam]
        self.num_generated += 1  # the penalty counts the end token, the length of the hypothesis does not
        if not bool(is_new_BK.any()):
            return
        logs_BK = logs_BC[:, :beam].where(is_new_BK, -math.inf)
        scores_BK = logs_BK / self.penalty(float(self.num_generated))
        length = self.num_generated - 1
        parent_BKT = parent_BC[:, :beam, None].expand(-1, -1, length)
        tokens_BKT = self.tokens_BKT[:, :, 1:].gather(1, parent_BKT)
        room = self.ended_tokens_BKT.new_zeros(*self.ended_tokens_BKT.shape[:2], length)
        room[:, :, : self.ended_tokens_BKT.shape[2]] = self.ended_tokens_BKT
        scores = torch.cat([self.ended_scores_BK, scores_BK], dim=1)
        self.ended_scores_BK, place_BK = scores.topk(beam, dim=1)
        logs = torch.cat([self.ended_logs_BK, logs_BK], dim=1)
        self.ended_logs_BK = logs.gather(1, place_BK)
        lengths_BK = torch.full_like(self.ended_lengths_BK, length)
        lengths = torch.cat([self.ended_lengths_BK, lengths_BK], dim=1)
        self.ended_lengths_BK = lengths.gather(1, place_BK)
        tokens = torch.cat([room, tokens_BKT], dim=1)
        place_BKT = place_BK[:, :, None].expand(-1, -1, length)
        self.ended_tokens_BKT = tokens.gather(1, place_BKT)
        self.num_ended_B += is_new_BK.sum(1)

    def _keep_live(
        self,
        logs_BC: Tensor,
        parent_BC: Tensor,
        token_BC: Tensor,
        is_end_BC: Tensor,
    ) -> None:
        beam, num_candidates = self.config.beam, logs_BC.shape[1]
        # Candidates are sorted, so small numbers are the best; ended ones go behind all live ones.
        order_BC = torch.arange(num_candidates, device=logs_BC.device) + num_candidates * is_end_BC
        chosen_BK = order_BC.topk(min(beam, num_candidates), dim=1, largest=False).indices
        # A vocabulary smaller than the beam: fill it with dead copies of the last candidate.
        if num_candidates < beam:
            copies = chosen_BK[:, -1:].expand(-1, beam - num_candidates)
            chosen_BK = torch.cat([chosen_BK, copies], dim=1)
        is_end_BK = is_end_BC.gather(1, chosen_BK)
        logs_BK = logs_BC.gather(1, chosen_BK).masked_fill(is_end_BK, -math.inf)
        logs_BK[:, num_candidates:] = -math.inf
        parent_BK = parent_BC.gather(1, chosen_BK)
        if self.num_generated == 1:
            self.state.expand(beam)
        else:
            self.state.reorder(parent_BK)
        parent_BKT = parent_BK[:, :, None].expand(-1, -1, self.num_generated)
        tokens_BKT = self.tokens_BKT.gather(1, parent_BKT)
        token_BK1 = token_BC.gather(1, chosen_BK)[:, :, None]
        self.logs_BK, self.tokens_BKT = logs_BK, torch.cat([tokens_BKT, token_BK1], dim=2)

    def _is_done(self) -> Tensor:
        best_live_B = self.logs_BK.amax(1)
        is_done_B = best_live_B == -math.inf
        if self.config.stopping == "first":
            return is_done_B | (self.num_ended_B >= self.config.beam)
        longest_B = self.limits_B + 1.0
        # Log-probabilities only fall, so no hypothesis gets better than its present one over the largest
        # penalty.
        attainable_B = best_live_B / self.penalty(longest_B)
        return is_done_B | (self.ended_scores_BK[:, -1] >= attainable_B)

    def _leave(self, is_done_B: Tensor) -> None:
        if not bool(is_done_B.any()):
            return
        count, rows_D = self.config.num_return, is_done_B.nonzero()[:, 0]
        self.collect(
            rows_D,
            self.ended_tokens_BKT[rows_D, :count],
            self.ended_lengths_BK[rows_D, :count],
            self.ended_scores_BK[rows_D, :count],
            self.ended_logs_BK[rows_D, :count],
        )
        kept = (~is_done_B).nonzero()[:, 0]
        self.index_B, self.limits_B = self.index_B[kept], self.limits_B[kept]
        self.num_ended_B = self.num_ended_B[kept]
        self.tokens_BKT, self.logs_BK = self.tokens_BKT[kept], self.logs_BK[kept]
        self.ended_tokens_BKT, self.ended_lengths_BK = (
            self.ended_tokens_BKT[kept],
            self.ended_lengths_BK[kept],
        )
        self.ended_scores_BK, self.ended_logs_BK = self.ended_scores_BK[kept], self.ended_logs_BK[kept]
        self.shortest = int(self.limits_B.min()) if len(kept) else 0
        self.state.select(kept)
