"""Lifts of networks, losses of covers, and collapses."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import mcover
from covering import RING, doubles, mlp, squares
from mcover import Directed, Messages, Uniform, cover_loss, lift
from mcover.nn import Shape, register
from tiny_models import Convolutional, Perceptron, tiny


def covered(model=None, routing="messages", covers=3, **options):
    model = tiny(Perceptron)[0] if model is None else model
    return lift(model, covers, RING, routing, **{"seed": 0} | options)


def directed():
    return covered(routing="directed")


def call(*args, **options):
    """A lift of the tiny perceptron."""
    return lift(tiny(Perceptron)[0], *args, **options)


def frozen(model):
    return model.requires_grad_(False)


def not_finite(covered, name):
    """A covered model with one value that is NaN, in cover 1."""
    with torch.no_grad():
        covered.net.state_dict()[name][1] = torch.nan
    return covered


OUTPUTS, COMPLEX = torch.zeros(3, 6), {"dtype": torch.complex64}
ROWS = [
    # Lifts.
    ("a routing for a topology", lambda: call(4, "directed"),
     "'directed', which is a routing; write routing='directed'"),
    ("a class of routings", lambda: call(4, Directed),
     "Directed, which is a routing; write routing=Directed"),
    ("a value of a routing", lambda: call(4, Messages(2)),
     "which is a routing; write routing=Messages(blocks=2"),
    ("a topology for a routing", lambda: call(4, routing=Uniform()),
     "which is a topology; write topology=Uniform()"),
    ("a word for a topology", lambda: call(4, routing="ring"),
     "which is a topology; write topology='ring'"),
    ("a misspelt topology", lambda: call(4, "unifrom"),
     "topology is 'unifrom'; write 'uniform', 'ring', 'chain' or"),
    ("a misspelt routing", lambda: call(4, routing="direct"),
     "routing is 'direct'; write 'directed' or 'messages'"),
    ("a matrix", lambda: call(4, np.eye(4)), "topology is a ndarray; write mcover.Custom(matrix)"),
    ("a class without a default", lambda: call(4, mcover.Custom),
     "Custom…write 'uniform'…GaussianRing"),
    ("covers as text", lambda: call("4"), "covers is '4'; write how many, or a list of modules"),
    ("covers as a float", lambda: call(4.0), "covers is 4.0; write how many"),
    ("an empty list of covers", lambda: call([]), "covers is []; write how many"),
    ("noise as text", lambda: call(4, noise="20"),
     "noise is '20'; write 'auto', a standard deviation"),
    ("noise as a negative share", lambda: call(4, noise="-5%"), "noise is '-5%'; write 'auto'"),
    ("the arguments swapped", lambda: lift(4, nn.Linear(2, 2)),
     "the model comes first; write lift(model, 4)"),
    ("a class of models", lambda: lift(nn.Linear, 4), "got its class; write lift(Linear(...)"),
    ("a function", lambda: covered(lambda x: x), "takes a torch.nn.Module"),
    ("a model without parameters", lambda: covered(nn.ReLU()), "no parameters"),
    ("a lazy model", lambda: covered(nn.LazyLinear(3)), "run one batch"),
    ("a covered model", lambda: covered(covered()), "covered already"),
    ("a frozen model", lambda: covered(frozen(mlp())), "no parameter of the model trains"),
    ("modules of other shapes", lambda: lift(nn.Linear(2, 3), [nn.Linear(2, 3), nn.Linear(3, 3)]),
     "cover 1 does not match the model at 'weight'"),
    ("covers that are no modules", lambda: lift(nn.Linear(2, 3), [1, 2]), "not a torch.nn.Module"),
    ("buffers without a match", lambda: call(3, buffers="norm.*"), "matches no buffer"),
    ("streams of exact mixers", lambda: Messages(streams=2, mixer="exact"),
     "write mixer='sampled'"),
    ("a layer by itself", lambda: covered().net.hidden(doubles(2, 7)), "call the covered model"),
    ("routes of messages", lambda: covered().routes, "see covered.mixers()"),
    ("a registered value", lambda: register(nn.GRU, 3), "a function of a layer"),
    ("a registered word", lambda: register("Linear", lambda layer: [Shape(1, 1)]),
     "kind is 'Linear'…full name"),
    *((f"a selection of a {type(select).__name__}", lambda select=select: call(3, select=select),
       "matches no parameters. Available: hidden, middle, out")
      for select in ("haed", ["out", "nothing.*"], lambda name, module: False)),
    ("a selection of a number", lambda: call(3, select=3), "write names or globs"),
    *((f"messages of {type(layer).__name__}", lambda layer=layer: covered(layer),
       "nothing in this model would mix…routing='directed'")
      for layer in (nn.GRU(7, 3), nn.InstanceNorm1d(4, affine=True), nn.ConvTranspose1d(4, 6, 3),
                    nn.Bilinear(7, 7, 2), nn.BatchNorm1d(4, momentum=None))),
    # Compiled loops read the bank without bounds checks.
    *((f"destination {which}", lambda which=which: directed()._slices(which),
       "destination is")
      for which in (slice(0, 2), 8, -1, 1.0, np.arange(2))),
    # Losses of covers.
    ("a target of another batch",
     lambda: cover_loss(F.cross_entropy, torch.zeros(2, 5, 3), torch.zeros(4).long()),
     "shapes [(5, 3)] with a target of shapes [(4,)]"),
    ("a class of losses", lambda: cover_loss(nn.CrossEntropyLoss, OUTPUTS, OUTPUTS),
     "with its parentheses"),
    *((f"a loss that comes {where}", lambda given=given: cover_loss(*given),
       "loss is a Tensor of shape (3, 6), and a function comes after it; write the function first")
      for where, given in (("second", (OUTPUTS, F.mse_loss, OUTPUTS)),
                           ("last", (OUTPUTS, OUTPUTS, F.mse_loss)))),
    ("outputs without a loss", lambda: cover_loss({"logits": torch.zeros(3, 2)}),
     "give the model its labels"),
    ("outputs without tensors", lambda: cover_loss(F.mse_loss, 3, 3),
     "takes what the covered model returned"),
    *((f"a target of {target}",
       lambda target=target: cover_loss(F.mse_loss, OUTPUTS, target, each=True),
       "3 covers first…each=False") for target in (torch.zeros(6), torch.tensor(0.0), 0.5)),
    ("inputs without covers", lambda: covered().each(doubles(5, 4)),
     "3 covers first, and got a tensor of shape (5, 4)"),
    ("a number among inputs", lambda: covered().each(doubles(3, 5, 7), torch.tensor(1.0)),
     "got a tensor of shape ()"),
    ("no inputs", lambda: covered().each(), "got no tensor"),
    # The fuzz test leaves out covered.loss, which runs the model.
    *((f"covered.loss with {name}={value}",
       lambda name=name, value=value: directed().loss(
           **{"loss": squares, "inputs": doubles(4, 7), "target": 0.5, name: value}), message)
      for name, value, message in (
          ("loss", 3, "loss is 3"), ("loss", nn.MSELoss, "with its parentheses"),
          ("each", 1, "write True or False"), ("scale", 0, "scale is 0"),
          ("through", 3, "write a module around the covered model"))),
    ("covered.loss of messages", lambda: covered().loss(squares, doubles(4, 7), 0.5),
     "message lift meet in every layer…cover_loss"),
    ("losses of samples", lambda: directed().loss(lambda o, t: o, doubles(4, 7)),
     "shape (4, 3)…single number"),
    ("a loss that is a float",
     lambda: directed().loss(lambda o, t: 1.0, doubles(4, 7)),
     "single number"),
    ("covered.loss without a loss", lambda: directed().loss(None, doubles(4, 7)),
     "no loss for each cover"),
    ("inputs without covers, cover by cover",
     lambda: directed().loss(squares, doubles(2, 5, 7), 0.5, each=True), "3 covers first"),
    ("a module around that calls no covers",
     lambda: directed().loss(squares, doubles(4, 7), 0.5, through=nn.Linear(7, 3).double()),
     "did not call this covered model"),
    # Collapses.
    ("a misspelt collapse", lambda: covered().collapse("max"),
     "how is 'max'; write 'mean', 'sign' or a function"),
    ("a function that keeps covers", lambda: covered(mlp()).collapse(lambda stack: stack),
     "(3, 8, 6)…shape (8, 6)"),
    ("a function that raises", lambda: covered(mlp()).collapse(lambda stack: stack[7]),
     "IndexError…'0.weight'…shape (8, 6)"),
    ("signs of complex weights", lambda: covered(nn.Linear(2, 2, **COMPLEX)).collapse("sign"),
     "no sign"),
    ("weights that diverged", lambda: not_finite(covered(), "middle.weight").collapse(),
     "'middle.weight' … (in covers [1])"),
    ("a cover that diverged", lambda: not_finite(covered(), "middle.weight").cover(1),
     "'middle.weight'"),
    ("statistics that diverged",
     lambda: not_finite(covered(tiny(Convolutional)[0]), "norm.running_var").collapse(),
     "'norm.running_var'"),
]  # fmt: skip
