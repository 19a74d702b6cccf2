"""A small GPT over bytes, in the style of nanoGPT: settings are globals, --name=value overrides them."""

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

data_dir = "bin"
n_layer, n_head, n_embd, block_size, dropout = 2, 2, 32, 32, 0.0
learning_rate, weight_decay, batch_size = 1e-3, 0.1, 16
max_iters, eval_interval, eval_iters = 200, 50, 10
seed = 1337
exec(Path("configurator.py").read_text())

torch.manual_seed(seed)
splits = {
    name: torch.tensor(list(Path(data_dir, f"{name}.bin").read_bytes())) for name in ("train", "val")
}


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, n_embd)
        self.positions = nn.Embedding(block_size, n_embd)
        layer = nn.TransformerEncoderLayer(
            n_embd, n_head, 4 * n_embd, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, n_layer, nn.LayerNorm(n_embd), enable_nested_tensor=False)
        self.head = nn.Linear(n_embd, 256, bias=False)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        hidden = self.tokens(x) + self.positions(torch.arange(x.size(1)))
        return self.head(self.blocks(hidden, mask, is_causal=True))


def batch(split, generator):
    text = splits[split]
    starts = torch.randint(len(text) - block_size, (batch_size,), generator=generator)
    rows = torch.stack([text[start : start + block_size + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def loss_of(split, generator):
    x, y = batch(split, generator)
    return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def estimate():
    model.eval()
    same = torch.Generator().manual_seed(0)  # the same batches at every evaluation and for every seed
    loss = torch.stack([loss_of("val", same) for _ in range(eval_iters)]).mean().item()
    model.train()
    return loss


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
drawn = torch.Generator().manual_seed(seed)
with open("log.jsonl", "w") as log:
    for step in range(1, max_iters + 1):
        optimizer.zero_grad()
        loss = loss_of("train", drawn)
        loss.backward()
        optimizer.step()
        if step % eval_interval == 0:
            print(json.dumps({"step": step, "val_loss": estimate()}), file=log, flush=True)
torch.save(model.state_dict(), "ckpt.pt")
