"""Optimizers of replicas, and Bop."""

import torch
from torch import nn

from covering import mlp
from mcover.optim import Bop, ElasticSGD, EntropySGD, ReplicatedSGD


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


ROWS = [
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
