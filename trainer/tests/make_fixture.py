"""Write torch.safetensors: weights, batch, loss and gradients of a tiny GPT, computed by PyTorch.

Run once: `python make_fixture.py` beside this file, with torch installed. The tests only read the result.
"""

import json
import struct

import torch
import torch.nn.functional as F

VOCAB, CONTEXT, LAYERS, HEADS, WIDTH, BATCH = 29, 72, 2, 2, 16, 2
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1

torch.manual_seed(1851)


def shapes():
    """(name, shape) in the order of the flat buffer."""
    yield "wte", (VOCAB, WIDTH)
    yield "wpe", (CONTEXT, WIDTH)
    for layer in range(LAYERS):
        b = f"blocks.{layer}."
        yield b + "ln1.weight", (WIDTH,)
        yield b + "ln1.bias", (WIDTH,)
        yield b + "qkv.weight", (3 * WIDTH, WIDTH)
        yield b + "qkv.bias", (3 * WIDTH,)
        yield b + "proj.weight", (WIDTH, WIDTH)
        yield b + "proj.bias", (WIDTH,)
        yield b + "ln2.weight", (WIDTH,)
        yield b + "ln2.bias", (WIDTH,)
        yield b + "fc.weight", (4 * WIDTH, WIDTH)
        yield b + "fc.bias", (4 * WIDTH,)
        yield b + "out.weight", (WIDTH, 4 * WIDTH)
        yield b + "out.bias", (WIDTH,)
    yield "lnf.weight", (WIDTH,)
    yield "lnf.bias", (WIDTH,)
    yield "head.weight", (VOCAB, WIDTH)


def start(name, shape):
    value = torch.randn(shape) * 0.2
    return value + 1 if "ln" in name and name.endswith("weight") else value


def loss_of(w, tokens, targets):
    x = w["wte"][tokens] + w["wpe"][: tokens.shape[1]]
    for layer in range(LAYERS):
        b = f"blocks.{layer}."
        normal = F.layer_norm(x, (WIDTH,), w[b + "ln1.weight"], w[b + "ln1.bias"])
        qkv = F.linear(normal, w[b + "qkv.weight"], w[b + "qkv.bias"])
        split = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in qkv.chunk(3, -1)]
        mixed = F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + F.linear(mixed, w[b + "proj.weight"], w[b + "proj.bias"])
        normal = F.layer_norm(x, (WIDTH,), w[b + "ln2.weight"], w[b + "ln2.bias"])
        hidden = F.gelu(F.linear(normal, w[b + "fc.weight"], w[b + "fc.bias"]), approximate="tanh")
        x = x + F.linear(hidden, w[b + "out.weight"], w[b + "out.bias"])
    x = F.layer_norm(x, (WIDTH,), w["lnf.weight"], w["lnf.bias"])
    return F.cross_entropy(F.linear(x, w["head.weight"]).flatten(0, 1), targets.flatten())


def save(path, tensors, metadata):
    """The safetensors format: u64 header length, JSON header, raw little-endian data."""
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        kind = {torch.float32: "F32", torch.uint8: "U8"}[tensor.dtype]
        raw = tensor.detach().contiguous().numpy().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


weights = {name: start(name, shape).requires_grad_() for name, shape in shapes()}
# Every position is a target and every token occurs, so that every parameter has a gradient.
tokens = torch.arange(BATCH * CONTEXT) * 11 % VOCAB
tokens = tokens.reshape(BATCH, CONTEXT)
targets = torch.randint(VOCAB, (BATCH, CONTEXT))

tensors = {"tokens": tokens.to(torch.uint8), "targets": targets.to(torch.uint8)}
tensors |= {"weight/" + name: w.detach().clone() for name, w in weights.items()}

matrices = [w for w in weights.values() if w.dim() > 1]
vectors = [w for w in weights.values() if w.dim() == 1]
groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
adamw = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
losses = []
for step in range(4):
    adamw.zero_grad()
    loss = loss_of(weights, tokens, targets)
    loss.backward()
    losses.append(loss.item())
    if step == 0:
        tensors |= {"grad/" + name: w.grad.clone() for name, w in weights.items()}
    adamw.step()
tensors["losses"] = torch.tensor(losses)

config = {"vocab": VOCAB, "context": CONTEXT, "layers": LAYERS, "heads": HEADS, "width": WIDTH}
save("torch.safetensors", tensors, {"config": json.dumps(config), "torch": torch.__version__})
print(torch.__version__, losses)
