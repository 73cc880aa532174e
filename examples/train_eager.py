"""Two spirals, learned eagerly: the loop is what a PyTorch user would write."""

import numpy as np

import meganeura as mg
from meganeura import nn, optim

rng = np.random.default_rng(0)
radius = np.linspace(0.2, 1, 200, dtype=np.float32)
arms = []
for start in (0.0, np.pi):
    angle = start + 5 * radius
    arms.append(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1) + rng.normal(0, 0.02, (200, 2)))
points = mg.tensor(np.concatenate(arms).astype(np.float32))  # [400, 2]
labels = mg.tensor(np.repeat([0, 1], 200))  # [400]

mg.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
optimizer = optim.Adam(model.parameters(), lr=1e-2)

for step in range(200):
    loss = nn.functional.cross_entropy(model(points), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3}  loss {loss.item():.4f}")

with mg.no_grad():
    right = (model(points).argmax(-1) == labels).float().mean().item()
print(f"{right:.1%} right")
assert right > 0.95
