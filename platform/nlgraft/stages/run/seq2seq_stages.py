"""Stages of encoder-decoders with K sources: training, translation of a split, and its scores."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.artifact import (
    read_lines,
    read_segments,
    write_evaluation,
    write_lines,
    write_metrics,
    write_segments,
)
from nlgraft.evaluation.calibration import evaluate_calibration, token_confidences
from nlgraft.evaluation.inputs import Inputs, with_foreign_source
from nlgraft.evaluation.learned_metric import build_scorer, learned_rows
from nlgraft.evaluation.overlap import lead, oracle
from nlgraft.evaluation.scores import Evaluation, Score, evaluate_documents, evaluate_text
from nlgraft.evaluation.scripts import TextTokenizers, choose_tokenizers
from nlgraft.evaluation.translation import Translations, dev_scores, speed_signature
from nlgraft.evaluation.translation import translate as decode
from nlgraft.nn.context_config import BiLMConfig, ContextConfig, PoolingConfig, UniLMConfig
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.nn.rereading import without_language_model_cache
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.config_parts import MaskedSpansConfig
from nlgraft.stages.metrics import metric_name
from nlgraft.stages.run.context_stages import read_means
from nlgraft.stages.run.text_stages import (
    encode_lines,
    open_tokenizer,
    read_encoded,
    training_budget,
    vocab_sizes,
)
from nlgraft.stages.run.training_task import TrainingTask
from nlgraft.stages.seq2seq_graph import (
    EXTRACT,
    LAST_SENTENCE,
    LEARNED_SCORE,
    NEW_LAYERS,
    SCORE,
    TRAIN,
    TRANSLATE,
    ExtractSettings,
    LearnedScoreSettings,
    NewLayersSettings,
    ScoreSettings,
    TrainInputs,
    TrainSettings,
    TranslateInputs,
    TranslateSettings,
)
from nlgraft.text.corpora import Corpus, read_corpus
from nlgraft.text.corpus_config import EOS
from nlgraft.text.tokenizers import Tokenizer
from nlgraft.training.losses import Seq2SeqObjective, segment_losses
from nlgraft.training.masked_text import MaskedSpans
from nlgraft.training.models import fresh_model, read_config, read_encoder, read_model, write_model
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import Training
from nlgraft.training.train_config import LearnedParameters, Side, View
from nlgraft.training.views import Encoded, EpochStream, SampledText, Seq2SeqData, prepare_inputs
from nlgraft.training.weights import CarryReport, carry_over

LOSS_SIGNATURE = "nats per target token, end of sentence counted, unsmoothed"
CARRY_FILE = "carried.json"
MASKED_STREAM = "masked"
"""Stream of a denoising model's sources."""


def train(context: StageContext) -> None:
    """Train a model, fresh or from an earlier one; write it with its dev loss, size and learning curves."""
    settings, inputs = TRAIN.read(context)
    model = start_model(settings, inputs, context)
    training_task(model, settings, inputs, context).run(context)


def start_model(
    settings: TrainSettings,
    inputs: TrainInputs[Path],
    context: StageContext,
) -> Seq2Seq:
    """Make the model to train: the earlier one, a new one, or a new one with weights carried over."""
    if inputs.start is not None and settings.model is None and not settings.extension:
        model = read_model(inputs.start)
        CarryReport(sorted(model.state_dict()), [], []).write(context.directory / CARRY_FILE)
        return model
    config = settings.model
    if config is None and inputs.start is not None:
        earlier = read_config(inputs.start)
        config = TransformerConfig(**earlier.model_dump() | dict(settings.extension))
    if config is None:
        if inputs.architecture is None:
            raise ContractError(f"stage {context.stage.name}: give it a model, a start or an architecture")
        config = read_config(inputs.architecture)
    encoders = {
        name: read_encoder(path, config.contexts[name].encoder if name in config.contexts else None)
        for name, path in inputs.encoders.items()
    }
    sizes = table_sizes(inputs.encoded, settings.view)
    model = fresh_model(config, *sizes, context.seed, encoders)
    if inputs.start is not None:
        earlier = read_model(inputs.start).state_dict()
        report = carry_over(model, earlier, fresh=settings.carry.fresh)
        report.write(context.directory / CARRY_FILE)
    # Last, since carried weights may include the means over another text.
    for name, path in inputs.means.items():
        model.named_contexts()[name].centre(read_means(path))
    return model


def table_sizes(encoded: Path, view: View) -> tuple[int, int]:
    """Look up the rows of the source table and of the target table.

    Raises:
        DataError: The sources have vocabularies of different sizes, but one table.
    """
    sizes = vocab_sizes(encoded)
    of_sources = {side.stream: sizes[side.stream] for side in view.sources}
    # Ids of a smaller vocabulary would fit the table and mean other tokens.
    if len(set(of_sources.values())) > 1:
        listed = ", ".join(f"{stream} {size}" for stream, size in of_sources.items())
        raise DataError(f"all sources read one embedding table, but their vocabularies differ: {listed}")
    return next(iter(of_sources.values())), sizes[view.target.stream]


def training_task(
    model: Seq2Seq, settings: TrainSettings, inputs: TrainInputs[Path], context: StageContext
) -> TrainingTask:
    """Set up the training of a given model, which is changed in place."""
    data, dev = (batches(split, settings, inputs, context) for split in ("train", "dev"))
    check_positions(model, data, dev)

    def measure(model: Seq2Seq) -> Evaluation:
        rows = segment_losses(model, dev.in_order(), len(dev), context.device)
        return Evaluation.of({"loss": rows}, LOSS_SIGNATURE)

    return TrainingTask(
        Training(model, Seq2SeqObjective.of(settings.train), data, settings.train, settings.learned),
        measure,
        # A start's frozen weights may be others than those of the encoders.
        save=partial(write_model, checkpoints=inputs.encoders if inputs.start is None else None),
        prefix=settings.metric_prefix,
        report_steps=settings.report_steps,
        measure_more=_greedy_bleu(settings, inputs),
    )


# The stage that puts new embedding layers in front of a pretrained model and trains them first.
#
# Source: Lewis et al. (2020), BART, section 3.4, as a baseline of Liu et al. (2021): the pretrained
# embeddings are replaced by a new table followed by a small encoder; these are trained with the model frozen,
# then the whole model is finetuned. Deviations: Lewis et al. replace the encoder's embeddings and in the
# first phase also train positions and the first self-attention. On the decoder's side the new layers are
# causal, and the output rows are a separate table, since the input table of an encoder cannot be tied to the
# output.


REPLACED = {
    "encoder": ("^source_embedding\\.",),
    "decoder": ("^target_embedding\\.", "^output_projection\\."),
}
"""Parameters that the new layers of each side replace."""


def attach_embeddings(context: StageContext) -> None:
    """Add new embedding layers to a pretrained model on the exchanged sides and train only these."""
    settings, inputs = NEW_LAYERS.read(context)
    assert inputs.start is not None
    body = read_model(inputs.start)
    sizes = table_sizes(inputs.encoded, settings.view)
    model = fresh_model(_with_new_layers(body.config, settings, sizes), *sizes, context.seed)
    # The pretrained rows are of another vocabulary, so nothing of them is kept.
    replaced = tuple(pattern for side in settings.sides for pattern in REPLACED[side])
    carry_over(model, body.state_dict(), fresh=replaced, drop=replaced)
    alone = settings.model_copy(update={"learned": LearnedParameters(only=replaced)})
    training_task(model, alone, inputs, context).train(context)


def _with_new_layers(
    config: TransformerConfig, settings: NewLayersSettings, vocab_sizes: tuple[int, int]
) -> TransformerConfig:
    """Describe a model whose embeddings on the exchanged sides are small encoders."""
    sizes = config.model_dump(include={"d_model", "num_heads", "ffn_dim", "dropout"})
    contexts: dict[str, ContextConfig] = {}
    changes: dict[str, Any] = {"contexts": contexts}
    for side, name, size in zip(("encoder", "decoder"), ("source", "target"), vocab_sizes, strict=True):
        if side not in settings.sides:
            continue
        kind = BiLMConfig if side == "encoder" else UniLMConfig
        contexts[f"{name}_layers"] = ContextConfig(
            encoder=kind(vocab_size=size, num_layers=settings.num_layers, **sizes),
            pooling=PoolingConfig(kind="output"),
            is_frozen=False,
            # our two-tower encoder expects an end token on both sides of every sentence
            prepend_id=EOS if side == "encoder" else None,
        )
        changes[f"{name}_context"] = f"{name}_layers"
        # the small encoder scales its own table; scaling its output again would be twice
        changes[f"has_{name}_scale"] = False
    tying = "none" if "decoder" in settings.sides else config.tying
    changes["tying"] = "decoder" if tying == "all" else tying
    return TransformerConfig(**dict(config) | changes)


def batches(
    split: str, settings: TrainSettings, inputs: TrainInputs[Path], context: StageContext
) -> Seq2SeqData:
    """Set up the batches of a split: draws are new in every epoch of train and fixed for dev."""
    is_train = split == "train"
    seed = context.seed if is_train else derive_seed(context.seed, split)
    encoded, view, drawn = read_encoded(inputs.encoded, split), settings.view, dict[str, EpochStream]()
    if settings.masked_spans is not None:
        view, masked = masked_spans(view, encoded, settings.masked_spans, inputs.tokenizers)
        drawn[MASKED_STREAM] = masked
    if is_train and settings.sampling_alpha is not None:
        corpus = read_corpus(inputs.corpus / split)
        for stream, role in settings.streams.items():
            tokenizer = open_tokenizer(inputs.tokenizers[stream])
            drawn[stream] = SampledText(corpus.lines(role), tokenizer, settings.sampling_alpha)
    return Seq2SeqData(
        encoded,
        view,
        batch_tokens=training_budget(settings.train, inputs.corpus, split, seed),
        seed=seed,
        drawn=drawn,
        states={
            stream: FrozenStates(path / f"{split}.safetensors") for stream, path in inputs.states.items()
        },
    )


def masked_spans(
    view: View,
    encoded: Encoded,
    config: MaskedSpansConfig,
    tokenizers: Mapping[str, Path],
) -> tuple[View, MaskedSpans]:
    """Replace the source of a view by its target with masked spans.

    Returns:
        The view, and its source.
    """
    target = view.target.stream
    mask_id = open_tokenizer(tokenizers[target]).id(config.token)
    source = view.sources[0].model_copy(update={"stream": MASKED_STREAM})
    masked = MaskedSpans(encoded.stream(target), mask_id, config.rate, config.mean_tokens)
    return view.model_copy(update={"sources": (source,)}), masked


def check_positions(model: Seq2Seq, *splits: Seq2SeqData) -> None:
    """Refuse inputs longer than the position table, or than that of an encoder in place of embeddings.

    Raises:
        DataError: A sequence of a split is longer.
    """
    view = splits[0].view
    source, target = np.max([split.longest() for split in splits], axis=0)
    for name, sides, length in (("source", view.sources, source), ("target", (view.target,), target)):
        room = model.room(name)
        if room is not None and length > room:
            around = max(len(side.prefix) + len(side.suffix) for side in sides)
            way = f"set data.max_tokens to at most {room - around}"
            if getattr(model.config, f"{name}_context") is not None:
                way = "the encoder in place of the embeddings reads it whole: leave longer lines out"
            raise DataError(
                f"{name} text has up to {length} tokens with its end, the model {room} positions; {way}"
            )


def _greedy_bleu(settings: TrainSettings, inputs: TrainInputs[Path]) -> Callable[[Any], Mapping[str, float]]:
    count, view = settings.num_bleu_sentences, settings.view
    if not count:
        return lambda model: {}
    # Only the inputs are used, so the size of its batches does not matter.
    dev = Seq2SeqData(read_encoded(inputs.encoded, "dev").first(count), view, batch_tokens=1)
    references = read_corpus(inputs.corpus / "dev").text("target")[:count]
    tokenizer = open_tokenizer(inputs.tokenizers[view.target.stream])
    greedy = GenerationConfig(beam=1, start_id=view.target_start, forced_ids=view.target.prefix)
    score = dev_scores(dev.inputs(), references, tokenizer, greedy)
    return lambda model: {f"dev/greedy_{name}": value for name, value in score(model).items()}


# Translation of encoder-decoders, and scores of their output.


HYPOTHESES_FILE = "hypotheses.txt"
_LOG = logging.getLogger(__name__)


def translate(context: StageContext) -> None:
    """Translate a split by beam search; write the hypotheses, their length, the speed and the calibration."""
    settings, inputs = TRANSLATE.read(context)
    split = settings.split
    model = read_model(inputs.model).to(context.device)
    prepared = model_inputs(settings, inputs, model.room("source"))
    if settings.foreign_source is not None:
        # A fixed seed, so that all trials translate the same mismatched sources.
        prepared = with_foreign_source(prepared, settings.foreign_source, seed=0)
    translations = search(model, prepared, settings)
    tokenizer = open_tokenizer(inputs.tokenizers[settings.view.target.stream])
    write_lines(context.directory / HYPOTHESES_FILE, tokenizer.decode(translations.best))
    # Lengths and speed of an upstream model would be taken for the trial's.
    if not settings.is_measured:
        return
    calibrated = None
    if settings.is_calibrated:
        references = read_corpus(inputs.corpus / split).text("target")
        calibrated = calibration(
            model, prepared, translations.best, tokenizer, references, settings.generation
        )
    signature = speed_signature(settings.decode.beam, settings.decode.batch_sentences, context.device)
    write_output_measures(context, split, translations.best, translations.seconds, signature, calibrated)


def write_output_measures(
    context: StageContext,
    split: str,
    outputs: Sequence[Sequence[int]],
    seconds: float,
    signature: str,
    calibrated: Evaluation | None,
) -> None:
    """Write length and speed of the outputs of a split, and their calibration if it was measured."""
    evaluation = _lengths("hypothesis_length", outputs, "tokens of the model, end of sentence not counted")
    if calibrated is not None:
        evaluation |= calibrated
    amounts = {"sentences_per_s": len(outputs), "tokens_per_s": sum(map(len, outputs))}
    speeds = {
        name: Score(amount / seconds, len(outputs), "maximize", signature) for name, amount in amounts.items()
    }
    write_segments(context.directory, split, evaluation.statistics)
    scores = {**evaluation.scores, **speeds}
    write_metrics(context.directory, {f"{split}/{name}": score for name, score in scores.items()})


def search(model: Seq2Seq, inputs: Inputs, settings: TranslateSettings) -> Translations:
    """Search for translations, with or without the cache of a language model."""
    with nullcontext() if settings.has_lm_cache else without_language_model_cache(model):
        return decode(model, inputs, settings.generation)


def model_inputs(
    settings: TranslateSettings,
    inputs: TranslateInputs[Path],
    room: int | None,
) -> Inputs:
    """Encode what the model reads of a split, see ``encoded_inputs``."""
    corpus = read_corpus(inputs.corpus / settings.split)
    return encoded_inputs(settings, corpus, inputs.tokenizers, room)


def encoded_inputs(
    settings: TranslateSettings,
    corpus: Corpus,
    tokenizers: Mapping[str, Path],
    room: int | None,
) -> Inputs:
    """Encode what a model reads of a corpus.

    Sources that are longer than in training, or than the model has room for, are cut and counted.
    """
    view = settings.view
    if room is not None:
        view = view.model_copy(update={"sources": tuple(_fitting(side, room) for side in view.sources)})
    streams, num_cut = {}, Counter[str]()
    for side in (*view.sources, *view.contexts.values()):
        text = corpus.text(settings.streams[side.stream])
        tokenizer = open_tokenizer(tokenizers[side.stream])
        # Test splits are encoded here, since only train and dev are encoded in advance.
        streams[side.stream], num_cut[side.stream] = encode_lines(text, tokenizer, settings.max_tokens)
    prepared, num_cut_by_view = prepare_inputs(Encoded(streams), view)
    for stream, count in (num_cut | Counter(num_cut_by_view)).items():
        if count:
            _LOG.warning("%s, %s: %d of %d sequences were cut", settings.split, stream, count, len(prepared))
    return prepared


def _fitting(side: Side, room: int) -> Side:
    room -= len(side.prefix) + len(side.suffix)
    return side.model_copy(update={"max_tokens": min(room, side.max_tokens or room)})


def _lengths(
    name: str,
    sequences: Sequence[Sequence[int]],
    signature: str,
) -> Evaluation:
    rows = np.array([[len(ids), 1] for ids in sequences], dtype=np.float64)
    return Evaluation.of({name: rows}, signature)


def calibration(
    model: Seq2Seq,
    inputs: Inputs,
    best: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    references: list[str],
    config: GenerationConfig,
) -> Evaluation:
    """Compare the model's confidence in its own tokens with how often they are right."""
    confidences = token_confidences(model, inputs, best, config)
    hypotheses, right = (
        [[str(identity) for identity in ids] for ids in side] for side in (best, tokenizer.encode(references))
    )
    return evaluate_calibration(hypotheses, confidences, right)


def keep_last_sentence(context: StageContext) -> None:
    """Keep the part of each translation after its last separator."""
    settings, inputs = LAST_SENTENCE.read(context)
    lines = read_lines(inputs.translation / HYPOTHESES_FILE)
    kept = [last_sentence(line, settings.separator) for line in lines]
    write_lines(context.directory / HYPOTHESES_FILE, kept)


def last_sentence(line: str, separator: str) -> str:
    """Return the text after the last separator, or the whole line if there is none."""
    return line.rpartition(separator)[2].strip()


def extract(context: StageContext) -> None:
    """Write summaries of a split that are taken from the text itself."""
    settings, inputs = EXTRACT.read(context)
    corpus = read_corpus(inputs.corpus / settings.split)
    texts, references = (corpus.text(role) for role in ("source 0", "target"))
    count, words = settings.num_sentences, _tokenizers(inputs.corpus, settings).rouge
    summaries = [
        lead(text, count) if settings.method == "lead" else oracle(text, reference, count, words)
        for text, reference in zip(texts, references, strict=True)
    ]
    write_lines(context.directory / HYPOTHESES_FILE, summaries)


def score(context: StageContext) -> None:
    """Score the translations of every split, with per-segment statistics and lengths of the references."""
    settings, inputs = SCORE.read(context)
    tokenizer, compared = (
        None if path is None else open_tokenizer(path)
        for path in (inputs.target_tokenizer, inputs.compared_tokenizer)
    )
    words = _tokenizers(inputs.corpus, settings)
    for split, translation in inputs.translations.items():
        corpus = read_corpus(inputs.corpus / split)
        originals = corpus.text("target")
        hypotheses, references = read_lines(translation / HYPOTHESES_FILE), originals
        if tokenizer is not None:
            # characters that the tokenizer normalises away can never be in a hypothesis
            hypotheses, references = tokenizer.normalised(hypotheses), tokenizer.normalised(references)
        normalization = "identity" if tokenizer is None else tokenizer.normalization
        # Both belong to the signature: scores of other words or other text do not compare.
        how = {"tokenizers": words, "normalization": normalization}
        evaluation = evaluate_text(hypotheses, references, settings.metrics, **how)
        if settings.has_documents:
            documents = corpus.text("document")
            evaluation |= evaluate_documents(hypotheses, references, documents, **how)
        if settings.metric_prefix:
            _write_aside(context.directory, split, evaluation, settings.metric_prefix)
            continue
        extra: dict[str, Score] = {}
        if tokenizer is not None:
            signature = "tokens of the model's vocabulary, end of sentence not counted"
            evaluation |= _lengths("reference_length", tokenizer.encode(references), signature)
        if tokenizer is not None and compared is not None:
            extra["length_saved"] = _saved(references, tokenizer, compared)
        if split == "dev" and inputs.trained is not None and tokenizer is not None:
            # Per character of the text as it is: normalisation belongs to a tokenizer.
            lengths = [len(ids) for ids in tokenizer.encode(originals)]
            extra |= _nats_per_char(inputs.trained, originals, lengths, settings.max_tokens)
        write_evaluation(context.directory, split, hypotheses, references, evaluation, extra)


def _tokenizers(corpus: Path, settings: ScoreSettings | ExtractSettings) -> TextTokenizers:
    """Choose by the dev references for all splits, so that their scores compare."""
    references = read_corpus(corpus / "dev").text("target")
    bleu = settings.bleu_tokenizer if isinstance(settings, ScoreSettings) else None
    return choose_tokenizers(references, bleu, settings.rouge_tokenizer)


def _write_aside(
    directory: Path,
    split: str,
    evaluation: Evaluation,
    prefix: str,
) -> None:
    """Write a scored split under a prefix, without its lines; the artifact may already hold another one."""
    scores = {metric_name(f"{split}/{name}", prefix): score for name, score in evaluation.scores.items()}
    write_metrics(directory, scores)
    rows = {f"{split}_{name}": statistics for name, statistics in evaluation.statistics.items()}
    write_segments(directory, prefix, rows)


def _saved(
    references: list[str],
    tokenizer: Tokenizer,
    compared: Tokenizer,
) -> Score:
    after, before = (sum(map(len, each.encode(references))) for each in (tokenizer, compared))
    signature = "1 - tokens of the model's vocabulary / tokens of the upstream vocabulary"
    return Score(1 - after / before, len(references), "maximize", signature)


def _nats_per_char(
    trained: Path,
    references: Sequence[str],
    lengths: Sequence[int],
    max_tokens: int | None,
) -> dict[str, Score]:
    """Divide the loss of the lines that were not cut by their characters; nothing if all were cut."""
    is_whole_N = np.array(lengths) <= (np.inf if max_tokens is None else max_tokens)
    characters = np.array([len(line) for line in references])[is_whole_N].sum()
    if not characters:
        return {}
    nats = read_segments(trained, "dev")["loss"][is_whole_N, 0].sum()
    signature = "nats of one segmentation per reference character|uncut lines"
    value = float(nats / characters)
    return {"nats_per_char": Score(value, int(is_whole_N.sum()), "minimize", signature)}


# Scores of translations by a learned metric.


_DIGITS = 12


def score_learned(context: StageContext) -> None:
    """Score the translations of every split, each segment alone, with the first source and the target."""
    settings, inputs = LEARNED_SCORE.read(context)
    scorer = build_scorer(settings.metric, context.locations.get("checkpoint"), settings.options)
    name = f"learned.{settings.name}"
    for split, translation in inputs.translations.items():
        corpus = read_corpus(inputs.corpus / split)
        sources, references = (corpus.text(role) for role in ("source 0", "target"))
        hypotheses = read_lines(translation / HYPOTHESES_FILE)
        rows = learned_rows(scorer, name, sources, hypotheses, references)
        evaluation = Evaluation.of({name: rows}, _signature(settings))
        write_segments(context.directory, split, evaluation.statistics)
        write_metrics(context.directory, {f"{split}/{name}": evaluation.scores[name]})


def _signature(settings: LearnedScoreSettings) -> str:
    """Name what a score depends on: the metric, its version, checkpoint and options."""
    parts = [settings.metric, f"version:{settings.version}"]
    for what, content in (("checkpoint", settings.content), ("options", settings.options)):
        if content:
            parts.append(f"{what}:{hashlib.sha256(canonical_json(content).encode()).hexdigest()[:_DIGITS]}")
    return "|".join(parts)
