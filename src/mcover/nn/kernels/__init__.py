"""Compiled mixing on a processor, for float32 and float64; all else is left to torch.

Blocks are short, so that a library call for each costs more than it should: its result goes through
memory before it is mixed. Here a few units are multiplied, mixed and dropped while they lie in the
cache, and all of a layer is one call, spread over torch's threads.
"""

from mcover.nn.kernels.common import common_backward, common_forward
from mcover.nn.kernels.convolutions import convolution_backward, convolution_forward
from mcover.nn.kernels.messages import message_backward, message_forward
from mcover.nn.kernels.regions import fits, takes
from mcover.nn.kernels.weights import mix_rows

__all__ = [
    "common_backward",
    "common_forward",
    "convolution_backward",
    "convolution_forward",
    "fits",
    "message_backward",
    "message_forward",
    "mix_rows",
    "takes",
]
