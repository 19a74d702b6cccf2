"""Names, meanings and settings of metrics, for configs; computes none and so imports no library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from nlgraft.basics.errors import DataError, nearest

BleuTokenizer = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none"]
"""Tokenizers of sacreBLEU; ``none`` is for text whose words are separated already."""
INSTALLED_APART: tuple[BleuTokenizer, ...] = ("ja-mecab", "ko-mecab", "flores200")
"""Tokenizers that need a package or a file besides sacreBLEU."""
RougeTokenizer = Literal["english", "words", "characters"]
"""Tokenizers of ROUGE, on lower-cased text: runs of a-z and 0-9, stemmed (ROUGE-1.5.5 ``-m``); runs of
letters and digits of any script; or runs of a-z and 0-9 and every other letter alone."""
TextMetric = Literal[
    "bleu",
    "bleu_zh",
    "chrf",
    "chrfpp",
    "ter",
    "rouge1",
    "rouge2",
    "rouge_l",
    "rouge_lsum",
    "meteor",
]
"""Metrics that compare two texts."""
Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Scored:
    """What a metric measures.

    Attributes:
        direction: Which way is better.
        unit: Unit of the value.
        description: What is measured.
    """

    direction: Direction
    unit: str
    description: str


_more = partial(Scored, "maximize")
_less = partial(Scored, "minimize")
SCORED: Mapping[str, Scored] = {
    "bleu": _more(
        "BLEU points",
        "Cased BLEU; its tokenizer is score.bleu_tokenizer, or else the one of the references' script.",
    ),
    "bleu_zh": _more("BLEU points", "BLEU with sacreBLEU's Chinese tokenizer."),
    "chrf": _more("chrF points", "chrF2: n-grams of characters."),
    "chrfpp": _more("chrF points", "chrF++: n-grams of characters, words and pairs of words."),
    "ter": _less("TER points", "Translation edit rate."),
    "rouge1": _more("ROUGE points", "ROUGE-1 F1."),
    "rouge2": _more("ROUGE points", "ROUGE-2 F1."),
    "rouge_l": _more("ROUGE points", "ROUGE-L F1."),
    "rouge_lsum": _more("ROUGE points", "ROUGE-Lsum F1, sentence by sentence."),
    "meteor": _more("METEOR points", "METEOR without synonyms."),
    "doc_bleu": _more(
        "BLEU points", "BLEU of whole documents, the sentences of each joined to one line (d-BLEU)."
    ),
    "learned": _more("points", "Mean over segments of a learned metric of score.learned."),
    "item": _more("points", "Mean over items of what a script wrote of each."),
    "loss": _less("nats per token", "Cross-entropy per token."),
    "bits_per_byte": _less(
        "bits per byte",
        "Cross-entropy in bits per byte of text, ends of lines included, one unit for all vocabularies.",
    ),
    "mlm_loss_per_char": _less(
        "nats per character", "Cross-entropy per character of masked words, one unit for all vocabularies."
    ),
    "perplexity": _less("perplexity", "Perplexity per token."),
    "accuracy": _more("points", "Share of lines whose likeliest class is right."),
    "macro_f1": _more("points", "F1 averaged over the classes."),
    "mcc": _more("points", "Matthews' correlation of predicted and true classes."),
    "ece": _less("points", "Expected calibration error: confidence against being right."),
    "hypothesis_length": _less(
        "tokens", "Length of the output in tokens of the model, end of sentence not counted."
    ),
    "reference_length": _less("tokens", "Length of the references in tokens of the model's vocabulary."),
}
"""What is scored segment by segment; `nlgraft.evaluation.sufficient` computes it."""


def scored_name(name: str) -> str:
    """Reduce the name of a metric to the one in `SCORED`.

    Neither a variant after a dot nor a split before it changes the metric: ``bleu.without_source_2``,
    ``test_bleu`` and ``test_2017_bleu`` are BLEU, measured elsewhere.

    Raises:
        DataError: There is no such metric.
    """
    stem = name.split(".", 1)[0]
    if stem in SCORED:
        return stem
    of_a_split = stem.startswith(("dev_", "test_"))
    candidates = [other for other in SCORED if of_a_split and stem.endswith(f"_{other}")]
    if not candidates:
        raise DataError(f"no metric '{name}'. {nearest(name, sorted(SCORED))}")
    # doc_bleu ends in _bleu, too
    return max(candidates, key=len)
