"""The piece of a stage graph that scores summaries which are taken from the text itself, without torch."""

from __future__ import annotations

from collections.abc import Sequence

from nlgraft.evaluation.metric_config import RougeTokenizer
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.kinds.seq2seq_kinds import EXTRACT, SCORE, ExtractSettings, ScoreInputs, ScoreSettings
from nlgraft.stages.kinds.text_kinds import CorpusInputs
from nlgraft.stages.metrics import EXTRACT_METHODS, ROUGE


def extract_scores(
    corpus: Stage, splits: Sequence[str], *, num_sentences: int, rouge_tokenizer: RougeTokenizer | None = None
) -> dict[str, Stage]:
    """Score summaries that are taken from the text itself: ``further`` stages of ``scores``."""
    score_stages = {}
    for method in EXTRACT_METHODS:
        summaries = {
            split: EXTRACT.stage(
                f"{method}_{split}",
                ExtractSettings(
                    split=split,
                    method=method,
                    num_sentences=num_sentences,
                    # The first sentences depend on no reference, so their stage must not depend on the
                    # tokenizer.
                    rouge_tokenizer=rouge_tokenizer if method == "oracle" else None,
                ),
                CorpusInputs(corpus=corpus),
            )
            for split in splits
        }
        score_stages[method] = SCORE.stage(
            f"{method}_scores",
            ScoreSettings(metrics=ROUGE, rouge_tokenizer=rouge_tokenizer, metric_prefix=method),
            ScoreInputs(corpus=corpus, translations=summaries),
        )
    return score_stages
