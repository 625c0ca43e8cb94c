"""Ranks for the tests: real processes on this machine that use gloo over loopback."""

from __future__ import annotations

import faulthandler
import os
import socket
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing

PATIENCE = 120.0  # seconds that a test waits for its ranks

# Forked from one process that has imported all there is to import: a rank starts at once.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.tensor", "mcover.distributed"])


class RankError(Exception):
    """An error raised by a rank, with its traceback."""


class DiedError(Exception):
    """A rank ended without an answer."""


def run(size: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
    """The results of the function on all ranks, or the McoverError that it raises.

    No rank outlives the call, however it ends. Gloo's own thread rarely ends a rank with a
    segmentation fault (torch 2.13); then all ranks run once more.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            answers = _run(folder, size, function, args, timeout)
        except RankError:
            if not _gloo_crashed(folder):
                raise
        else:
            if not _gloo_crashed(folder):
                return answers
    with tempfile.TemporaryDirectory() as folder:
        return _run(folder, size, function, args, timeout)


def _gloo_crashed(folder: str) -> bool:
    """Whether a rank crashed in a thread that Python did not start: no code of ours runs there."""
    reports = [path.read_text() for path in Path(folder).iterdir()]
    return any("Segmentation fault" in one and "Current thread" not in one for one in reports)


def _run(
    folder: str, size: int, function: Callable[..., Any], args: Any, timeout: float
) -> list[Any]:
    port = free_port()
    answers: list[Any] = [DiedError()] * size
    processes, pipes, kept = [], {}, []
    try:
        for rank in range(size):
            ours, theirs = _CONTEXT.Pipe()
            report = str(Path(folder, str(rank)))
            given = (theirs, report, rank, size, port, timeout, function, args)
            process = _CONTEXT.Process(target=_rank, args=given, daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            pipes[ours] = rank
            kept.append(ours)
        while pipes:
            ready: list[Any] = wait(list(pipes), PATIENCE)
            if not ready:
                raise TimeoutError(f"ranks {sorted(pipes.values())} hang")
            for pipe in ready:
                rank = pipes.pop(pipe)
                try:
                    kind, value = pipe.recv()
                except EOFError:
                    continue
                if kind == "unexpected":
                    raise RankError(f"rank {rank}:\n{value}")
                answers[rank] = value
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        for pipe in kept:
            pipe.close()
    return answers


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _rank(
    pipe: Connection,
    report: str,
    rank: int,
    size: int,
    port: int,
    timeout: float,
    function: Any,
    args: Any,
) -> None:
    crashes = Path(report).open("w")  # noqa: SIM115 (open until the process ends)
    faulthandler.enable(crashes)
    torch.set_num_threads(1)
    # As different as they can be: nothing may depend on the global generators.
    torch.manual_seed(1000 + rank)
    np.random.seed(2000 + rank)  # noqa: NPY002
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    try:
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
        answer = "value", function(*args)
    except ValueError as error:  # McoverError, which tests look at
        answer = "value", error
    except Exception:
        answer = "unexpected", traceback.format_exc()
    pipe.send(answer)
    pipe.recv()  # until it is killed: what another rank sees is not that this one is gone
