"""Overrides that make shipped studies a matter of seconds, and settings of small models."""

from typing import get_args

from nlgraft.evaluation.metric_config import TextMetric

TINY = {"preset": "tiny", "d_model": 16, "ffn_dim": 32, "num_heads": 2}
SHARE = {"type": "float", "low": 0.0, "high": 1.0}
GAINS = {"target": "gain", "levels": [0.0, 1.0], "baseline": 0.0}
ALL_SCORES = {"metrics": get_args(TextMetric), "is_calibrated": True}
TRAIN = {"max_steps": 2, "batch_tokens": 800, "warmup_steps": 1, "peak_lr": 0.01}
GREEDY = {"beam": 1, "max_length_ratio": 0, "max_length_offset": 6}

SMALL_DEMO = [
    "data.upstream={corpus: conlang, train: 200, dev: 8, test: 4}",
    "data.downstream={corpus: conlang, domain: b, train: 150, dev: 8, test: 4}",
    "upstream.train.max_steps=3",
    "downstream.train.max_steps=3",
    "upstream.train.warmup_steps=1",
    "downstream.train.warmup_steps=1",
    "generator.max_steps=2",
    "decode={beam: 1, max_length_ratio: 0, max_length_offset: 6}",
]
