"""The default noise that separates the covers at the start."""

from __future__ import annotations

from torch import nn

_PERCEPTRON, _OTHERS = "100%", "10%"


def auto_noise(model: nn.Module) -> str:
    """The share of each tensor's own standard deviation that ``noise="auto"`` stands for.

    It is 100% where all parameters of the model are those of linear layers, and 10% elsewhere.
    ``bench/noise.py`` measures it. What decides is the architecture, and not whether the weights
    are fresh, pretrained or those of adapters. With few images perceptrons gain at about 100%, from
    fresh weights most clearly, and lose nothing where they are fine-tuned or adapted; with layer
    norms they do not gain. Convolutions and attention apply one weight at many positions: at 100%
    they lose, some of them all they had learned, and 10% does no harm, nor much good.

    >>> auto_noise(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    '100%'
    >>> auto_noise(nn.Sequential(nn.Conv1d(4, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
    '10%'
    """
    holders = [module for module in model.modules() if [*module.parameters(recurse=False)]]
    is_perceptron = all(isinstance(module, nn.Linear) for module in holders)
    return _PERCEPTRON if is_perceptron else _OTHERS
