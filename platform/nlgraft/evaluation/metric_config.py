"""Settings of metrics, for configs; imports no metric."""

from __future__ import annotations

from typing import Literal

BleuTokenizer = Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "flores200", "none"]
"""Tokenizers of sacreBLEU; ``none`` is for text whose words are separated already."""
RougeTokenizer = Literal["english", "words", "characters"]
"""Tokenizers of ROUGE, on lower-cased text: runs of a-z and 0-9, stemmed (ROUGE-1.5.5 ``-m``); runs of
letters and digits of any script; or runs of a-z and 0-9 and every other letter alone."""
