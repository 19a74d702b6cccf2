"""Augmentation with language models (Edunov et al. 2019, Pre-trained LM Representations for Generation).

States of pretrained language models take the place of embedding tables: of the encoder's (SRC-ELMO, SRC-FT)
or of the decoder's (TGT-ELMO, TGT-FT). See README.md.
"""

from __future__ import annotations

from trainables.lm_augmentation.config import Config
from trainables.lm_augmentation.graph import stage_graph
from trainables.lm_augmentation.metrics import METRICS

DESCRIPTION = "Feed states of pretrained language models to the encoder or the decoder instead of embeddings"
PAPER = (
    "Edunov, Baevski and Auli (2019): Pre-trained Language Model Representations for Language Generation. "
    "NAACL 2019, https://arxiv.org/abs/1903.09722"
)

__all__ = ["DESCRIPTION", "METRICS", "PAPER", "Config", "stage_graph"]
