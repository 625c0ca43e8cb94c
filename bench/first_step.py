"""The first training step of a covered model in a new installation, which compiles its kernels.

The rival is the first step of the plain model under ``torch.compile``, likewise with empty caches.
Each runs in a process of its own.

    python bench/first_step.py
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time

from timing import rows

SIZES = {"mlp": (256, 784), "conv": (64, 1, 28, 28)}


def measure(network: str, rival: bool) -> None:
    """Prints the seconds of the first step and of the best of the next five."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    import lift

    torch.set_num_threads(2)
    make = getattr(lift, network)
    x, y = torch.randn(SIZES[network]), torch.zeros(SIZES[network][0], dtype=torch.int64)
    if rival:
        net = make()
        compiled = torch.compile(net)
        step = lift.Step(lambda: F.cross_entropy(compiled(x), y), list(net.parameters()), [])
    else:
        step = lift.covered(make, 5, 8, x, y)
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    print(seconds[0], min(seconds[1:]))


def first(network: str, rival: bool) -> tuple[float, float] | None:
    """What :func:`measure` finds with empty caches; None where torch finds no C++ compiler."""
    with tempfile.TemporaryDirectory() as empty:
        caches = {"NUMBA_CACHE_DIR": empty, "TORCHINDUCTOR_CACHE_DIR": empty}
        command = [sys.executable, __file__, "--of", network, *(["--rival"] if rival else [])]
        found = subprocess.run(command, env=os.environ | caches, capture_output=True, text=True)
    if found.returncode and not rival:
        sys.exit(found.stderr)
    if found.returncode:
        return None
    begin, later = map(float, found.stdout.split()[-2:])
    return begin, later


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of", choices=list(SIZES), help="used by the benchmark itself")
    parser.add_argument("--rival", action="store_true", help="used by the benchmark itself")
    given = parser.parse_args()
    if given.of:
        measure(given.of, given.rival)
        return
    lines = []
    for network in SIZES:
        ours, rival = first(network, rival=False), first(network, rival=True)
        ratio = f"{ours[0] / rival[0]:.2f}" if ours and rival else "–"
        for name, times in (("5 covers", ours), ("plain, torch.compile", rival)):
            shown = [f"{times[0]:.1f} s", f"{1e3 * times[1]:.0f} ms"] if times else ["–", "–"]
            lines.append([network, name, *shown, ratio if times is ours else ""])
    rows("first step", ["network", "what", "first", "later", "ours / rival"], lines)


if __name__ == "__main__":
    main()
