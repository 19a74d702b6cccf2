"""Encode a text as bytes, the last tenth for validation. Usage: prepare.py TEXT"""

import sys
from pathlib import Path

text = Path(sys.argv[1]).read_bytes()
cut = len(text) * 9 // 10
Path("bin").mkdir()
Path("bin/train.bin").write_bytes(text[:cut])
Path("bin/val.bin").write_bytes(text[cut:])
