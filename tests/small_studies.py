"""Overrides that make shipped studies a matter of seconds."""

SMALL_DEMO = [
    "data.upstream={corpus: conlang, train: 200, dev: 8, test: 4}",
    "data.downstream={corpus: conlang, domain: b, train: 150, dev: 8, test: 4}",
    "upstream.train.max_steps=3",
    "downstream.train.max_steps=3",
    "generator.max_steps=2",
    "decode={beam: 1, max_length_ratio: 0, max_length_offset: 6}",
]
