"""A model's state, saved and loaded; a copy trains on exactly as the original would."""

import copy

import numpy as np

import meganeura as mg
from meganeura import nn, optim

mg.manual_seed(0)
model = nn.Linear(8, 1)
optimizer = optim.Adam(model.parameters(), lr=1e-2)
x, y = mg.randn(32, 8), mg.randn(32, 1)


def step(model, optimizer):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(5):
    step(model, optimizer)
mg.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "state.mg")

other = nn.Linear(8, 1)
other_optimizer = optim.Adam(other.parameters(), lr=1e-2)
state = mg.load("state.mg")
other.load_state_dict(state["model"])
other_optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

went_on = [step(model, optimizer) for _ in range(5)]
resumed = [step(other, other_optimizer) for _ in range(5)]
print("went on ", np.round(went_on, 5))
print("resumed ", np.round(resumed, 5))
assert went_on == resumed
