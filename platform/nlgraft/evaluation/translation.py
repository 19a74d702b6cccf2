"""Translation of encoded sources, and scores on dev during training."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.evaluation.scripts import choose_tokenizers
from nlgraft.evaluation.shares import SHARE
from nlgraft.nn.generation import Hypothesis, beam_search
from nlgraft.nn.linear import packed_weights
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.nn.modes import evaluating
from nlgraft.nn.transformers_lms import TransformersCausalLM
from nlgraft.text.batches import Ragged
from nlgraft.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Translations:
    """The output of a model.

    Attributes:
        hypotheses: For each example its hypotheses, best first, in the order of the inputs.
        seconds: Wall-clock time of decoding, without what came before and after.
    """

    hypotheses: list[list[Hypothesis]]
    seconds: float

    @property
    def best(self) -> list[list[int]]:
        """Ids of the best hypothesis of each example, without start and end."""
        return [hypotheses[0].ids if hypotheses else [] for hypotheses in self.hypotheses]


def translate(model: Any, inputs: Inputs, config: GenerationConfig) -> Translations:
    """Decode examples in batches of similar length, all workers of a `SHARE` together; keeps their order.

    Args:
        model: A ``Seq2Seq`` on any device.
        inputs: What it reads.
        config: Beam, length rules, sentences at once.
    """
    # sentences of one length end at about one time, so batches are cut from the longest to the shortest
    order = np.argsort(-inputs.lengths, kind="stable")
    decoded: dict[int, list[Hypothesis]] = {}
    share, started = SHARE.get(), time.perf_counter()
    with packed_weights(model):
        for start in share.of(range(0, len(order), config.batch_sentences)):
            rows = order[start : start + config.batch_sentences]
            sources, contexts = inputs.pack(rows)
            beams = beam_search(model, sources, contexts, config, inputs.length_source)
            decoded |= zip(rows.tolist(), beams, strict=True)
    return Translations(share.gather_rows(decoded), time.perf_counter() - started)


def dev_scores(
    inputs: Inputs,
    references: Sequence[str],
    tokenizer: Tokenizer,
    config: GenerationConfig,
) -> Callable[[Any], dict[str, float]]:
    """Make the function that decodes dev sentences and scores them, for ``train(evaluate=...)``.

    Args:
        inputs: What the model reads.
        references: Human text of each example.
        tokenizer: Tokenizer of the target.
        config: Beam and length rules; beam 1 is cheap and ranks checkpoints nearly as well.

    Returns:
        A function from a model to ``{"bleu": value}``.

    Raises:
        DataError: Inputs and references differ in number.
    """
    if len(inputs) != len(references):
        raise DataError(f"{len(inputs)} examples to translate but {len(references)} references")

    normalised, words = tokenizer.normalised(references), choose_tokenizers(references)

    def evaluate(model: Any) -> dict[str, float]:
        hypotheses = tokenizer.normalised(tokenizer.decode(translate(model, inputs, config).best))
        scores = evaluate_text(hypotheses, normalised, ("bleu",), tokenizers=words).scores
        return {name: score.value for name, score in scores.items()}

    return evaluate


def complete(
    model: TransformersCausalLM, prompts: Ragged, settings: Any, batch_sentences: int
) -> tuple[list[list[int]], float]:
    """Write a text after each prompt by ``generate`` of transformers and its cache, all workers together.

    Args:
        model: On any device.
        prompts: Ids of each prompt, its begin included; none is empty.
        settings: A ``GenerationConfig`` of transformers with the token that ends a text; it fills padding.
        batch_sentences: Prompts that are read at once, after sorting by length.

    Returns:
        Ids behind each prompt up to the end, which is left out, in the order of the prompts; and the seconds.
    """
    order = np.argsort(-prompts.lengths, kind="stable")
    texts: dict[int, list[int]] = {}
    device, end_id = model.input_table.device, settings.eos_token_id
    # What a checkpoint would set besides, e.g. a penalty on repetitions, is not the study's.
    model.model.generation_config = type(settings)()
    share, started = SHARE.get(), time.perf_counter()
    with evaluating(model):
        for start in share.of(range(0, len(order), batch_sentences)):
            rows = order[start : start + batch_sentences]
            width = prompts.lengths[rows].max()
            # On the left, so that what is written follows each prompt.
            ids = torch.full((len(rows), width), end_id)
            is_read = torch.arange(width) >= torch.from_numpy(width - prompts.lengths[rows])[:, None]
            ids[is_read] = torch.from_numpy(np.concatenate([prompts[row] for row in rows])).long()
            written = model.model.generate(
                ids.to(device), attention_mask=is_read.long().to(device), generation_config=settings
            )
            for row, text in zip(rows.tolist(), written[:, width:].tolist(), strict=True):
                texts[row] = text[: text.index(end_id)] if end_id in text else text
    return share.gather_rows(texts), time.perf_counter() - started


def speed_signature(
    beam: int,
    batch_sentences: int,
    device: torch.device | str,
) -> str:
    """Describe what a speed depends on besides the model and how it decodes, in which arms may differ."""
    kind = torch.device(device).type
    threads = f"|threads:{torch.get_num_threads()}" if kind == "cpu" else ""
    workers = f"|workers:{SHARE.get().size}" if SHARE.get().size > 1 else ""
    return f"beam:{beam}|batch:{batch_sentences}|device:{kind}{threads}{workers}"
