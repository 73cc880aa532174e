"""A small GPT reads the first chapters of Pride and Prejudice (Jane Austen, 1813) byte by byte, then goes on by itself."""

import sys
from pathlib import Path

import numpy as np
from tqdm import trange

import meganeura as mg
from meganeura import nn, optim
from meganeura.nn import functional as F

CONTEXT, WIDTH, HEADS, LAYERS, BATCH = 64, 96, 4, 3, 24
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
text = np.frombuffer((Path(__file__).parent / "pride_and_prejudice.txt").read_bytes(), np.uint8).astype(np.int64)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places = nn.Embedding(128, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 128))

    def forward(self, ids):
        x = self.bytes(ids) + self.places.weight[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layers(x, mask, is_causal=True))


mg.manual_seed(0)
model = GPT()
optimizer = optim.AdamW(model.parameters(), lr=2e-3)


@mg.compile
def step(ids):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss


rng = np.random.default_rng(0)
for i in (bar := trange(STEPS)):
    starts = rng.integers(0, len(text) - CONTEXT - 1, (BATCH, 1))
    loss = step(mg.tensor(text[starts + np.arange(CONTEXT + 1)]))
    if i % 20 == 0:
        bar.set_postfix(loss=f"{loss.item():.3f}")
print(f"loss {loss.item():.3f} nats a byte, {np.log(128):.3f} before reading")
ids, read = mg.tensor(text[None, :CONTEXT]), mg.compile(model.eval())
with mg.no_grad():
    for _ in range(200):
        ids = mg.cat([ids, mg.multinomial((read(ids[:, -CONTEXT:])[:, -1] / 0.7).softmax(-1), 1)], 1)
print(bytes(ids[0].tolist()).decode(errors="replace"))
