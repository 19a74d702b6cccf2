"""Training of encoder-decoders with K sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.scores import Evaluation
from nlgraft.evaluation.translation import dev_scores
from nlgraft.nn.context_config import EncoderConfig
from nlgraft.nn.frozen_states import FrozenStates
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig, TransformerConfig
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.config_parts import MaskedSpansConfig
from nlgraft.stages.run.context_stages import read_means
from nlgraft.stages.run.text_stages import open_tokenizer, read_encoded, training_budget, vocab_sizes
from nlgraft.stages.run.training_task import TrainingTask
from nlgraft.stages.seq2seq_graph import TRAIN, TrainInputs, TrainSettings
from nlgraft.text.corpora import read_corpus
from nlgraft.training.losses import Seq2SeqObjective, segment_losses
from nlgraft.training.masked_text import MaskedSpans
from nlgraft.training.models import fresh_model, read_config, read_encoder, read_model, write_model
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import Training
from nlgraft.training.train_config import View
from nlgraft.training.views import Encoded, EpochStream, SampledText, Seq2SeqData
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


def start_model(settings: TrainSettings, inputs: TrainInputs[Path], context: StageContext) -> Seq2Seq:
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
    encoders = {name: read_encoder(path, _encoder(config, name)) for name, path in inputs.encoders.items()}
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


def _encoder(config: TransformerConfig, name: str) -> EncoderConfig | None:
    return config.contexts[name].encoder if name in config.contexts else None


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
    view: View, encoded: Encoded, config: MaskedSpansConfig, tokenizers: Mapping[str, Path]
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
