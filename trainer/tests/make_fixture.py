"""Write torch.safetensors: weights, batch, loss and gradients of a tiny GPT, computed by PyTorch.

Run once: `python make_fixture.py` beside this file, with torch installed. The tests only read the
result.
"""

import json

import torch

from gpt_of_torch import Gpt, loss_of, save, weights_of

GPT = Gpt(vocab=29, context=72, layers=2, heads=2, width=16)
BATCH = 2
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1

torch.manual_seed(1851)

weights = weights_of(GPT, 0.2)
# Every position is a target and every token occurs, so that every parameter has a gradient.
tokens = torch.arange(BATCH * GPT.context) * 11 % GPT.vocab
tokens = tokens.reshape(BATCH, GPT.context)
targets = torch.randint(GPT.vocab, (BATCH, GPT.context))

tensors = {"tokens": tokens.to(torch.uint8), "targets": targets.to(torch.uint8)}
tensors |= {"weight/" + name: w.detach().clone() for name, w in weights.items()}

matrices = [w for w in weights.values() if w.dim() > 1]
vectors = [w for w in weights.values() if w.dim() == 1]
groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
adamw = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
losses = []
for step in range(4):
    adamw.zero_grad()
    loss = loss_of(GPT, weights, tokens, targets)
    loss.backward()
    losses.append(loss.item())
    if step == 0:
        tensors |= {"grad/" + name: w.grad.clone() for name, w in weights.items()}
    adamw.step()
tensors["losses"] = torch.tensor(losses)

config = {name: getattr(GPT, name) for name in ("vocab", "context", "layers", "heads", "width")}
save("torch.safetensors", tensors, {"config": json.dumps(config), "torch": torch.__version__})
print(torch.__version__, losses)
