"""Covered models on several processes: beside DDP and FSDP, or with covers spread over ranks."""

from mcover.distributed.exchange import Layout
from mcover.distributed.ranks import check, start
from mcover.distributed.spread import Spread, spread, traffic

__all__ = ["Layout", "Spread", "check", "spread", "start", "traffic"]
