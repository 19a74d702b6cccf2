"""Inference calibration: a model's confidence in its own output against how often it is right.

Each token that decoding produced has a confidence, the probability the model gave it. It is right if the
alignment that TER finds, after its shifts, matches it to an equal token of the reference. The N tokens are
put into 20 equal-width bins by confidence and

    ECE = sum_b  n_b / N * | accuracy_b - confidence_b |

with accuracy_b the share of right tokens and confidence_b the mean confidence of bin b. Tokens are the
model's own (subwords), on both sides.

Source: Wang et al. (2020), On the Inference Calibration of Neural Machine Translation, section 2.2. Differs:
the alignment is sacrebleu's TER, not the Java tool's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import lib_ter

from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.scores import Evaluation
from nlgraft.evaluation.shares import SHARE
from nlgraft.evaluation.sufficient import NUM_ECE_BINS, Statistics
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.nn.modes import evaluating

_BATCH_SENTENCES = 64


class _Placed(str):
    """A token that remembers where in the hypothesis it stood; equal to any equal token."""

    place: int

    @classmethod
    def at(cls, place: int, token: str) -> _Placed:
        word = cls(token)
        word.place = place
        return word


def mark_right(hypothesis: Sequence[str], reference: Sequence[str]) -> NDArray[np.bool_]:
    """Find the tokens of a hypothesis that TER matches to the reference: True where right, [tokens]."""
    is_right = np.zeros(len(hypothesis), dtype=bool)
    if not hypothesis or not reference:
        return is_right
    words: list[str] = [_Placed.at(place, token) for place, token in enumerate(hypothesis)]
    distance = lib_ter.BeamEditDistance(list(reference))
    num_tried = 0
    while True:  # as in sacrebleu's translation_edit_rate, which keeps only the number of edits
        gain, shifted, num_tried = lib_ter._shift(words, list(reference), distance, num_tried)
        if num_tried >= lib_ter._MAX_SHIFT_CANDIDATES or gain <= 0:
            break
        words = shifted
    trace = lib_ter._flip_trace(distance(words)[1])
    errors = lib_ter.trace_to_alignment(trace)[2]
    for word, is_error in zip(words, errors, strict=True):
        assert isinstance(word, _Placed)
        is_right[word.place] = not is_error
    return is_right


def calibration_rows(confidences: Sequence[Sequence[float]], right: Sequence[Sequence[bool]]) -> Statistics:
    """Bin the tokens of each segment by confidence.

    Args:
        confidences: Probability of each token of each segment, 0 to 1.
        right: For each token, if it is right.

    Returns:
        Tokens, sum of confidences and right tokens of each of ``NUM_ECE_BINS`` equal-width bins, of which 1.0
        falls into the last one; flattened, [N, 3 * bins].
    """
    rows = np.zeros((len(confidences), NUM_ECE_BINS, 3))
    for row, segment_confidences, segment_right in zip(rows, confidences, right, strict=True):
        confidence = np.asarray(segment_confidences, dtype=np.float64)
        # A confidence of exactly 1 would open a bin of its own.
        bins = np.minimum((confidence * NUM_ECE_BINS).astype(np.int64), NUM_ECE_BINS - 1)
        columns = np.stack(
            [np.ones_like(confidence), confidence, np.asarray(segment_right, dtype=float)], axis=1
        )
        np.add.at(row, bins, columns)
    return rows.reshape(len(confidences), 3 * NUM_ECE_BINS)


def evaluate_calibration(
    hypotheses: Sequence[Sequence[str]],
    confidences: Sequence[Sequence[float]],
    references: Sequence[Sequence[str]],
) -> Evaluation:
    """Compute the inference ECE of a translated split.

    Args:
        hypotheses: Tokens of each output, end token not included.
        confidences: Probability that the model gave each of them.
        references: Tokens of each human text, by the same tokenizer.

    Returns:
        ``ece`` in points of 100, with statistics [N, 3 * bins].
    """
    right = [mark_right(h, r).tolist() for h, r in zip(hypotheses, references, strict=True)]
    rows = calibration_rows(confidences, right)
    signature = f"ece|inference|bins:{NUM_ECE_BINS}|right:ter-aligned|tok:model|points"
    return Evaluation.of({"ece": rows}, signature)


def token_confidences(
    model: Any,
    inputs: Inputs,
    hypotheses: Sequence[Sequence[int]],
    config: GenerationConfig,
) -> list[list[float]]:
    """Compute the probability of each token that a model produced, all workers of a `SHARE` together.

    Args:
        model: Run in evaluation mode.
        inputs: The sentences that it translated.
        hypotheses: Ids of each output, end token not included.
        config: First decoder input, and the token that ends a target.

    Returns:
        Probabilities, one for each id of each hypothesis.
    """
    device = model.output_projection.weight.device
    confidences: dict[int, list[float]] = {}
    share = SHARE.get()
    order = np.argsort([-len(ids) for ids in hypotheses], kind="stable")
    with evaluating(model):
        for rows in share.of(np.array_split(order, max(1, -(-len(order) // _BATCH_SENTENCES)))):
            # With the end token, as in training; its own confidence is left out below.
            outputs = Tokens.from_lists(
                [[*config.forced_ids, *hypotheses[row], config.end_id] for row in rows]
            )
            read = Tokens.from_lists([[*config.prompt, *hypotheses[row]] for row in rows])
            sources, contexts = inputs.pack(rows)
            batch = Batch(sources, read, outputs.ids, contexts).to(device)
            probabilities_BJV = model.logits(model(batch)).float().softmax(-1)
            chosen_BJ = probabilities_BJV.gather(-1, batch.target_output[..., None])[..., 0].cpu()
            for row, chosen_J in zip(rows.tolist(), chosen_BJ, strict=True):
                start = len(config.forced_ids)
                confidences[row] = chosen_J[start : start + len(hypotheses[row])].tolist()
    return share.gather_rows(confidences)
