"""Multi-source generation (Huang et al. 2021, Transfer Learning for Sequence Generation: TRICE).

A pretrained sequence-to-sequence model is finetuned on one source at a time, then given a fine encoder and
finetuned on all sources. See README.md.
"""

from __future__ import annotations

from trainables.multi_source.config import Config
from trainables.multi_source.graph import stage_graph
from trainables.multi_source.metrics import METRICS

DESCRIPTION = "Transfer a pretrained sequence-to-sequence model to several sources by gradual finetuning"
PAPER = (
    "Huang, Xu, Sun and Liu (2021): Transfer Learning for Sequence Generation: from Single-source to "
    "Multi-source. ACL 2021, https://arxiv.org/abs/2105.14809"
)

__all__ = ["DESCRIPTION", "METRICS", "PAPER", "Config", "stage_graph"]
