"""Pretraining of the study's own language models, saved as directories that transformers can load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import processors

from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.nn.modes import seeded
from nlgraft.nn.transformers_lms import quiet_transformers
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text_stages import read_encoded, training_budget
from nlgraft.stages.run.training_task import TrainingTask, write_split
from nlgraft.text.tokenizers import TOKENIZER_FILE
from nlgraft.training.losses import Loss
from nlgraft.training.masked_text import SCORING_SEED, MaskedData, Masker, MaskingIds
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import Training
from nlgraft.training.train_config import MaskingConfig
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.prlm_fusion.graph import PRETRAIN
from trainables.prlm_fusion.pretraining import Pretraining, build

_TOKENS = {
    "begin": "cls_token",
    "end": "sep_token",
    "pad": "pad_token",
    "unk": "unk_token",
    "mask": "mask_token",
}
"""Roles of special tokens, and their names in transformers."""
_DEV_TOKENS = 4096
"""Positions of an evaluation batch."""
_SIGNATURE = "mean of the objective over its predictions"


def pretrain(context: StageContext) -> None:
    """Train a language model and write it with its tokenizer and its dev loss."""
    settings, inputs = PRETRAIN.read(context)
    vocabulary = load_vocabulary(inputs.tokenizer)
    ids = MaskingIds.of(vocabulary)
    masking = settings.masking or MaskingConfig(unit="token")
    model = build(
        settings.prlm,
        len(vocabulary),
        pad_id=ids.pad,
        max_tokens=settings.max_tokens,
        seed=derive_seed(context.seed, "initialise"),
        teacher=inputs.teacher,
        masked_share=masking.rate,
    )
    text, dev_text = (
        Masker(read_encoded(inputs.encoded, split), ids, masking, seed)
        for split, seed in (("train", context.seed), ("dev", SCORING_SEED))
    )
    data = MaskedData(text, training_budget(settings.train, inputs.corpus, "train", context.seed))
    dev = MaskedData(dev_text, _DEV_TOKENS)

    def measure(model: Pretraining) -> Evaluation:
        loss = _dev_loss(model, dev, context.device)
        return Evaluation({"loss": Score(loss, 1, "minimize", _SIGNATURE)}, {})

    def save(model: Pretraining, directory: Path) -> None:
        with quiet_transformers():
            model.result.save_pretrained(directory)
        names = {role: vocabulary.surfaces[getattr(ids, role)] for role in _TOKENS}
        write_tokenizer(inputs.tokenizer / TOKENIZER_FILE, names, settings.max_tokens + 2, directory)

    task = TrainingTask(
        Training(model, Pretraining.__call__, data, settings.train), measure, save, prefix=settings.prlm.kind
    )
    task.train(context)
    write_split(context.directory, "dev", measure(model), settings.prlm.kind)


@torch.no_grad()
def _dev_loss(model: Pretraining, dev: MaskedData, device: str) -> float:
    model.eval()
    losses: list[Loss] = []
    # Fixes the tokens that ELECTRA's generator samples.
    with seeded(SCORING_SEED):
        losses += [model(dev.batch(rows, 0).to(device)) for rows in dev.epoch(0)]
    num_tokens = sum(loss.num_tokens for loss in losses)
    return float(sum(loss.loss_sum for loss in losses)) / num_tokens


def write_tokenizer(
    path: Path,
    names: Mapping[str, str],
    max_tokens: int,
    directory: Path,
) -> None:
    """Save a tokenizer in the format of transformers, with begin and end around every line."""
    made: Any = tokenizers.Tokenizer.from_file(str(path))
    around = [names["begin"], names["end"]]
    made.post_processor = processors.TemplateProcessing(
        single=f"{around[0]} $A {around[1]}",
        special_tokens=[(token, made.token_to_id(token)) for token in around],
    )
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=max_tokens,
        **{hf_role: names[role] for role, hf_role in _TOKENS.items()},
    )
    fast.save_pretrained(directory)
