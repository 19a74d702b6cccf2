"""A small language model of bytes in numpy, after nanoGPT: settings are globals. Called with TEXT SEED."""

import json
import sys
from pathlib import Path

import numpy as np

learning_rate = 0.3
width = 24
context = 2
batch = 16
output_scale = 1.0
decay = 0.0
salt = 0
steps = 150

text, seed = Path(sys.argv[1]).read_bytes(), int(sys.argv[2])
symbols = np.unique(np.frombuffer(text, np.uint8))
codes = np.searchsorted(symbols, np.frombuffer(text, np.uint8))
cut = len(codes) * 9 // 10
draw = np.random.default_rng([seed, salt])
table = draw.normal(0, 0.5, (len(symbols), 8))
inner = draw.normal(0, 1 / np.sqrt(8 * context), (8 * context, width))
outer = draw.normal(0, output_scale / np.sqrt(width), (width, len(symbols)))


def forward(starts, part):
    """Predict the symbol behind each context, shape (starts, symbols)."""
    places = part[starts[:, None] + np.arange(context)]
    features = table[places].reshape(len(starts), -1)
    hidden = np.tanh(features @ inner)
    logits = hidden @ outer
    logits -= logits.max(1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return places, features, hidden, log_probs, part[starts + context]


train, held_out = codes[:cut], codes[cut:]
for step in range(steps):
    rate = learning_rate * (1 - decay * step / steps)
    starts = draw.integers(len(train) - context, size=batch)
    places, features, hidden, log_probs, target = forward(starts, train)
    error = np.exp(log_probs)
    error[np.arange(batch), target] -= 1
    error /= batch
    slope = (error @ outer.T) * (1 - hidden**2)
    change = (slope @ inner.T).reshape(batch, context, 8)
    outer -= rate * hidden.T @ error
    inner -= rate * features.T @ slope
    np.add.at(table, places, -rate * change)

*_, log_probs, target = forward(np.arange(len(held_out) - context), held_out)
loss = -log_probs[np.arange(len(target)), target].mean()
Path("result.json").write_text(json.dumps({"dev/loss": float(loss)}))
