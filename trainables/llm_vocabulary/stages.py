"""Training and scoring of causal language models of transformers."""

from __future__ import annotations

import json
import logging
import re
import timeit
from collections.abc import Callable, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import GenerationConfig

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.artifact import read_metrics, write_lines, write_metrics
from nlgraft.evaluation.calibration import evaluate_calibration
from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.evaluation.translation import complete, speed_signature
from nlgraft.nn.modes import seeded, synchronize
from nlgraft.nn.transformers_lms import TransformersCausalLM, fresh_llama, load_causal_lm
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.seq2seq_stages import HYPOTHESES_FILE, write_output_measures
from nlgraft.stages.run.text_stages import REPORT_FILE, read_encoded
from nlgraft.stages.run.training_task import (
    KEPT,
    TrainingTask,
    new_rows_first,
    write_scores,
    write_split,
)
from nlgraft.stages.stage_kind import SIDE, TrainLanguageModelInputs
from nlgraft.stages.text_graph import TARGET
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus, read_splits
from nlgraft.text.files import JoinedLines, chunks, read_json, write_json
from nlgraft.text.tokenizers import TOKENIZER_FILE, learn_byte_tokenizer
from nlgraft.training.adapters import ADAPTER, add_adapters
from nlgraft.training.causal_text import (
    LineEnds,
    PackedText,
    Prompted,
    PromptedText,
    causal_losses,
    causal_objective,
    check_positions,
    target_confidences,
    target_losses,
    target_objective,
    token_counts,
)
from nlgraft.training.loop import CURVES_FILE, TrainOutcome
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import RowsFirst, Training
from nlgraft.training.token_distillation import (
    AlignedText,
    Contexts,
    Segmented,
    TokenDistillation,
    draw,
    text_sizes,
)
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, LoraConfig, ParameterGroup
from nlgraft.training.views import Encoded, IntArray, surround, write_encoded
from nlgraft.vocab.tokenizers.encoding import (
    count_tokens,
    encode_batch,
    open_tokenizer,
    text_encoder,
)
from nlgraft.vocab.tokenizers.extension import learn_extension
from nlgraft.vocab.tokenizers.loading import copy_settings, copy_tokenizer, load_vocabulary
from nlgraft.vocab.tokenizers.pruning import prune_tokenizer
from nlgraft.vocab.transfer_plan import TransferPlan
from trainables.llm_vocabulary.config import SOURCE
from trainables.llm_vocabulary.graph import (
    BYTE_TOKENIZER,
    CATCH_UP,
    CHANGE,
    DISTILLED,
    ENCODED_LINES,
    ENCODED_PAIRS,
    GENERATION,
    MEASURES,
    RELEASED_CAUSAL,
    SCORE_CAUSAL,
    TEXT,
    TRAIN_CAUSAL,
    WRITTEN,
    MeasureInputs,
    PairSettings,
    ScoreCausalInputs,
    TrainCausalSettings,
)
from trainables.llm_vocabulary.metrics import METRICS

ALWAYS = 10**9
"""More steps than any training has."""
READ_FILE = "tokens_read.safetensors"
"""How often each token was read in the training."""
_SIGNATURE = "each line by itself, its end one byte and one token"
_TARGET_SIGNATURE = "each target after its prompt, its end one byte and one token; bytes of uncut ones"
_LOG = logging.getLogger(__name__)


def read_released(context: StageContext) -> None:
    """Take a released model as it is."""
    settings, _ = RELEASED_CAUSAL.read(context)
    load_causal_lm(context.locations["checkpoint"], settings.revision).write(context.directory)


def train(context: StageContext) -> None:
    """Train a causal language model; write it as a directory of transformers, with its dev scores."""
    settings, inputs = TRAIN_CAUSAL.read(context)
    ends = LineEnds.of(load_vocabulary(inputs.tokenizer))
    model = _start_model(settings, inputs, context, ends)
    check_positions(model, settings.max_tokens)
    text = _training_text(settings, inputs, ends, context.seed)

    def measure(model: TransformersCausalLM) -> Evaluation:
        return _evaluate(model, inputs, "dev", settings.max_tokens, context.device)

    def save(model: TransformersCausalLM, directory: Path) -> None:
        # With its tokenizer the artifact is whole for transformers.
        model.write(directory)
        copy_tokenizer(inputs.tokenizer, directory)

    rows_first = _rows_first(settings, inputs, model, context.seed)
    objective = causal_objective if isinstance(text, PackedText) else target_objective
    training = Training(model, objective, text, settings.train, _learned(settings, model))
    outcome, _ = TrainingTask(training, measure, save, rows_first, settings.metric_prefix).run(context)
    times = text.times_read(outcome.step * settings.train.accumulation)
    sequences = _sequences(read_encoded(inputs.encoded, "train"))
    counts = token_counts(sequences, times, len(model.input_table))
    save_file({"counts": counts}, context.directory / READ_FILE)
    num_bytes = int(times @ _over_sides(inputs.corpus, str.encode))
    write_scores(context.directory, _bytes_read(num_bytes, outcome), settings.metric_prefix)


def distil(context: StageContext) -> None:
    """Fit new rows to the states of the model with its old vocabulary; write it with its plan."""
    settings, inputs = DISTILLED.read(context)
    teacher = load_causal_lm(str(inputs.teacher), None).to(context.device)
    teacher.eval().requires_grad_(False)
    model = load_causal_lm(str(inputs.start), None)
    num_layers = model.model.config.get_text_config().num_hidden_layers
    if abs(settings.layer) > num_layers:
        raise DataError(f"vocabulary.distillation.layer {settings.layer}: the model has {num_layers} layers")
    sides = (inputs.old_encoded, inputs.old_tokenizer), (inputs.encoded, inputs.tokenizer)
    text, dev_text = (
        AlignedText(*(_segmented(*side, split) for side in sides)) for split in ("train", "dev")
    )
    new_rows = new_rows_first(ALWAYS, inputs.start, model, model.vocabulary_tensors)
    assert new_rows is not None, "every exchange writes a plan"
    is_new_V = next(iter(new_rows.rows.values()))
    edges, ids = text.replaced(is_new_V.numpy())
    if not len(ids):
        raise DataError(
            "in data.downstream no new token stands for several old ones: set vocabulary.distillation to null"
        )
    has_contexts_V = torch.zeros_like(is_new_V)
    has_contexts_V[torch.from_numpy(ids)] = True
    edges = edges[draw(ids, settings.num_contexts, context.seed)]
    data, dev = (
        Contexts(
            lines,
            pieces,
            max_tokens=settings.context_tokens,
            num_contexts=settings.train.batch_sentences or 1,
            seed=context.seed,
        )
        for lines, pieces in (
            (text, (edges - 1, edges)),
            (dev_text, (dev_text.begins, dev_text.begins)),
        )
    )
    objective = TokenDistillation(teacher, settings.layer)

    @torch.no_grad()
    def measure(model: TransformersCausalLM) -> Evaluation:
        batches = (dev.batch(rows, 0).to(context.device) for rows in dev.epoch(0))
        losses = [objective(model, batch) for batch in batches]
        sums = np.array([[float(loss.loss_sum), loss.num_tokens] for loss in losses])
        return Evaluation.of({"loss": sums}, "per edge of both segmentations")

    learned = LearnedParameters(only=tuple(f"^{re.escape(name)}$" for name in new_rows.rows))
    rows_first = RowsFirst(ALWAYS, dict.fromkeys(new_rows.rows, has_contexts_V))
    training = Training(model, objective, data, settings.train, learned)
    TrainingTask(training, measure, TransformersCausalLM.write, rows_first, "distillation").run(context)
    # The training that follows may train the new rows first.
    TransferPlan.load(inputs.start / f"plan-{SIDE}").save(context.directory / f"plan-{SIDE}")


def _segmented(encoded: Path, tokenizer: Path, split: str) -> Segmented:
    vocabulary = load_vocabulary(tokenizer)
    lines = read_encoded(encoded, split).stream(TEXT)
    return Segmented(lines, LineEnds.of(vocabulary).begin, text_sizes(vocabulary))


def _start_model(
    settings: TrainCausalSettings,
    inputs: TrainLanguageModelInputs[Path],
    context: StageContext,
    ends: LineEnds,
) -> TransformersCausalLM:
    if inputs.start is not None:
        return load_causal_lm(str(inputs.start), None)
    if settings.llama is None:
        raise ContractError(f"stage {context.stage.name}: give it a start, or a llama")
    return fresh_llama(
        settings.llama,
        len(load_vocabulary(inputs.tokenizer)),
        end_id=ends.end,
        max_tokens=settings.max_tokens,
        seed=derive_seed(context.seed, "initial weights"),
    )


def _rows_first(
    settings: TrainCausalSettings,
    inputs: TrainLanguageModelInputs[Path],
    model: TransformersCausalLM,
    seed: int,
) -> RowsFirst | None:
    """Put adapters into the model if it gets any, and find the rows that learn alone."""
    if inputs.start is None:
        return None
    steps = settings.new_rows_first_steps if settings.lora is None else ALWAYS
    rows = new_rows_first(steps, inputs.start, model, model.vocabulary_tensors)
    if settings.lora is None:
        return rows
    return rows_and_adapters(model, rows, settings.lora, derive_seed(seed, "adapters"))


def _training_text(
    settings: TrainCausalSettings, inputs: TrainLanguageModelInputs[Path], ends: LineEnds, seed: int
) -> PackedText | PromptedText:
    config, encoded = settings.train, read_encoded(inputs.encoded, "train")
    lines, pairs = _sequences(encoded), _pairs(encoded)
    if config.batch_tokens is not None:
        sizes = lines.lengths + 1
    elif config.batch_characters is not None:
        sizes = _over_sides(inputs.corpus, str)
    else:
        sizes = np.ones(len(lines), dtype=np.int64)
    budget = config.batch_tokens or config.batch_characters or config.batch_sentences
    assert budget is not None, "a training has one budget"
    if pairs is not None:
        return PromptedText(sizes, budget, seed, pairs)
    return PackedText(sizes, budget, seed, lines, ends, settings.max_tokens)


def _learned(settings: TrainCausalSettings, model: TransformersCausalLM) -> LearnedParameters:
    # The optimiser knows a tied table by the first of its names. Beside adapters only new rows learn.
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    names = learning & model.vocabulary_tensors
    if settings.table_lr_multiplier == 1.0 or not names:
        return ALL_LEARNED
    pattern = f"^({'|'.join(map(re.escape, sorted(names)))})$"
    group = ParameterGroup(pattern=pattern, lr_multiplier=settings.table_lr_multiplier)
    return LearnedParameters(groups=(group,))


def _bytes_read(num_bytes: int, outcome: TrainOutcome) -> dict[str, Score]:
    speed, signature = num_bytes / outcome.seconds, "ends of lines included, as often as they were read"
    return {
        "train_bytes": Score(num_bytes, 1, "minimize", signature),
        "train_bytes_per_s": Score(speed, 1, "maximize", signature),
    }


def score(context: StageContext) -> None:
    """Measure the losses of a model on a split."""
    settings, inputs = SCORE_CAUSAL.read(context)
    model = load_causal_lm(str(inputs.model), None).to(context.device)
    check_positions(model, settings.max_tokens)
    evaluation = _evaluate(model, inputs, settings.split, settings.max_tokens, context.device)
    write_split(context.directory, settings.split, evaluation, settings.metric_prefix)


def _evaluate(
    model: TransformersCausalLM,
    inputs: TrainLanguageModelInputs[Path] | ScoreCausalInputs[Path],
    split: str,
    max_tokens: int,
    device: str,
) -> Evaluation:
    """Measure nats with tokens, and with bytes, of every line, or of every target after its prompt."""
    ends = LineEnds.of(load_vocabulary(inputs.tokenizer))
    encoded = read_encoded(inputs.encoded, split)
    pairs = _pairs(encoded)
    if pairs is None:
        signature, lines = _SIGNATURE, lines_of(inputs.corpus, split)
        rows = causal_losses(model, encoded.stream(TEXT), ends, max_tokens, device)
    else:
        signature, lines = _TARGET_SIGNATURE, read_corpus(inputs.corpus / split).text(TARGET)
        rows = target_losses(model, pairs, device)
    in_bytes = np.stack([rows[:, 0], bytes_of(lines).astype(np.float64)], 1)
    if pairs is not None:
        # A target that was cut has no end, and its bytes are not those of its tokens.
        last_N = pairs.sequences.values[pairs.sequences.offsets[1:] - 1]
        in_bytes *= (last_N == ends.end)[:, None]
    return Evaluation.of({"loss": rows, "bits_per_byte": in_bytes}, signature)


# Text and vocabularies of causal language models.


def _sides(corpus: Path, split: str) -> list[Sequence[str]]:
    streams = read_corpus(corpus / split).streams()
    return [streams[role] for role in (TEXT, TARGET) if role in streams]


def _over_sides(corpus: Path, measured: Callable[[str], Sized]) -> IntArray:
    """Measure every example of train, ends of all its lines included, [N]."""
    return np.sum([_sizes(side, measured) for side in _sides(corpus, "train")], axis=0)


def _sizes(lines: Sequence[str], measured: Callable[[str], Sized]) -> IntArray:
    """Measure lines, the end of each included, [N]."""
    return np.fromiter((len(measured(line)) + 1 for line in lines), np.int64)


def lines_of(corpus: Path, split: str) -> Sequence[str]:
    """Read the lines of a split; those of targets, if it has any, follow those of sources."""
    return JoinedLines(_sides(corpus, split))


def bytes_of(lines: Sequence[str]) -> IntArray:
    """Measure lines in bytes of UTF-8, the end of each included, [N]."""
    return _sizes(lines, str.encode)


def learn_tokenizer(context: StageContext) -> None:
    """Learn a byte-level vocabulary from the training lines of a corpus."""
    settings, inputs = BYTE_TOKENIZER.read(context)
    lines = lines_of(inputs.corpus, "train")
    learn_byte_tokenizer(lines, settings.tokenizer.vocab_size, context.directory)


def change(context: StageContext) -> None:
    """Prune a vocabulary by the training lines of a corpus, extend it on them, or both."""
    settings, inputs = CHANGE.read(context)
    lines = lines_of(inputs.corpus, "train")
    file = inputs.tokenizer / TOKENIZER_FILE
    new_ids = None
    if settings.size is not None:
        counts = count_tokens(open_tokenizer(file), lines).tolist()
        pruned = prune_tokenizer(read_json(file), counts, size=settings.size)
        new_ids = {old: new for new, old in enumerate(pruned.old_ids)}
        file = _write(pruned.document, context.directory)
    if settings.num_added is not None and settings.min_count is not None:
        tokenizer, document = open_tokenizer(file), read_json(file)
        _write(
            learn_extension(tokenizer, document, lines, settings.num_added, settings.min_count),
            context.directory,
        )
    copy_settings(inputs.tokenizer, context.directory, new_ids)


def _write(document: dict[str, object], directory: Path) -> Path:
    file = directory / TOKENIZER_FILE
    file.write_text(json.dumps(document, ensure_ascii=False), "utf-8")
    return file


def encode_pairs(context: StageContext) -> None:
    """Encode prompts and targets of all splits; sources and targets that are too long are cut and counted."""
    settings, inputs = ENCODED_PAIRS.read(context)
    tokenizer = open_tokenizer(inputs.tokenizer / TOKENIZER_FILE)
    ends = LineEnds.of(load_vocabulary(inputs.tokenizer))
    report = {}
    for split, corpus in read_splits(inputs.corpus).items():
        prompts, num_cut_prompts = _prompts(tokenizer, corpus.text(TEXT), settings)
        encoded = Ragged.of(encode_batch(tokenizer, corpus.text(TARGET)))
        with_ends = surround(encoded, (), (ends.end,))
        targets, num_cut_targets = with_ends.truncated(settings.max_target_tokens)
        if num_cut_targets == len(targets):
            raise DataError(f"{split}: every target is longer than max_target_tokens: raise it")
        if num_cut_prompts or num_cut_targets:
            cut = f"{num_cut_prompts} sources and {num_cut_targets} targets of {len(targets)} were cut"
            _LOG.warning("%s: %s: %s", context.stage.name, split, cut)
        report |= {f"{split}/{TEXT}": {"cut": num_cut_prompts}, f"{split}/{TARGET}": {"cut": num_cut_targets}}
        streams = {TEXT: surround(prompts, (ends.begin,), ()), TARGET: targets}
        Encoded(streams).write(context.directory / f"{split}.safetensors")
    write_json(context.directory / REPORT_FILE, report)


def _prompts(
    tokenizer: Any,
    sources: list[str],
    settings: PairSettings,
) -> tuple[Ragged, int]:
    """Encode prompts, and count those whose source has lost its last tokens."""
    prompts = encode_batch(tokenizer, [settings.prompt.replace(SOURCE, source) for source in sources])
    room, num_cut = settings.max_prompt_tokens, 0
    for row, source in enumerate(sources):
        num_cut += len(prompts[row]) > room
        rest = source
        # Again, since the text around the source may be segmented in another way than before.
        while (excess := len(prompts[row]) - room) > 0:
            if not rest:
                raise DataError(
                    f"task.prompt alone has {len(prompts[row])} tokens, but there is room for {room}: "
                    "shorten it, or raise causal_lm.max_tokens"
                )
            offsets = tokenizer.encode(rest, add_special_tokens=False).offsets
            rest = rest[: offsets[-excess][0]] if excess < len(offsets) else ""
            prompts[row] = encode_batch(tokenizer, [settings.prompt.replace(SOURCE, rest)])[0]
    return Ragged.of(prompts), num_cut


def _pairs(encoded: Encoded) -> Prompted | None:
    """Return the prompts and targets of a split; None if it has lines alone."""
    if TARGET not in encoded.streams:
        return None
    return Prompted(encoded.stream(TEXT), encoded.stream(TARGET))


def _sequences(encoded: Encoded) -> Ragged:
    pairs = _pairs(encoded)
    return encoded.stream(TEXT) if pairs is None else pairs.sequences


def write(context: StageContext) -> None:
    """Write targets after the prompts of a split; measure length, speed and calibration."""
    settings, inputs = WRITTEN.read(context)
    model = load_causal_lm(str(inputs.model), None).to(context.device)
    decode, ends = settings.decode, LineEnds.of(load_vocabulary(inputs.tokenizer))
    prompts = read_encoded(inputs.encoded, settings.split).stream(TEXT)
    search = GenerationConfig(
        max_new_tokens=settings.max_target_tokens,
        min_new_tokens=decode.min_length,
        num_beams=decode.beam,
        eos_token_id=ends.end,
        pad_token_id=ends.end,
        do_sample=False,
        **({"length_penalty": decode.alpha} if decode.beam > 1 else {}),
    )
    written, seconds = complete(model, prompts, search, decode.batch_sentences)
    tokenizer = open_tokenizer(inputs.tokenizer / TOKENIZER_FILE)
    lines = [" ".join(text.splitlines()) for text in tokenizer.decode_batch(written)]
    write_lines(context.directory / HYPOTHESES_FILE, lines)
    calibrated = None
    if settings.is_calibrated:
        confidences = target_confidences(model, Prompted(prompts, Ragged.of(written)), context.device)
        references = encode_batch(tokenizer, read_corpus(inputs.corpus / settings.split).text(TARGET))
        tokens = [[*map(str, ids)] for ids in written]
        right = [[*map(str, ids)] for ids in references]
        calibrated = evaluate_calibration(tokens, confidences, right)
    signature = speed_signature(decode.beam, decode.batch_sentences, context.device)
    write_output_measures(context, settings.split, written, seconds, signature, calibrated)


def encode(context: StageContext) -> None:
    """Encode all splits that the corpus has; no line is cut."""
    _, inputs = ENCODED_LINES.read(context)
    encoder = text_encoder(inputs.tokenizer, load_vocabulary(inputs.tokenizer))
    for split in read_splits(inputs.corpus):
        lines = lines_of(inputs.corpus, split)
        parts = ((TEXT, Ragged.of(encoder(chunk))) for chunk in chunks(lines))
        write_encoded(context.directory / f"{split}.safetensors", parts)


# What a vocabulary makes of a text, how fast a model writes with it, and when it has caught up.


NUM_TEXTS, NUM_TOKENS = 8, 32
"""Texts that are sampled together, and tokens of each."""
NUM_RUNS = 2
"""Number of timed runs; the fastest counts, since other load only slows a run down."""


def measure_text(context: StageContext) -> None:
    """Measure test in the trial's vocabulary."""
    _, inputs = MEASURES.read(context)
    ids = read_encoded(inputs.encoded, "test").stream(TEXT).values
    lines = lines_of(inputs.corpus, "test")
    unknown = load_vocabulary(inputs.tokenizer).roles.get("unk", -1)
    num_words = sum(len(line.split()) for line in lines)
    measured = {
        "text/tokens_per_word": len(ids) / max(1, num_words),
        "text/tokens_per_byte": len(ids) / max(1, int(bytes_of(lines).sum())),
        "text/unknown_tokens": float((ids == unknown).mean()),
        "text/untrained_tokens": float(np.isin(ids, _untrained(inputs)).mean()),
    }
    scores = {
        name: Score(value, len(lines), METRICS[name].direction, "of test") for name, value in measured.items()
    }
    write_metrics(context.directory, scores)


def _untrained(inputs: MeasureInputs[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """List the new tokens that the training never read."""
    if inputs.plans is None:
        return np.zeros(0, dtype=np.int64)
    plan = TransferPlan.load(inputs.plans / f"plan-{SIDE}")
    new = np.setdiff1d(np.arange(len(plan)), plan.rows(*KEPT))
    file = inputs.model / READ_FILE  # which a model without a training lacks
    if file.is_file():
        return new[load_file(file)["counts"][new] == 0]
    return new


def generate(context: StageContext) -> None:
    """Sample texts from the trial's model by transformers, and measure the speed."""
    _, inputs = GENERATION.read(context)
    model = load_causal_lm(str(inputs.model), None).to(context.device).eval()
    ends = LineEnds.of(load_vocabulary(inputs.tokenizer))
    texts = _sample(model, ends)  # which also warms up
    seconds = timeit.repeat(lambda: _sample(model, ends), number=1, repeat=NUM_RUNS)
    tokenizer = open_tokenizer(inputs.tokenizer / TOKENIZER_FILE)
    write_lines(context.directory / "samples.txt", tokenizer.decode_batch(texts.tolist()))
    speed = texts.numel() / min(seconds)
    num_tokens = len(read_encoded(inputs.encoded, "dev").stream(TEXT).values)
    num_bytes = int(bytes_of(lines_of(inputs.corpus, "dev")).sum())
    bytes_per_token = num_bytes / max(1, num_tokens)
    signature = f"texts:{NUM_TEXTS}|tokens:{texts.shape[1]}|device:{torch.device(context.device).type}"
    measured = {"generation/tokens_per_s": speed, "generation/bytes_per_s": speed * bytes_per_token}
    scores = {name: Score(value, NUM_TEXTS, "maximize", signature) for name, value in measured.items()}
    write_metrics(context.directory, scores)


def _sample(model: TransformersCausalLM, ends: LineEnds) -> torch.Tensor:
    """Sample texts of one length, int64 [NUM_TEXTS, T], on the CPU."""
    device = next(model.parameters()).device
    start = torch.full((NUM_TEXTS, 1), ends.begin, device=device)
    room = NUM_TOKENS if model.max_tokens is None else min(NUM_TOKENS, model.max_tokens - 1)
    with seeded(derive_seed(0, "samples"), device):
        texts = model.model.generate(
            start,
            attention_mask=torch.ones_like(start),
            do_sample=True,
            min_new_tokens=room,
            max_new_tokens=room,
            pad_token_id=ends.end,
        )
    synchronize(device)
    return texts[:, 1:].cpu()


def catch_up(context: StageContext) -> None:
    """Find when the new vocabulary's bits per byte were as low as the best with the old one."""
    _, inputs = CATCH_UP.read(context)
    reference = read_metrics(inputs.reference)["dev/bits_per_byte"]["value"]
    curves = read_json(inputs.trained / CURVES_FILE)["dev/bits_per_byte"]
    train_s = read_metrics(inputs.trained)["train_s"]["value"]
    reached = [step for step, value, _ in curves if value <= reference]
    last_step = curves[-1][0]
    seconds = train_s * (reached or [last_step])[0] / last_step
    signature = "at evaluations on dev; steps of equal length"
    scores = {
        "catch_up/is_reached": Score(float(bool(reached)), 1, "maximize", signature),
        "catch_up/s": Score(seconds, 1, "minimize", signature),
    }
    write_metrics(context.directory, scores)


def rows_and_adapters(
    model: TransformersCausalLM, new_rows: RowsFirst | None, config: LoraConfig, seed: int
) -> RowsFirst:
    """Put adapters into a model, in place; let them and new rows learn in all steps, and nothing else."""
    candidates = {} if new_rows is None else new_rows.rows
    rows = {name: new for name, new in candidates.items() if bool(new.any())}
    names = {name for name, _ in model.named_parameters()}
    add_adapters(model, config, names - rows.keys(), seed)
    for name, parameter in model.named_parameters():
        if ADAPTER in name:
            rows[name] = torch.ones(len(parameter), dtype=torch.bool)
    return RowsFirst(ALWAYS, rows)
