"""The lifts as plain loops over the paper's sums: slow, and obviously right.

A covered activation is a list with one tensor for each cover; parameters are a list with one dict
for each cover; mixers are Q̂[r][g][β][α].
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call

import tiny_models

Covers = list[Tensor]


def message_linear(h: Covers, weights: Covers, biases: list[Tensor | None], mixer: Tensor):
    """a_r^(β) = Σ_g Σ_α Q̂_{rg,βα} Σ_{i∈g} W_ri^(α) h_i^(α) + b_r^(β)."""
    covers, (units, inputs) = len(h), weights[0].shape
    exact = mixer.shape[:2] == (1, 1)
    groups = np.array_split(np.arange(inputs), 1 if exact else mixer.shape[1])
    result = []
    for beta in range(covers):
        columns = []
        for r in range(units):
            total = 0 if biases[beta] is None else biases[beta][r]
            for g, members in enumerate(groups):
                q = mixer[0, 0] if exact else mixer[r, g]
                for alpha in range(covers):
                    c = sum(weights[alpha][r, i] * h[alpha][..., i] for i in members)
                    total = total + q[beta, alpha] * c
            columns.append(total)
        result.append(torch.stack(columns, -1))
    return result


def message_convolution(h: Covers, weights: Covers, biases, mixer: Tensor, layer: nn.Module):
    """The same with channels for inputs and a convolution for each product."""
    covers, units, seen = len(h), weights[0].shape[0], weights[0].shape[1]
    exact = mixer.shape[:2] == (1, 1)
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[h[0].ndim - 2]
    groups = np.array_split(np.arange(seen), 1 if exact else mixer.shape[1])
    result = []
    for beta in range(covers):
        maps = []
        for r in range(units):
            first = r // (units // layer.groups) * seen
            total = 0 if biases[beta] is None else biases[beta][r]
            for g, members in enumerate(groups):
                q = mixer[0, 0] if exact else mixer[r, g]
                for alpha in range(covers):
                    c = convolve(
                        h[alpha][:, first + members],
                        weights[alpha][r : r + 1, members],
                        stride=layer.stride, padding=layer.padding, dilation=layer.dilation,
                    )  # fmt: skip
                    total = total + q[beta, alpha] * c[:, 0]
            maps.append(total)
        result.append(torch.stack(maps, 1))
    return result


def message_embedding(ids: Tensor, tables: Covers, mixer: Tensor):
    """e_r^(β) = Σ_α Q̂_{r,βα} E^(α)[token, r]."""
    covers, units = len(tables), tables[0].shape[1]
    result = []
    for beta in range(covers):
        columns = []
        for r in range(units):
            q = mixer[0, 0] if mixer.shape[0] == 1 else mixer[r, 0]
            columns.append(sum(q[beta, a] * tables[a][ids, r] for a in range(covers)))
        result.append(torch.stack(columns, -1))
    return result


def plain_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, hidden: Tensor | None) -> Tensor:
    """Softmax attention of one cover, head by head."""
    size = q.shape[-1] // heads
    parts = []
    for head in range(heads):
        span = slice(head * size, (head + 1) * size)
        scores = q[..., span] @ k[..., span].transpose(-1, -2) / size**0.5
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        parts.append(torch.softmax(scores, -1) @ v[..., span])
    return torch.cat(parts, -1)


class Messages:
    """Reads layers of a covered model by name, for a forward written over lists of covers."""

    def __init__(self, base: nn.Module, parameters: list[dict[str, Tensor]], mixers):
        self.base, self.parameters, self.mixers = base, parameters, mixers
        self.covers = len(parameters)

    def get(self, name: str) -> list:
        return [own.get(name) for own in self.parameters]

    def linear(self, name: str, h: Covers) -> Covers:
        mixer = self.mixers[f"{name}.mixer"]
        return message_linear(h, self.get(f"{name}.weight"), self.get(f"{name}.bias"), mixer)

    def convolution(self, name: str, h: Covers) -> Covers:
        parts = self.get(f"{name}.weight"), self.get(f"{name}.bias")
        layer = self.base.get_submodule(name)
        return message_convolution(h, *parts, self.mixers[f"{name}.mixer"], layer)

    def copied(self, name: str, h: Covers) -> list:
        """A layer that keeps one copy per cover."""
        layer = self.base.get_submodule(name)
        return [
            functional_call(layer, {n: own[f"{name}.{n}"] for n, _ in layer.named_parameters()}, x)
            for own, x in zip(self.parameters, h, strict=True)
        ]


def forward_perceptron(at: Messages, x: Tensor) -> Covers:
    h = [torch.tanh(a) for a in at.linear("hidden", [x.flatten(1)] * at.covers)]
    h = [torch.tanh(a) for a in at.linear("middle", h)]
    return at.linear("out", h)


def forward_convolutional(at: Messages, x: Tensor) -> Covers:
    h = at.convolution("first", [x] * at.covers)
    norm = [
        F.batch_norm(a, None, None, own["norm.weight"], own["norm.bias"], training=True)
        for a, own in zip(h, at.parameters, strict=True)
    ]
    h = [torch.tanh(a) for a in at.convolution("second", [torch.tanh(a) for a in norm])]
    return at.linear("out", [a.mean((2, 3)) for a in h])


def forward_residual(at: Messages, x: Tensor) -> Covers:
    h = at.convolution("enter", [x] * at.covers)
    for _ in range(2):
        step = at.copied("norm", at.convolution("block", h))
        h = [a + torch.tanh(b) for a, b in zip(h, step, strict=True)]
    return at.linear("out", [a.mean(-1) for a in h])


def forward_transformer(at: Messages, ids: Tensor) -> Covers:
    h = message_embedding(ids, at.get("embed.weight"), at.mixers["embed.mixer"])
    h = [a + p for a, p in zip(h, at.get("position"), strict=True)]
    weights, biases = at.get("attention.in_proj_weight"), at.get("attention.in_proj_bias")
    projected = []
    for part, name in enumerate("qkv"):
        rows = slice(4 * part, 4 * part + 4)
        mixer = at.mixers[f"attention.mixer_{name}"]
        projected.append(message_linear(h, [w[rows] for w in weights], [b[rows] for b in biases],
                                        mixer))  # fmt: skip
    heads = [plain_attention(q, k, v, 2, at.base.mask) for q, k, v in zip(*projected, strict=True)]
    attended = message_linear(
        heads, at.get("attention.out_proj.weight"), at.get("attention.out_proj.bias"),
        at.mixers["attention.mixer_out"],
    )  # fmt: skip
    h = at.copied("norm", [a + b for a, b in zip(h, attended, strict=True)])
    fed = at.linear("back", [torch.tanh(a) for a in at.linear("feed", h)])
    total = [a + b for a, b in zip(h, fed, strict=True)]
    tied = at.get("embed.weight")
    return message_linear(total, tied, [None] * at.covers, at.mixers["head.mixer"])


def forward_recurrent(at: Messages, x: Tensor) -> Covers:
    outputs = []
    for own in at.parameters:
        h = c = x.new_zeros(x.shape[0], 4)
        states = []
        for t in range(x.shape[1]):
            gates = x[:, t] @ own["lstm.weight_ih_l0"].T + own["lstm.bias_ih_l0"]
            gates = gates + h @ own["lstm.weight_hh_l0"].T + own["lstm.bias_hh_l0"]
            i, f, g, o = gates.chunk(4, -1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        outputs.append(torch.tanh(torch.stack(states).mean(0) + h))
    return at.linear("out", outputs)


def forward_bare(at: Messages, x: Tensor) -> Covers:
    h = [
        F.prelu(a, own["slope.weight"])
        for a, own in zip(at.linear("inner", [x] * at.covers), at.parameters, strict=True)
    ]
    return [
        own["scale"] * (a - a.mean(0)) @ own["weight"]
        for a, own in zip(h, at.parameters, strict=True)
    ]


FORWARD = {
    tiny_models.Perceptron: forward_perceptron,
    tiny_models.Convolutional: forward_convolutional,
    tiny_models.Residual: forward_residual,
    tiny_models.Transformer: forward_transformer,
    tiny_models.Recurrent: forward_recurrent,
    tiny_models.Bare: forward_bare,
}


def message_lift(base: nn.Module, x: Tensor, stacks: dict[str, Tensor], mixers) -> Tensor:
    """Outputs (M, B, ...) of the message lift, cover by cover and sum by sum."""
    covers = len(next(iter(stacks.values())))
    parameters = [{name: stack[a] for name, stack in stacks.items()} for a in range(covers)]
    return torch.stack(FORWARD[type(base)](Messages(base, parameters, mixers), x))


def directed_lift(base: nn.Module, x: Tensor, stacks: dict[str, Tensor], routes, source) -> Tensor:
    """Outputs (M, B, ...) of the M virtual models of one destination.

    ``routes[q][α]`` is the cover that context α reads source q from; ``source(name, index)`` is the
    number of the source that a weight belongs to.
    """
    covers = len(next(iter(stacks.values())))
    outputs = []
    for alpha in range(covers):
        virtual = {}
        for name, stack in stacks.items():
            entries = [
                stack[(int(routes[source(name, index)][alpha]), *index)]
                for index in np.ndindex(*stack.shape[1:])
            ]
            virtual[name] = torch.stack(entries).reshape(stack.shape[1:])
        state = {name: buffer.clone() for name, buffer in base.named_buffers()}
        outputs.append(functional_call(base, {**virtual, **state}, x))
    return torch.stack(outputs)
