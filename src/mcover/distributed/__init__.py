"""Covered models on several processes, in DDP and FSDP, or with the covers spread over ranks."""

from mcover.extras import missing

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise missing("mcover.distributed", "torch", "torch") from error

from mcover.distributed.checkpoints import beside_covers, load, save
from mcover.distributed.exchange import Layout
from mcover.distributed.ranks import check, start
from mcover.distributed.spread import Spread, spread, traffic

__all__ = [
    "Layout",
    "Spread",
    "beside_covers",
    "check",
    "load",
    "save",
    "spread",
    "start",
    "traffic",
]
