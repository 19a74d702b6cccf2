"""Settings of metrics, for configs; imports no metric."""

from __future__ import annotations

from typing import Literal

BleuTokenizer = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none"]
"""Tokenizers of sacreBLEU; ``none`` is for text whose words are separated already."""
