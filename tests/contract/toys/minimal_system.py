"""Every cell of the minimal example at a size of seconds."""

from typing import Any

from tests.small_studies import ALL_SCORES, TINY

_BASE: dict[str, Any] = {
    "data": {"corpus": "conlang", "task": "multi_source", "train": 100, "dev": 8, "test": 6},
    "tokenizer": {"vocab_size": 200},
    "model": TINY,
    "train": {"max_steps": 3, "batch_tokens": 800, "warmup_steps": 1, "peak_lr": 0.01},
    "decode": {"beam": 1, "max_length_offset": 5},
}
ARMS = {read: {**_BASE, "read": read} for read in ("first", "second", "both")}
ARMS["first"]["model"] = {**_BASE["model"], "source_positions": "learned", "max_positions": 300}
ARMS["both"] |= {"score": ALL_SCORES}
ARMS["second"]["model"] = {**_BASE["model"], "target_positions": "learned", "max_positions": 300}
