#!/usr/bin/env python3
"""Writes torch_steps.txt: what PyTorch's own optimizers do in three steps of f32.

Lines: rule, what, eight numbers. Run it again when a rule is added: torch_steps.py > torch_steps.txt
"""

import torch

RULES = {
    "adamw": lambda w: torch.optim.AdamW(
        w, lr=0.01, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, fused=True),
    "adam": lambda w: torch.optim.Adam(
        w, lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1, fused=True),
    "sgd": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda w: torch.optim.SGD(w, lr=0.1, momentum=0.9, nesterov=True),
    "plain": lambda w: torch.optim.SGD(w, lr=0.1, weight_decay=0.01),
}


def line(*words, numbers):
    print(*words, *(f"{number:.9g}" for number in numbers.tolist()))


for name, rule in RULES.items():
    torch.manual_seed(4)
    weights = torch.nn.Parameter(torch.randn(8))
    optimizer = rule([weights])
    line(name, "begin", numbers=weights.detach())
    for _ in range(3):
        weights.grad = torch.randn(8) * 0.1
        line(name, "gradient", numbers=weights.grad)
        optimizer.step()
        line(name, "weights", numbers=weights.detach())
