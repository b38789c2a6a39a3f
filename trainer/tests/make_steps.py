"""Write steps.safetensors: weights, and gradients over one global batch, of two tiny GPTs, one of
them with experts, computed by PyTorch.

Run once: `python make_steps.py` beside this file, with torch installed. The tests only read the
result. The samples are those of `brigade train --seed 1851` in its first step.
"""

import pathlib

import torch

from gpt_of_torch import Gpt, loss_of, save, weights_of

DENSE = Gpt(vocab=256, context=16, layers=2, heads=4, width=8)
EXPERTS = DENSE._replace(experts=8, top=2)
BATCH, SEED = 16, 1851
LANES = 2**64 - 1

torch.manual_seed(SEED)


def mix(seed):
    """SplitMix64's finaliser, as in data.rs."""
    z = (seed + 0x9E3779B97F4A7C15) & LANES
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & LANES
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & LANES
    return z ^ (z >> 31)


def batch():
    """The windows of the first step, [samples × (context + 1)]."""
    text = (pathlib.Path(__file__).parent.parent / "data" / "moby-dick.txt").read_bytes()
    last = len(text) - len(text) // 20 - DENSE.context - 1
    starts = [(mix(mix(mix(SEED)) ^ index) * (last + 1)) >> 64 for index in range(BATCH)]
    return torch.tensor([list(text[start : start + DENSE.context + 1]) for start in starts])


windows = batch()
tensors = {}
for model, gpt in (("dense", DENSE), ("experts", EXPERTS)):
    weights = weights_of(gpt, 0.3)
    loss = loss_of(gpt, weights, windows[:, :-1], windows[:, 1:])
    loss.backward()
    for name, weight in weights.items():
        tensors[f"{model}/weight/{name}"] = weight
        tensors[f"{model}/grad/{name}"] = weight.grad
    tensors[f"{model}/loss"] = loss
    print(torch.__version__, model, loss.item())
save("steps.safetensors", tensors, {"torch": torch.__version__})
