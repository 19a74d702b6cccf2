"""Peers: the same model in other implementations.

JoeyNMT's requirements conflict with ours, so it is installed without them in a separate folder (Makefile) and
left out of the comparison if it is missing.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.material import SIZE
from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.conversion.checkpoint import to_hugging_face
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.text.tokenizers import BOS, EOS, PAD, UNK
from nlgraft.training.views import Encoded

_FOLDER = Path(sys.prefix) / "peers"


def marian_model(vocab_size: int, size: Mapping[str, Any] = SIZE) -> Any:
    """Hugging Face's Marian of the same size, with fresh weights."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=size["d_model"],
        encoder_layers=size["num_encoder_layers"],
        decoder_layers=size["num_decoder_layers"],
        encoder_attention_heads=size["num_heads"],
        decoder_attention_heads=size["num_heads"],
        encoder_ffn_dim=size["ffn_dim"],
        decoder_ffn_dim=size["ffn_dim"],
        dropout=0.1,
        activation_function="relu",
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=BOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        max_position_embeddings=256,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        scale_embedding=True,
    )
    return MarianMTModel(config)


def marian_trainer(
    vocab_size: int, pairs: Encoded, batch_sentences: int, steps: int, pause: Callable[[float], None]
) -> Any:
    """Hugging Face's Trainer of a fresh Marian, with its own sampler, optimiser and label smoothing.

    Args:
        vocab_size: Size of the joint vocabulary.
        pairs: Training pairs.
        batch_sentences: Sentences of a batch.
        steps: Optimiser steps of a turn.
        pause: Called with the target tokens of a turn.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    counts: list[int] = []
    sources, targets = pairs.stream("source 0"), pairs.stream("target")

    def collate(rows: list[int]) -> dict[str, torch.Tensor]:
        source = Tokens.from_lists([[*sources[row].tolist(), EOS] for row in rows])
        target = Tokens.from_lists([[*targets[row].tolist(), EOS] for row in rows])
        counts.append(int(target.valid.sum()))
        read = Tokens.from_lists([[BOS, *targets[row].tolist()] for row in rows])
        return {
            "input_ids": source.ids,
            "attention_mask": source.valid.long(),
            "decoder_input_ids": read.ids,
            "labels": target.ids.masked_fill(~target.valid, -100),
        }

    class Turn(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % steps == 0:
                first = state.global_step - steps
                pause(sum(counts[first : first + steps]))

    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch_sentences,
        max_steps=1_000_000,
        label_smoothing_factor=0.1,
        learning_rate=1e-4,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(
        model=marian_model(vocab_size),
        args=arguments,
        train_dataset=cast("Any", range(len(pairs))),
        data_collator=collate,
        callbacks=[Turn()],
    )


def exported_marian(model: Seq2Seq, directory: Path) -> Any:
    """Our model as Hugging Face's Marian, by our own exporter."""
    from transformers import MarianMTModel

    to_hugging_face(model, directory, GenerationConfig())
    return MarianMTModel.from_pretrained(directory).eval()


def token_names(vocab_size: int) -> list[str]:
    """Names for ids, for peers that take text."""
    specials = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
    return [specials.get(token, f"t{token}") for token in range(vocab_size)]


def ctranslate2_translator(marian: Any, directory: Path) -> Any:
    """A Marian in CTranslate2, fp32, one thread; its decoder begins with our start token, not with zero."""
    import ctranslate2
    from ctranslate2.converters.transformers import BartLoader

    loader: Any = BartLoader()
    marian.config.normalize_before = marian.config.normalize_embedding = False
    with torch.no_grad():
        spec = loader.get_model_spec(marian)
    names = token_names(marian.config.vocab_size)
    loader.set_vocabulary(spec, names)
    spec.config.bos_token = spec.config.decoder_start_token = names[BOS]
    spec.config.eos_token, spec.config.unk_token = names[EOS], names[UNK]
    spec.validate()
    spec.optimize(quantization=None)
    directory.mkdir()
    spec.save(str(directory))
    return ctranslate2.Translator(str(directory), compute_type="float32", inter_threads=1, intra_threads=1)


def has_joeynmt() -> bool:
    """Tell if JoeyNMT is at hand."""
    return (_FOLDER / "joeynmt").is_dir()


def _join_joeynmt() -> None:
    if str(_FOLDER) not in sys.path:
        sys.path.append(str(_FOLDER))
    import tensorboardX

    sys.modules.setdefault("torch.utils.tensorboard", tensorboardX)  # for logs that nobody writes here


def _joeynmt_vocabulary(vocab_size: int) -> Any:
    from joeynmt.vocabulary import Vocabulary

    vocabulary: Any = Vocabulary.__new__(Vocabulary)  # its constructor would number the special tokens anew
    names = token_names(vocab_size)
    vocabulary._itos, vocabulary._stoi = names, {name: token for token, name in enumerate(names)}
    vocabulary.specials, vocabulary.lang_tags = names[:4], []
    vocabulary.pad_index, vocabulary.unk_index = PAD, UNK
    vocabulary.bos_index, vocabulary.eos_index, vocabulary.sep_index = BOS, EOS, None
    return vocabulary


def joeynmt_model(vocab_size: int) -> Any:
    """JoeyNMT's Transformer of the same size: post-norm, all tables tied."""
    _join_joeynmt()
    from joeynmt.model import build_model

    logging.getLogger("joeynmt.model").setLevel(logging.WARNING)
    side = {
        "type": "transformer",
        "num_heads": SIZE["num_heads"],
        "hidden_size": SIZE["d_model"],
        "ff_size": SIZE["ffn_dim"],
        "dropout": 0.1,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": SIZE["d_model"], "scale": True, "dropout": 0.1},
    }
    torch.manual_seed(0)
    model = build_model(
        {
            "encoder": {**side, "num_layers": SIZE["num_encoder_layers"]},
            "decoder": {**side, "num_layers": SIZE["num_decoder_layers"]},
            "tied_embeddings": True,
            "tied_softmax": True,
        },
        *[_joeynmt_vocabulary(vocab_size)] * 2,
    )
    model.loss_function = ("crossentropy", 0.1)
    return model


def joeynmt_batch(batch: Batch) -> Any:
    """One of our batches as one of JoeyNMT's."""
    _join_joeynmt()
    from joeynmt.batch import Batch as TheirBatch

    source: Tokens = batch.sources[0]
    start = torch.full_like(batch.target_output[:, :1], BOS)
    return TheirBatch(
        src=source.ids,
        src_length=source.valid.sum(1),
        src_prompt_mask=None,
        trg=torch.cat([start, batch.target_output], dim=1),
        trg_prompt_mask=None,
        indices=torch.arange(len(source.ids)),
        device=torch.device("cpu"),
        pad_index=PAD,
        eos_index=EOS,
    )


def joeynmt_sampler(pairs: list[tuple[list[int], list[int]]], batch_tokens: int) -> Any:
    """JoeyNMT's own batches of a token budget: random order, filled until the budget is reached."""
    _join_joeynmt()
    from joeynmt.datasets import TokenBatchSampler
    from torch.utils.data import RandomSampler

    data: Any = _Pairs(pairs)
    order = RandomSampler(data, generator=torch.Generator().manual_seed(1))
    return TokenBatchSampler(order, batch_size=batch_tokens, drop_last=False, seed=1)


class _Pairs:
    """The part of a data set that JoeyNMT's sampler reads."""

    def __init__(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        self.pairs = pairs
        self.indices = range(len(pairs))
        self.split = "train"

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[int, list[int], list[int]]:
        return index, *self.pairs[index]
