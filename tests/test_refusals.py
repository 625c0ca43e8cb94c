"""Errors of covered models and optimizers with a specific remedy: one table.

Malformed arguments in general are the subject of ``test_fuzz.py``. Refusals that depend on what a
model does in its forward are tested beside that behaviour. In a message, … stands for any text.
"""

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import mcover
from covering import RING, doubles, mlp, squares
from mcover import Directed, Identity, McoverError, Messages, Uniform, cover_loss, lift
from mcover.nn import Shape, binary, register
from mcover.optim import Bop, ElasticSGD, EntropySGD, ReplicatedSGD
from tiny_models import Convolutional, Perceptron, Recurrent, tiny


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


class OwnForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return -self.layer(x)


OUTPUTS, COMPLEX = torch.zeros(3, 6), {"dtype": torch.complex64}
LIFTING = [
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
]  # fmt: skip

LOSSES = [
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
]  # fmt: skip

COLLAPSES = [
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
BINARY = [
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


def stack(*shape):
    return nn.Parameter(torch.zeros(shape or (3, 2)))


def rsgd(params=None, **options):
    return ReplicatedSGD(
        [stack()] if params is None else params, **{"lr": 0.1, "steps": 5} | options
    )


def elastic(**options):
    return ElasticSGD([stack()], **{"lr": 0.1} | options)


def bop(weight=1.0, **options):
    return Bop([nn.Parameter(torch.full((2,), weight))], **options)


def walking():
    return EntropySGD([stack()], inner_steps=5)


def started():
    optimizer = rsgd([nn.Parameter(torch.arange(6.0).view(3, 2))])
    optimizer.start(3.0)
    return optimizer


def again(optimizer):
    optimizer.add_param_group({"params": optimizer.param_groups[0]["params"]})


def both_of(weight):
    return Bop([weight], rest=torch.optim.SGD([weight], lr=0.1))


OPTIMIZERS = [
    ("no number of steps", lambda: rsgd(steps=None), "write steps=…growth=1"),
    ("a word for coupling", lambda: rsgd(coupling="strong"), "coupling is 'strong'…'auto'"),
    ("a coupling of a group", lambda: rsgd([{"params": [stack()], "coupling": -1.0}]),
     "coupling is -1.0"),
    ("a misspelt option", lambda: rsgd(momentun=0.9), "SGD refuses …momentun…It takes …momentum"),
    ("an option of another base", lambda: rsgd(base=torch.optim.Adam, momentum=0.9),
     "Adam refuses …momentum…betas"),
    ("an option out of range", lambda: rsgd(lr=-1.0), "SGD refuses"),
    ("a combination", lambda: elastic(nesterov=True), "SGD refuses"),
    ("a base that is no class", lambda: rsgd(base=3), "base is 3"),
    ("a base that needs a closure", lambda: rsgd(base=torch.optim.LBFGS), "without a closure"),
    ("a base that makes no optimizer", lambda: rsgd(base=lambda *_, **__: 3), "makes a int"),
    ("a base of another kind", lambda: rsgd(base=dict), "dict refuses"),
    ("a rate of zero", lambda: elastic(lr=0.0), "positive lr, or a number"),
    ("momentum of another kind", lambda: EntropySGD([stack()], nesterov=True),
     "write momentum=0.9"),
    *((f"{kind.__name__} of one parameter", lambda kind=kind: kind(stack(), lr=0.1),
       "params is a …covered.stacks") for kind in (ReplicatedSGD, ElasticSGD, EntropySGD)),
    ("covers of another number", lambda: rsgd([stack(), stack(4, 2)]),
     "shape (4, 2) does not have the covers first, which are 3…'replicas': False"),
    ("replicas=3", lambda: rsgd().add_param_group({"params": [stack(3)], "replicas": 3}),
     "write True or False"),
    ("a parameter again", lambda: again(started()), "this parameter group is refused"),
    ("start twice", lambda: started().start(3.0), "leave start"),
    ("no loss at the start", lambda: rsgd().step(), "optimizer.start(loss)…closure"),
    *((f"a loss of {loss}", lambda loss=loss: rsgd().start(loss), "loss at the start is …positive")
      for loss in (0.0, -1.0, float("inf"))),
    ("equal replicas", lambda: rsgd().start(1.0), "equal at the start…noise"),
    ("the centre of another stack", lambda: elastic().centre(stack()),
     "write one of covered.stacks().values()"),
    ("a walk without a closure", lambda: walking().step(), "step(closure)"),
    ("walks of two lengths", lambda: walking().add_param_group({"params": [stack()],
     "inner_steps": 3}),
     "inner_steps is 3 in one group and 5"),
    ("Bop of other numbers", lambda: bop(0.5), "parameter 0 of shape (2,) is not ±1"),
    ("Bop of latents", lambda: Bop(mlp().parameters()), "snap_latents"),
    ("Bop of one parameter", lambda: Bop(torch.ones(2)), "params is a Tensor"),
    ("Bop beside a class", lambda: bop(rest=torch.optim.Adam), "rest is"),
    ("a rest that is missing", lambda: bop().add_param_group({"params": [stack()], "flips": False}),
     "no other optimizer"),
    ("a parameter of both", lambda: both_of(nn.Parameter(torch.ones(2))),
     "given to Bop and to rest"),
]  # fmt: skip

REFUSALS = {
    f"{subject}: {name}": (refused, message)
    for subject, table in {
        "lift": LIFTING, "loss": LOSSES, "collapse": COLLAPSES, "binary": BINARY,
         "optim": OPTIMIZERS,
    }.items()
    for name, refused, message in table
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_names_the_remedy(name):
    refused, message = REFUSALS[name]
    with pytest.raises(McoverError) as caught:
        refused()
    pattern = ".*".join(map(re.escape, message.split("…")))
    assert re.search(pattern, str(caught.value), re.DOTALL), caught.value


def test_options_of_the_other_routing_cannot_be_written():
    with pytest.raises(TypeError):
        Directed(streams=2)
    with pytest.raises(TypeError):
        lift(tiny(Perceptron)[0], 3, Identity(), "directed", streams=2)
