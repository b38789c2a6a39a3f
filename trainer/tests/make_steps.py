"""Write steps.safetensors: weights, and gradients over one global batch, of two tiny GPTs, one of
them with experts, computed by PyTorch.

Run once: `python make_steps.py` beside this file, with torch installed. The tests only read the
result. The samples are those of `brigade train --seed 1851` in its first step.
"""

import json
import pathlib
import struct

import torch
import torch.nn.functional as F

VOCAB, CONTEXT, LAYERS, HEADS, WIDTH, BATCH, SEED = 256, 16, 2, 4, 8, 16, 1851
EXPERTS, TOP = 8, 2
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
    last = len(text) - len(text) // 20 - CONTEXT - 1
    starts = [(mix(mix(mix(SEED)) ^ index) * (last + 1)) >> 64 for index in range(BATCH)]
    return torch.tensor([list(text[start : start + CONTEXT + 1]) for start in starts])


def shapes(experts):
    """(name, shape) in the order of the flat buffer."""
    yield "wte", (VOCAB, WIDTH)
    yield "wpe", (CONTEXT, WIDTH)
    parts = max(experts, 1)
    for layer in range(LAYERS):
        b = f"blocks.{layer}."
        for norm, matrix, outputs in (("ln1.", "qkv.", 3), ("ln2.", "fc.", 4)):
            yield b + norm + "weight", (WIDTH,)
            yield b + norm + "bias", (WIDTH,)
            if matrix == "qkv.":
                yield b + "qkv.weight", (3 * WIDTH, WIDTH)
                yield b + "qkv.bias", (3 * WIDTH,)
                yield b + "proj.weight", (WIDTH, WIDTH)
                yield b + "proj.bias", (WIDTH,)
        if experts:
            yield b + "gate.weight", (experts, WIDTH)
        yield b + "fc.weight", (parts * 4 * WIDTH, WIDTH)
        yield b + "fc.bias", (parts * 4 * WIDTH,)
        yield b + "out.weight", (parts * WIDTH, 4 * WIDTH)
        yield b + "out.bias", (parts * WIDTH,)
    yield "lnf.weight", (WIDTH,)
    yield "lnf.bias", (WIDTH,)
    yield "head.weight", (VOCAB, WIDTH)


def start(name, shape):
    value = torch.randn(shape) * 0.3
    return value + 1 if "ln" in name and name.endswith("weight") else value


def perceptron(w, b, x, experts):
    if not experts:
        hidden = F.gelu(F.linear(x, w[b + "fc.weight"], w[b + "fc.bias"]), approximate="tanh")
        return F.linear(hidden, w[b + "out.weight"], w[b + "out.bias"])
    shares = F.linear(x, w[b + "gate.weight"]).softmax(-1)
    chosen = torch.zeros_like(shares).scatter(-1, shares.topk(TOP).indices, 1.0)
    tensors = [w[b + name] for name in ("fc.weight", "fc.bias", "out.weight", "out.bias")]
    y = 0
    for expert, (fc, fc_b, out, out_b) in enumerate(zip(*(t.chunk(experts) for t in tensors))):
        answer = F.linear(F.gelu(F.linear(x, fc, fc_b), approximate="tanh"), out, out_b)
        y = y + (shares * chosen)[..., expert, None] * answer
    return y


def loss_of(w, windows, experts):
    tokens, targets = windows[:, :-1], windows[:, 1:]
    x = w["wte"][tokens] + w["wpe"]
    for layer in range(LAYERS):
        b = f"blocks.{layer}."
        normal = F.layer_norm(x, (WIDTH,), w[b + "ln1.weight"], w[b + "ln1.bias"])
        qkv = F.linear(normal, w[b + "qkv.weight"], w[b + "qkv.bias"])
        split = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in qkv.chunk(3, -1)]
        mixed = F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + F.linear(mixed, w[b + "proj.weight"], w[b + "proj.bias"])
        normal = F.layer_norm(x, (WIDTH,), w[b + "ln2.weight"], w[b + "ln2.bias"])
        x = x + perceptron(w, b, normal, experts)
    x = F.layer_norm(x, (WIDTH,), w["lnf.weight"], w["lnf.bias"])
    return F.cross_entropy(F.linear(x, w["head.weight"]).flatten(0, 1), targets.flatten())


def save(path, tensors, metadata):
    """The safetensors format: u64 header length, JSON header, raw little-endian data."""
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().numpy().tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


tensors = {}
for model, experts in (("dense", 0), ("experts", EXPERTS)):
    weights = {name: start(name, shape).requires_grad_() for name, shape in shapes(experts)}
    loss = loss_of(weights, batch(), experts)
    loss.backward()
    for name, weight in weights.items():
        tensors[f"{model}/weight/{name}"] = weight
        tensors[f"{model}/grad/{name}"] = weight.grad
    tensors[f"{model}/loss"] = loss
    print(torch.__version__, model, loss.item())
save("steps.safetensors", tensors, {"torch": torch.__version__})
