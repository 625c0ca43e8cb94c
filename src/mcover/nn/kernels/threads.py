"""Compiled code on torch's own threads.

Threads of our own would share the cores with torch's, which wait for their next work by spinning:
on a machine where torch uses all cores, each of the two would go at half speed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

Region = Any  # what numba.cfunc gives of a function of a pointer to integers

_COUNTERS = 2


def run(region: Region, given: Sequence[int], threads: int) -> None:
    """Calls ``region`` with a pointer to two counters, at zero, and to ``given``, in each thread.

    A region takes its number among the threads from the first counter and pieces of work from the
    second one until none is left, so that any number of threads does all the work.
    """
    shared = (ctypes.c_int64 * (_COUNTERS + len(given)))(*([0] * _COUNTERS), *given)
    if threads == 1:
        region.ctypes(shared)
        return
    parallel = _openmp()
    if parallel is not None:
        parallel(region.address, ctypes.addressof(shared), threads, 0)
        return
    others = [_pool(threads - 1).submit(region.ctypes, shared) for _ in range(threads - 1)]
    region.ctypes(shared)
    for other in others:
        other.result()


@cache
def _openmp() -> Any:
    """The entry of GNU's OpenMP that torch was linked with; None where it uses another one."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        entry = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    entry.restype = None
    return entry


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="mcover")
