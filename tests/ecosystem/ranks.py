"""Ranks for the tests: real processes on this machine that meet over loopback, with gloo."""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import multiprocessing

PATIENCE = 90.0  # seconds that a test waits for its ranks


class RankError(Exception):
    """What a rank raised, by its traceback."""


class Ranks:
    """Processes that stay up and run one function after the other, all of them the same."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.size, self.pipes, self.processes = size, [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, port), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returned on each rank, or the exceptions that it raised."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # it has died, which its answer will say
                pipe.send((function, args))
        return [self._answer(rank) for rank in range(self.size)]

    def _answer(self, rank: int) -> Any:
        try:
            if not self.pipes[rank].poll(PATIENCE):
                self.close()
                raise TimeoutError(f"rank {rank} did not answer within {PATIENCE} seconds")
            kind, value = self.pipes[rank].recv()
        except (EOFError, OSError):
            return None  # dead
        if kind == "unexpected":
            self.close()
            raise RankError(f"rank {rank}:\n{value}")
        return value

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


@contextlib.contextmanager
def ranks_of(size: int) -> Iterator[Ranks]:
    ranks = Ranks(size)
    try:
        yield ranks
    finally:
        ranks.close()


def _serve(pipe: Connection, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    # As different as they can be: nothing may depend on the global generators.
    torch.manual_seed(1000 + rank)
    np.random.seed(2000 + rank)  # noqa: NPY002
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    while True:
        function, args = pipe.recv()
        try:
            answer = "value", function(*args)
        except ValueError as error:  # McoverError, which tests look at
            answer = "value", error
        except Exception:
            answer = "unexpected", traceback.format_exc()
        pipe.send(answer)
