"""Statistics of text overlap, from the libraries that define the metrics.

sacrebleu makes the rows of BLEU, chrF and TER, rouge-score those of ROUGE, nltk those of METEOR. Each
function here returns the rows of all segments and the signature that pins how they were made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.metric_config import BleuTokenizer, RougeTokenizer

if TYPE_CHECKING:  # configs name the metrics, and reading them should not load the libraries
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU

ROUGE_SIGNATURES: dict[RougeTokenizer, str] = {
    "english": "tok:a-z0-9|stem:porter",
    "words": "tok:unicode|stem:no",
    "characters": "tok:characters|stem:no",
}
"""How signatures name each tokenizer of ROUGE."""
_CHUNK_SEGMENTS = 1000
_BLEU_ORDER = 4
RowsFunction = Callable[[Sequence[str], Sequence[str]], tuple[NDArray[np.float64], str]]


def mean_rows(values: ArrayLike) -> NDArray[np.float64]:
    """Put a one beside the value of every segment, so that sums of rows [N, 2] give the mean."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.stack([numbers, np.ones_like(numbers)], axis=1)


def _sacrebleu_rows(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str]
) -> tuple[NDArray[np.float64], str]:
    """Ask sacrebleu for its own statistics, as its bootstrap does, and for its signature."""
    # The only way to sacrebleu's segment statistics, though not a public name. It keeps the n-grams of all
    # references that it is given: of many segments a gigabyte, which Python then searches for garbage.
    parts = [
        metric._extract_corpus_statistics(hypothesis_part, [part])
        for hypothesis_part, part in zip(_parts(hypotheses), _parts(references), strict=True)
    ]
    rows = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    return rows, str(metric.get_signature())


def bleu_rows(tokenizer: BleuTokenizer) -> RowsFunction:
    """Make the function that computes the rows [N, 10] of BLEU-4 and the signature.

    The rows are those of sacrebleu, which tokenizes here, too, but takes four times as long.
    """

    def rows(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[NDArray[np.float64], str]:
        metric = _bleu(tokenizer)
        _pass_over_spaces(metric.tokenizer)
        parts = [
            _bleu_counts([metric._preprocess_segment(line).split() for line in (*hypothesis_part, *part)])
            for hypothesis_part, part in zip(_parts(hypotheses), _parts(references), strict=True)
        ]
        metric.num_refs = 1  # for the signature
        return np.concatenate(parts), str(metric.get_signature())

    return rows


def _parts(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    return (lines[start : start + _CHUNK_SEGMENTS] for start in range(0, len(lines), _CHUNK_SEGMENTS))


def _bleu_counts(lines: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    """Count lengths, matches and totals [N, 10] of N tokenized hypotheses, then N references."""
    ids: dict[str, int] = {}
    token_T = np.array([ids.setdefault(token, len(ids)) for line in lines for token in line], dtype=np.int64)
    lengths = np.array([*map(len, lines)])
    num_segments = len(lines) // 2
    line_T = np.repeat(np.arange(len(lines)), lengths)
    left_T = np.cumsum(lengths)[line_T] - np.arange(len(token_T))
    ngram_T = line_T % num_segments  # an n-gram's number tells its segment, too
    counts = [lengths[:num_segments], lengths[num_segments:]]
    totals = []
    for order in range(1, _BLEU_ORDER + 1):
        places = np.flatnonzero(left_T >= order)
        longer = ngram_T[places] * len(ids) + token_T[places + order - 1]
        _, first, ngrams = np.unique(longer, return_index=True, return_inverse=True)
        ngram_T[places] = ngrams
        is_reference = line_T[places] >= num_segments
        in_output, in_reference = (
            np.bincount(ngrams[chosen], minlength=len(first)) for chosen in (~is_reference, is_reference)
        )
        segments = line_T[places[first]] % num_segments
        counts.append(np.bincount(segments, np.minimum(in_output, in_reference), num_segments))
        totals.append(np.maximum(0, counts[0] - order + 1))
    return np.stack([*counts, *totals], axis=1).astype(np.float64)


def _pass_over_spaces(tokenizer: Any) -> None:
    """Let the tokenizers ``13a`` and ``zh`` leave spaces alone, of which they would make three, then one."""
    # Half of the time of both, by a private name: another sacrebleu without it tokenizes as it does.
    inner = getattr(tokenizer, "_post_tokenizer", None)
    if inner is not None and hasattr(inner, "_re"):
        inner._re = [(re.compile(rule.pattern.replace(r" -\&", r"!-\&")), by) for rule, by in inner._re]


def check_bleu_tokenizer(tokenizer: BleuTokenizer) -> None:
    """Make sure that a tokenizer can be used on this machine.

    Raises:
        DataError: A package or a file that it needs is missing.
    """
    _bleu(tokenizer)


def _bleu(tokenizer: BleuTokenizer) -> BLEU:
    from sacrebleu.metrics.bleu import BLEU

    try:
        # force: our texts may end in a tokenised full stop, of which sacrebleu would warn
        return BLEU(tokenize=tokenizer, force=True)
    except RuntimeError as error:  # how sacrebleu reports missing packages
        extra = tokenizer.partition("-")[0]
        raise DataError(f"BLEU tokenizer {tokenizer} needs `pip install 'sacrebleu[{extra}]'`") from error
    except (OSError, ImportError) as error:
        raise DataError(
            f"BLEU tokenizer {tokenizer} cannot be loaded ({error}); sacreBLEU downloads its model on "
            "first use into ~/.sacrebleu (SACREBLEU names another place) and needs the sentencepiece package"
        ) from error


def chrf_rows(word_order: int) -> RowsFunction:
    """Make the function that computes the rows [N, 3 * (6 + word_order)] of chrF (0) or chrF++ (2)."""

    def rows(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[NDArray[np.float64], str]:
        from sacrebleu.metrics.chrf import CHRF

        return _sacrebleu_rows(CHRF(word_order=word_order), hypotheses, references)

    return rows


def ter_rows(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[NDArray[np.float64], str]:
    """Count TER's edits and reference words of every segment, [N, 2]."""
    from sacrebleu.metrics.ter import TER

    return _sacrebleu_rows(TER(), hypotheses, references)


def rouge_rows(kind: str, tokenizer: RougeTokenizer) -> RowsFunction:
    """Make the function that computes ROUGE F1 of every segment: rows [N, 2] (F1, 1).

    Args:
        kind: ``rouge1``, ``rouge2``, ``rougeL`` or ``rougeLsum``: the union of sentences' common
            subsequences, sentences as ``extractive.sentences`` splits them.
        tokenizer: What counts as a word; ``english`` is the library's own.
    """

    def rows(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[NDArray[np.float64], str]:
        scorer = rouge_scorer([kind], tokenizer)

        def lines(text: str) -> str:
            return "\n".join(sentences(text)) if kind == "rougeLsum" else text

        values = [
            scorer.score(lines(reference), lines(hypothesis))[kind].fmeasure
            for hypothesis, reference in zip(hypotheses, references, strict=True)
        ]
        how = ROUGE_SIGNATURES[tokenizer]
        signature = f"{kind}|f1|mean:segments|nrefs:1|{how}|rouge_score:{version('rouge-score')}"
        return mean_rows(values), signature

    return rows


def meteor_rows(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[NDArray[np.float64], str]:
    """Compute METEOR of every segment with the matchers "exact" and "Porter stem": rows [N, 2] (score, 1).

    The synonym matcher is left out because WordNet does not come with a package; the signature says so.
    The corpus value is the mean over segments, as nltk's users report it; the Java tool weights by length.

    Source: Lavie and Agarwal (2007): alpha 0.9, beta 3, gamma 0.5.
    """
    from nltk.translate.meteor_score import single_meteor_score
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    tokenize = Tokenizer13a()
    # A stand-in for WordNet, whose data does not come with a package.
    no_synonyms: Any = SimpleNamespace(synsets=lambda word: [])
    values = [
        single_meteor_score(tokenize(reference).split(), tokenize(hypothesis).split(), wordnet=no_synonyms)
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    ]
    signature = (
        "meteor|match:exact+porter|synonyms:no|alpha:0.9|beta:3|gamma:0.5|case:lc|tok:13a|mean:segments"
        f"|nrefs:1|nltk:{version('nltk')}"
    )
    return mean_rows(values), signature


# Summaries taken from the text itself: its first sentences, and those nearest to the reference.


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])\s*(?=.)")
_WORDS = {"words": re.compile(r"\w+"), "characters": re.compile(r"[a-z0-9]+|[^\W_]")}


def sentences(text: str) -> list[str]:
    """Split a line behind full stops, exclamation and question marks, wide ones even without white space."""
    return _SENTENCE_END.split(text.strip())


def rouge_scorer(kinds: Sequence[str], tokenizer: RougeTokenizer) -> Any:
    """Make rouge-score's scorer with a tokenizer."""
    from rouge_score.rouge_scorer import RougeScorer

    word = _WORDS.get(tokenizer)
    if word is None:
        return RougeScorer([*kinds], use_stemmer=True)
    # Words of lower-cased text in any script, without stemming.
    words: Any = SimpleNamespace(tokenize=lambda text: word.findall(text.lower()))
    return RougeScorer([*kinds], tokenizer=words)


def lead(text: str, num_sentences: int) -> str:
    """Take the first sentences."""
    return " ".join(sentences(text)[:num_sentences])


def oracle(
    text: str,
    reference: str,
    num_sentences: int,
    tokenizer: RougeTokenizer = "english",
) -> str:
    """Choose sentences one by one while each raises the sum of ROUGE-1 and ROUGE-2 F1, in the text's order.

    Source: Nallapati et al. (2017), SummaRuNNer, section 3 (greedy extractive labels).
    """
    scorer, parts = rouge_scorer(["rouge1", "rouge2"], tokenizer), sentences(text)

    def value(chosen: set[int]) -> float:
        summary = " ".join(parts[index] for index in sorted(chosen))
        return sum(score.fmeasure for score in scorer.score(reference, summary).values())

    chosen: set[int] = set()
    best = 0.0
    while len(chosen) < min(num_sentences, len(parts)):
        rest = [index for index in range(len(parts)) if index not in chosen]
        index = max(rest, key=lambda index: value(chosen | {index}))
        reached = value(chosen | {index})
        # The first sentence is taken whatever its value: a summary has at least one.
        if chosen and reached <= best:
            break
        chosen, best = chosen | {index}, reached
    return " ".join(parts[index] for index in sorted(chosen))
