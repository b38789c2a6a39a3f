"""One rank of PyTorch training the model of `brigade train`, alone or as DDP or FSDP2 over Gloo.

    python train_torch.py STORE RANK RANKS WAY THREADS STEPS LAYERS WIDTH HEADS CONTEXT BATCH

WAY: alone, ddp, fsdp. Rank 0 prints a line of JSON: the milliseconds of each step, and the losses.
Samples are random bytes: a step costs the same whatever they are. Eager mode, float32, the fused
attention and the fused AdamW: what its users get without a compiler.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

store, rank, ranks, way = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
threads, steps, layers, width, heads, context, batch = map(int, sys.argv[5:])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        rows = x.shape[0]
        split = lambda t: t.view(rows, context, heads, width // heads).transpose(1, 2)
        q, k, v = map(split, self.qkv(self.ln1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, context, width))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.lnf, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.lnf(x))


def wrapped(model):
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


torch.set_num_threads(threads)
torch.manual_seed(1851)
if ranks > 1:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=ranks)
model = wrapped(Gpt())
matrices = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() <= 1]
groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
# FSDP2's parameters are DTensors, which the fused update takes too.
optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95), eps=1e-8, fused=True)
times, losses = [], []
for step in range(steps):
    window = torch.randint(0, 256, (batch // ranks, context + 1))
    if ranks > 1:
        dist.barrier()
    begun = time.perf_counter()
    logits = model(window[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 256), window[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    mean = loss.detach()
    if ranks > 1:
        dist.all_reduce(mean)
    losses.append(mean.item() / ranks)
    times.append(1e3 * (time.perf_counter() - begun))
if rank == 0:
    print(json.dumps({"ms": times, "losses": losses, "version": torch.__version__}))
if ranks > 1:
    dist.destroy_process_group()
