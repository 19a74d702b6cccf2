"""Translation by CTranslate2: plain models, in fp32 or int8."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nlgraft.basics.errors import ContractError
from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.translation import Translations, translate
from nlgraft.nn.batch import Tokens
from nlgraft.nn.conversion.ctranslate2_model import ctranslate2_translator
from nlgraft.nn.ctranslate2_support import unsupported_search
from nlgraft.nn.generation import Hypothesis, penalty, search_limits
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, Precision
from nlgraft.text.batches import Ragged

_NO_PENALTY = 1e-9
"""With an exponent of exactly zero CTranslate2 would stop once the best hypothesis has ended."""


def translate_by_ctranslate2(
    model: Seq2Seq, inputs: Inputs, config: GenerationConfig, precision: Precision
) -> Translations:
    """Decode examples with CTranslate2's beam search.

    It is ours but for one rule: if more hypotheses than the beam holds have ended when a search stops, only
    the likeliest of them are ranked with the length penalty. Sentences that reach their limit, at which our
    hypotheses must end, and those with a padding token, which ours never say, are decoded by our own search.

    Raises:
        ContractError: CTranslate2 is not installed, or knows no such model or search.
    """
    if problems := unsupported_search(config, config.forced_ids):
        raise ContractError("; ".join(problems))
    sources, limits = inputs.sources[0], _limits(model, inputs, config)
    assert isinstance(sources, Ragged), "a plain model reads tokens"
    num_positions = int(max(limits.max(initial=1) + 2, inputs.lengths.max(initial=1)))
    translator = ctranslate2_translator(model, config, precision, num_positions)
    order = np.argsort(-inputs.lengths, kind="stable")
    hypotheses: list[list[Hypothesis]] = [[] for _ in range(len(inputs))]
    started = time.perf_counter()
    for start in range(0, len(order), config.batch_sentences):
        rows = order[start : start + config.batch_sentences]
        found = _batch(translator, sources, rows, config, int(limits[rows].max()))
        for row, best in zip(rows, found, strict=True):
            hypotheses[row] = best
    pad = model.config.pad_id
    left = [row for row in order if any(len(h.ids) >= limits[row] or pad in h.ids for h in hypotheses[row])]
    again = translate(model, Inputs([Ragged.of([sources[int(row)].tolist() for row in left])]), config)
    for row, best in zip(left, again.hypotheses, strict=True):
        hypotheses[row] = best
    kept = [found[: config.num_return] for found in hypotheses]
    return Translations(kept, time.perf_counter() - started)


def _limits(model: Seq2Seq, inputs: Inputs, config: GenerationConfig) -> NDArray[np.int64]:
    lengths = torch.from_numpy(inputs.lengths)
    tokens = Tokens(
        torch.empty(0), torch.arange(int(lengths.max()) if len(lengths) else 0) < lengths[:, None]
    )
    return search_limits(model, [tokens], config).numpy()


def _batch(
    translator: Any, sources: Ragged, rows: NDArray[np.int64], config: GenerationConfig, limit: int
) -> list[list[Hypothesis]]:
    results = translator.translate_batch(
        [[str(token) for token in sources[int(row)].tolist()] for row in rows],
        max_batch_size=0,
        beam_size=config.beam,
        num_hypotheses=config.beam,
        length_penalty=_NO_PENALTY,
        min_decoding_length=0,
        max_decoding_length=limit,
        max_input_length=0,
        return_scores=True,
    )
    return [_ranked(result.hypotheses, result.scores, config) for result in results]


def _ranked(
    found: Sequence[Sequence[str]], logs: Sequence[float], config: GenerationConfig
) -> list[Hypothesis]:
    hypotheses = [
        Hypothesis(
            [int(token) for token in tokens],
            log / penalty(float(len(tokens) + 1), config.length_penalty, config.alpha),
            log,
        )
        for tokens, log in zip(found, logs, strict=True)
    ]
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)
