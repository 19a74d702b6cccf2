"""Another vocabulary for a causal language model, and what it is worth (FOCUS and its successors).

The vocabulary of a pretrained model is replaced, extended or pruned on text of another language or domain;
rows of new tokens come from any method of `nlgraft vocab`, and the model is trained on. See README.md.
"""

from __future__ import annotations

from trainables.llm_vocabulary.config import Config
from trainables.llm_vocabulary.graph import stage_graph
from trainables.llm_vocabulary.metrics import METRICS

DESCRIPTION = "Replace, extend or prune the vocabulary of a causal language model and train it on"
PAPER = (
    "Dobler and de Melo (2023): FOCUS: Effective Embedding Initialization for Monolingual Specialization of "
    "Multilingual Models. EMNLP 2023, https://arxiv.org/abs/2305.14481"
)

__all__ = ["DESCRIPTION", "METRICS", "PAPER", "Config", "stage_graph"]
