"""Covered models on several processes, in DDP and FSDP, or with the covers spread over ranks."""

from mcover.extras import require

with require("mcover.distributed", "torch", "torch"):
    from mcover.distributed.checkpoints import beside_covers, load, save
    from mcover.distributed.ranks import check, start
    from mcover.distributed.spread import Spread, spread

__all__ = [
    "Spread",
    "beside_covers",
    "check",
    "load",
    "save",
    "spread",
    "start",
]
