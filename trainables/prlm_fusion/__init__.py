"""Fusion of pretrained language models (Park and Zhao 2021, Effective Checkpoints of PrLMs).

Hidden states of a pretrained encoder enter the layers of a Transformer that generates text. See README.md.
"""

from __future__ import annotations

from trainables.prlm_fusion.config import Config
from trainables.prlm_fusion.graph import stage_graph
from trainables.prlm_fusion.metrics import METRICS

DESCRIPTION = "Merge hidden states of pretrained language models into the layers of a Transformer"
PAPER = (
    "Park and Zhao (2021): Enhancing Language Generation with Effective Checkpoints of Pre-trained Language "
    "Model. Findings of ACL-IJCNLP 2021, https://aclanthology.org/2021.findings-acl.228"
)

__all__ = ["DESCRIPTION", "METRICS", "PAPER", "Config", "stage_graph"]
