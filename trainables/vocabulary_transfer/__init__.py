"""Vocabulary transfer (Mosin et al. 2021): a vocabulary of the task's own for a pretrained classifier.

The vocabulary of a masked language model is replaced by one learned on the text of a classification task;
embeddings of new tokens are averages over their partitions into old ones (VIPI). See README.md.
"""

from __future__ import annotations

from trainables.vocabulary_transfer.config import Config
from trainables.vocabulary_transfer.graph import stage_graph
from trainables.vocabulary_transfer.metrics import METRICS

DESCRIPTION = "Give a pretrained encoder the vocabulary of a task's text and finetune it to classify"
PAPER = (
    "Mosin, Samenko, Kozlovskii, Tikhonov and Yamshchikov (2021): Fine-Tuning Transformers: Vocabulary "
    "Transfer. https://arxiv.org/abs/2112.14569"
)

__all__ = ["DESCRIPTION", "METRICS", "PAPER", "Config", "stage_graph"]
