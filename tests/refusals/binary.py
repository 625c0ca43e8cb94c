"""±1 weights, their collapse, and networks of bits."""

import torch
from torch import nn

from covering import doubles, mlp
from mcover import lift
from mcover.nn import binary
from refusals.networks import covered, not_finite
from tiny_models import Perceptron, Recurrent, tiny


class OwnForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return -self.layer(x)


def student(kind=Perceptron, **options):
    return binary.binarize(tiny(kind)[0], **options)


def collapse(**options):
    return binary.collapse(lift(student(), 2, seed=0), **options)


def folded(*layers):
    model = nn.Sequential(*layers)
    has_latents = any(hasattr(layer, "parametrizations") for layer in layers)
    return binary.fold(model if has_latents or not layers else binary.binarize(model))


def nan(*_):
    return float("nan")


SIGNS = binary.binarize(nn.Sequential(nn.Linear(3, 3)))[0]
LATENT = "out.parametrizations.weight.original"
ROWS = [
    ("a misspelt estimator", lambda: student(estimator="ste"),
     "estimator is 'ste'; … or a function"),
    ("nothing to binarize", lambda: binary.binarize(nn.LayerNorm(3)), "no weight is left"),
    ("skip without a match", lambda: student(skip="0"), "skip: '0' matches no parameters"),
    ("binarized already", lambda: binary.binarize(student()), "parametrized already"),
    ("rows for padding",
     lambda: binary.binarize(nn.Embedding(3, 2, padding_idx=0), select="weight"),
     "padding"),
    ("a covered model", lambda: binary.binarize(covered()), "lift(binarize(model)"),
    ("transposed groups",
     lambda: binary.binarize(nn.ConvTranspose1d(4, 4, 3, groups=2), scale="channel"),
     "no axis of output channels"),
    ("clip without latents", lambda: binary.clip_latents(mlp()), "no latent weights"),
    ("snap without latents", lambda: binary.snap_latents(mlp()), "no latent weights"),
    ("snap of three values", lambda: binary.snap_latents(student(ternary=True)),
     "write ternary=False"),
    ("bake without latents", lambda: binary.bake(mlp()), "no latent weights"),
    ("bake of covers", lambda: binary.bake(lift(student(Recurrent), 2)), "write bake(collapse"),
    ("a layer of covers by itself", lambda: covered(student()).net.middle(doubles(2, 6)),
     "called by itself"),
    ("a collapse of no covers", lambda: binary.collapse(mlp()), "binary.binarize"),
    ("a collapse without latents", lambda: binary.collapse(covered()), "no latent weights"),
    ("latents that diverged",
     lambda: binary.collapse(not_finite(covered(student()), LATENT), "signs"), "not finite"),
    ("best of nothing", lambda: collapse(policy="best"), "needs held_out"),
    ("held_out for signs", lambda: collapse(policy="signs", held_out=[]),
     "'signs' does not use it"),
    ("held_out without samples", lambda: collapse(policy="best", held_out=[]), "no samples"),
    ("held_out without targets", lambda: collapse(policy="best", held_out=[doubles(3, 7)]),
     "batches"),
    ("held_out as an iterator", lambda: collapse(policy="best", held_out=iter([])),
     "once for each cover"),
    ("a score of NaN",
     lambda: collapse(policy="best", held_out=[(doubles(2, 7), torch.zeros(2))], score=nan),
     "not a number"),
    ("weights of floats", lambda: binary.fold(nn.Sequential(nn.Linear(3, 2))),
     "weights of '0' are not ±1"),
    ("ReLU between", lambda: folded(SIGNS, nn.ReLU(), SIGNS), "after '0' there is '1', a ReLU"),
    ("ReLU first", lambda: folded(nn.ReLU(), SIGNS), "'0' is a ReLU, which fold does not know"),
    ("no Sign", lambda: folded(SIGNS, nn.BatchNorm1d(3), SIGNS), "after '0' there is '2', a Par"),
    ("Tanh last", lambda: folded(SIGNS, nn.Tanh()), "after '0' there is '1', a Tanh"),
    ("a forward of its own", lambda: binary.fold(OwnForward()),
     "'the model' is a OwnForward, whose forward is its own"),
    ("a part of its own", lambda: folded(SIGNS, OwnForward()), "'1' is a OwnForward"),
    ("no layers", lambda: binary.fold(nn.Sequential(nn.Flatten())), "no layer of ±1 weights"),
    ("three values",
     lambda: binary.fold(binary.binarize(nn.Sequential(nn.Linear(9, 9)), ternary=True)),
     "not ±1"),
    ("norms without statistics",
     lambda: folded(SIGNS, nn.BatchNorm1d(3, track_running_stats=False)),
     "keeps no running statistics"),
    ("groups", lambda: folded(nn.Conv2d(4, 4, 3, groups=2)), "groups=2 and padding_mode='zeros'"),
    ("padding", lambda: folded(nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")),
     "padding_mode='reflect'"),
    ("covers", lambda: binary.fold(lift(student(), 2)), "is covered"),
    ("inputs of other axes", lambda: folded(SIGNS)(torch.ones(2, 2, 3)),
     "'0' takes tensors of 2 axes and got (2, 2, 3)"),
]  # fmt: skip
