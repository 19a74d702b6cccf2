"""Embedding transfer (Liu et al. 2021, Bridging Subword Gaps in Pretrain-Finetune Paradigm for NLG).

The vocabulary of a model pretrained on domain A is replaced by that of domain B: embeddings of shared tokens
are copied, the others are generated from morphologically similar tokens. See README.md.
"""

from __future__ import annotations

from trainables.embedding_transfer.config import Config
from trainables.embedding_transfer.graph import stage_graph
from trainables.embedding_transfer.metrics import METRICS

DESCRIPTION = "Exchange the vocabulary of a pretrained translation model and generate the missing embeddings"
PAPER = (
    "Liu, Yang, Liu, Zhang, Luo, Zhang, Zhang and Su (2021): Bridging Subword Gaps in Pretrain-Finetune "
    "Paradigm for Natural Language Generation. ACL 2021, https://arxiv.org/abs/2106.06125"
)

__all__ = ["DESCRIPTION", "METRICS", "PAPER", "Config", "stage_graph"]
