"""Models of the zoo with ±1 or ternary weights, as ``mcover.nn.binary`` makes them, and brevitas'.

Their gradients pass through signs, so they are not derivatives.
"""

from __future__ import annotations

import torch
import torch_layers  # noqa: F401
import transformers_senses  # noqa: F401
import transformers_text  # noqa: F401
from entry import ZOO, add, square
from torch import nn

import ecosystem  # noqa: F401  the models that are taken here
from mcover.nn import binary


def binarized(base: str, name: str = "binary", loads: bool = True, **options) -> None:
    """Registers another model of the zoo with ±1 weights."""
    of = ZOO[base]

    def build():
        model, batch = of.build()
        return binary.binarize(model, **options), batch

    add(of.package, f"{name}-{base}", of.loss, mixes=of.mixes, smooth=False, loads=loads)(build)


binarized("bert-classification")
binarized("gpt2", scale="channel")  # its layers have the output channels last
binarized("vit", "ternary", ternary=True, scale="channel")
binarized("monai-unet", estimator="polynomial")
binarized("monai-densenet", "ternary", ternary=True)
# Its linear layers write computed weights to their state, whatever the parametrization.
binarized("pyg-graphsage", estimator="swish", loads=False)
binarized("lstm", scale="channel")


@add("torch", "binary-activations", square, smooth=False)
def binary_activations():
    net = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), binary.Sign(), nn.Linear(16, 8), nn.BatchNorm1d(8),
    )  # fmt: skip
    return binary.binarize(net, scale="channel"), (torch.randn(5, 8),)


@add("brevitas", "brevitas-binary", square, smooth=False, loads=False)
def brevitas_binary():
    from brevitas.core.function_wrapper import TensorClamp
    from brevitas.nn import QuantLinear
    from brevitas.quant import SignedBinaryWeightPerTensorConst

    class BinaryWeight(SignedBinaryWeightPerTensorConst):
        """Its base clips weights in place while the model runs; optimizers own those of covers."""

        tensor_clamp_impl = TensorClamp

    options = {"bias": True, "weight_quant": BinaryWeight}
    net = nn.Sequential(
        QuantLinear(8, 16, **options), nn.BatchNorm1d(16), nn.Tanh(), QuantLinear(16, 3, **options)
    )
    return net, (torch.randn(5, 8),)
