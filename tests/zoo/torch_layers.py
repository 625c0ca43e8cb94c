"""Layers of torch itself that hold, share or compute their weights in uncommon ways."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.utils as old
from entry import Refusal, add, first_square, square
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune


def away(output: torch.Tensor) -> torch.Tensor:
    """Distance from a ramp: the mean square of what a layer norm puts out is fixed."""
    ramp = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype)
    return (output - ramp).square().mean()


def words() -> torch.Tensor:
    return torch.randint(0, 20, (3, 5))


class Masked(nn.Module):
    """A transformer encoder over embedded tokens, with padding and causal masks."""

    def __init__(self, **options):
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids):
        causal = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        padding = torch.zeros_like(ids, dtype=self.embed.weight.dtype)
        padding = padding.masked_fill(ids == 0, float("-inf"))
        return self.encoder(self.embed(ids), causal.to(padding.dtype), padding)


class Nested(nn.Module):
    """A transformer encoder that may take torch's fast path in evaluation mode."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)[~padding]


class Call(nn.Module):
    """Embedded tokens into a recurrent layer, and its last state out."""

    def __init__(self, kind, **options):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.cells = kind(8, 8, batch_first=True, **options)
        self.head = nn.Linear(8 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, ids):
        out, _ = self.cells(self.embed(ids))
        return self.head(out[:, -1])


class Cells(nn.Module):
    """LSTM cells unrolled by hand."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h, c = x.new_zeros(len(x), 8), x.new_zeros(len(x), 8)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.head(h)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(20, 8, mode="mean")
        self.head = nn.Linear(8, 3)

    def forward(self, ids, offsets):
        return self.head(self.bag(ids, offsets))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(4, 8)
        self.product = nn.Bilinear(8, 8, 3)

    def forward(self, x, y):
        return self.product(self.left(x).relu(), self.right(y).relu())


class Attends(nn.Module):
    """Attention with keys and values of other widths, and weights among the outputs."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True, **options)

    def forward(self, q, k, v):
        return self.attention(q, k, v)


class Containers(nn.Module):
    """Parameters in lists and dictionaries, used without a layer."""

    def __init__(self):
        super().__init__()
        self.list = nn.ParameterList([nn.Parameter(torch.randn(8, 8) / 4) for _ in range(2)])
        self.dict = nn.ParameterDict({"gain": nn.Parameter(torch.ones(8))})
        self.steps = nn.ModuleDict({"last": nn.Linear(8, 3)})

    def forward(self, x):
        for weight in self.list:
            x = torch.tanh(torch.nn.functional.linear(x, weight)) * self.dict["gain"]
        return self.steps["last"](x)


def twice(change) -> nn.Module:
    """A network of two linear layers, both changed by ``change``."""
    return nn.Sequential(change(nn.Linear(8, 16)), nn.Tanh(), change(nn.Linear(16, 3)))


def pruned(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", 0.3)


def pruned_twice(layer: nn.Module) -> nn.Module:
    return prune.random_unstructured(pruned(layer), "bias", 0.3)


class Symmetric(nn.Module):
    """A parametrization of our own: upper triangle mirrored, for square weights."""

    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


def symmetric() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    parametrize.register_parametrization(net[0], "weight", Symmetric())
    return net


def rows(*shape: int):
    """One random batch."""
    return lambda: (torch.randn(*shape),)


def padded_words() -> tuple[torch.Tensor]:
    ids = words()
    ids[1, 3:] = 0
    return (ids,)


def padded_vectors() -> tuple[torch.Tensor, torch.Tensor]:
    padding = torch.zeros(2, 4, dtype=torch.bool)
    padding[1, 3:] = True
    return torch.randn(2, 4, 16), padding


def layers(name: str, make, batch, loss=square, **options) -> None:
    """Registers layers; the model is made before its batch."""
    add("torch", name, loss, **options)(lambda: (make(), batch()))


def changed(name: str, change, **options) -> None:
    """Registers a network of two linear layers, both changed."""
    layers(name, lambda: twice(change), rows(3, 8), **options)


layers("encoder-masked", Masked, padded_words, away)
layers("encoder-norm-first", lambda: Masked(norm_first=True, activation="gelu"), padded_words)
layers("encoder-fast-path", Nested, padded_vectors, away)
layers("transformer", lambda: nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True),
       lambda: (torch.randn(2, 4, 16), torch.randn(2, 3, 16)), away)  # fmt: skip
layers("attention-kdim-vdim", lambda: Attends(kdim=8, vdim=12, bias=False),
       lambda: (torch.randn(2, 3, 16), torch.randn(2, 5, 8), torch.randn(2, 5, 12)),
       first_square)  # fmt: skip
layers("attention-bias-kv", lambda: Attends(add_bias_kv=True, add_zero_attn=True),
       lambda: (torch.randn(2, 3, 16),) * 3, first_square,
       refuses={"messages": Refusal("nothing in this model would mix")})  # fmt: skip

layers("lstm", lambda: Call(nn.LSTM), lambda: (words(),), mixes="unknown")
layers("lstm-bidirectional", lambda: Call(nn.LSTM, bidirectional=True, num_layers=2),
       lambda: (words(),), mixes="unknown")  # fmt: skip
layers("gru", lambda: Call(nn.GRU), lambda: (words(),), mixes="unknown")
layers("lstm-cell", Cells, rows(3, 4, 4), mixes="unknown")
layers("embedding-bag", Bag, lambda: (torch.randint(0, 20, (8,)), torch.tensor([0, 3, 5])),
       mixes="unknown")  # fmt: skip
layers("bilinear", Pair, lambda: (torch.randn(3, 4), torch.randn(3, 4)), mixes="unknown")

layers("conv-kinds", lambda: nn.Sequential(
    nn.Conv2d(2, 8, 3, padding="same", padding_mode="circular"), nn.ReLU(inplace=True),
    nn.Conv2d(8, 8, 3, padding=1, groups=4), nn.Conv2d(8, 8, 3, padding=2, dilation=2, stride=2),
    nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3),
), rows(2, 2, 8, 8))  # fmt: skip
layers("conv-transpose", lambda: nn.Sequential(
    nn.ConvTranspose1d(4, 8, 3, stride=2, padding=1, output_padding=1), nn.PReLU(8),
    nn.ConvTranspose1d(8, 8, 3, groups=2), nn.Conv1d(8, 2, 1),
), rows(2, 4, 6), mixes="unknown")  # fmt: skip
layers("conv3d-group-norm", lambda: nn.Sequential(
    nn.Conv3d(1, 8, 2), nn.GroupNorm(2, 8), nn.SiLU(True), nn.Conv3d(8, 2, 2),
), rows(2, 1, 4, 4, 4))  # fmt: skip

changed("weight-norm-old", old.weight_norm)
changed("weight-norm", parametrizations.weight_norm)
changed("spectral-norm-old", old.spectral_norm)
changed("spectral-norm", parametrizations.spectral_norm)
changed("orthogonal", partial(parametrizations.orthogonal, orthogonal_map="matrix_exp"))
# Keeps the signs of a diagonal as integers within the weight: noise destroys them.
changed("orthogonal-householder", parametrizations.orthogonal, smooth=False)
changed("orthogonal-cayley", partial(parametrizations.orthogonal, orthogonal_map="cayley"))
changed("prune", pruned)
changed("prune-twice", pruned_twice)
layers("parametrize-own", symmetric, rows(3, 8))

layers("batch-norm", lambda: nn.Sequential(
    nn.Conv1d(2, 8, 3), nn.BatchNorm1d(8), nn.ReLU(True), nn.Conv1d(8, 3, 2),
), rows(3, 2, 6))  # fmt: skip
layers("batch-norm-cumulative", lambda: nn.Sequential(
    nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=None), nn.Linear(16, 3),
), rows(5, 8))  # fmt: skip
layers("norms", lambda: nn.Sequential(
    nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.RMSNorm(16), nn.Unflatten(1, (4, 4)),
    nn.InstanceNorm1d(4, affine=True, track_running_stats=True), nn.Flatten(), nn.Linear(16, 3),
), rows(3, 8))  # fmt: skip
layers("containers", Containers, rows(3, 8), mixes="unknown")
