"""A tiny GPT in PyTorch, dense or with experts, and the file that its tensors are written to: what
make_fixture.py and make_steps.py have in common. Run those.
"""

import json
import struct
from typing import NamedTuple

import torch
import torch.nn.functional as F


class Gpt(NamedTuple):
    vocab: int
    context: int
    layers: int
    heads: int
    width: int
    # How many perceptrons a block has, or none for one that all tokens take.
    experts: int = 0
    # How many of them a token takes.
    top: int = 0


def shapes(gpt):
    """(name, shape) in the order of the flat buffer."""
    yield "wte", (gpt.vocab, gpt.width)
    yield "wpe", (gpt.context, gpt.width)
    parts, width = max(gpt.experts, 1), gpt.width
    for layer in range(gpt.layers):
        b = f"blocks.{layer}."
        yield b + "ln1.weight", (width,)
        yield b + "ln1.bias", (width,)
        yield b + "qkv.weight", (3 * width, width)
        yield b + "qkv.bias", (3 * width,)
        yield b + "proj.weight", (width, width)
        yield b + "proj.bias", (width,)
        yield b + "ln2.weight", (width,)
        yield b + "ln2.bias", (width,)
        if gpt.experts:
            yield b + "gate.weight", (gpt.experts, width)
        yield b + "fc.weight", (parts * 4 * width, width)
        yield b + "fc.bias", (parts * 4 * width,)
        yield b + "out.weight", (parts * width, 4 * width)
        yield b + "out.bias", (parts * width,)
    yield "lnf.weight", (gpt.width,)
    yield "lnf.bias", (gpt.width,)
    yield "head.weight", (gpt.vocab, gpt.width)


def weights_of(gpt, deviation):
    """Weights to begin with, by name."""
    weights = {}
    for name, shape in shapes(gpt):
        value = torch.randn(shape) * deviation
        around_one = "ln" in name and name.endswith("weight")
        weights[name] = (value + 1 if around_one else value).requires_grad_()
    return weights


def perceptron(gpt, w, b, x):
    tensors = [w[b + name] for name in ("fc.weight", "fc.bias", "out.weight", "out.bias")]
    if not gpt.experts:
        return expert_of(x, *tensors)
    shares = F.linear(x, w[b + "gate.weight"]).softmax(-1)
    chosen = torch.zeros_like(shares).scatter(-1, shares.topk(gpt.top).indices, 1.0)
    y = 0
    for expert, parts in enumerate(zip(*(t.chunk(gpt.experts) for t in tensors))):
        y = y + (shares * chosen)[..., expert, None] * expert_of(x, *parts)
    return y


def expert_of(x, fc, fc_bias, out, out_bias):
    return F.linear(F.gelu(F.linear(x, fc, fc_bias), approximate="tanh"), out, out_bias)


def loss_of(gpt, w, tokens, targets):
    """tokens, targets: [samples × context]."""
    x = w["wte"][tokens] + w["wpe"]
    for layer in range(gpt.layers):
        b = f"blocks.{layer}."
        normal = F.layer_norm(x, (gpt.width,), w[b + "ln1.weight"], w[b + "ln1.bias"])
        qkv = F.linear(normal, w[b + "qkv.weight"], w[b + "qkv.bias"])
        split = [t.unflatten(-1, (gpt.heads, -1)).transpose(1, 2) for t in qkv.chunk(3, -1)]
        mixed = F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(-2)
        x = x + F.linear(mixed, w[b + "proj.weight"], w[b + "proj.bias"])
        normal = F.layer_norm(x, (gpt.width,), w[b + "ln2.weight"], w[b + "ln2.bias"])
        x = x + perceptron(gpt, w, b, normal)
    x = F.layer_norm(x, (gpt.width,), w["lnf.weight"], w["lnf.bias"])
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
