"""The first training step of the message lift in a new installation, which compiles its kernels.

The baseline is the first step of the plain model under ``torch.compile``, also with empty caches.
Each runs in a separate process.

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

NAMES = ("mlp", "conv")
COVERS = 5


def measure(name: str, rival: bool) -> None:
    """Prints the seconds of the first step and of the best of the next five."""
    import torch
    import torch.nn.functional as F  # noqa: N812

    import mcover
    from networks import NETWORKS, Step, joint

    torch.set_num_threads(2)
    network = NETWORKS[name]
    if rival:
        net, (x, y) = network.make(), network.batch()
        compiled = torch.compile(net)
        step = Step(lambda: F.cross_entropy(compiled(x), y), list(net.parameters()))
    else:
        step = joint(network, COVERS, mcover.Uniform(), mcover.Messages())
    seconds = []
    for _ in range(6):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    print(seconds[0], min(seconds[1:]))


def first(network: str, rival: bool) -> tuple[float, float] | None:
    """The result of :func:`measure` with empty caches; None if torch finds no C++ compiler."""
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
    parser.add_argument("--of", choices=NAMES, help="used by the benchmark itself")
    parser.add_argument("--rival", action="store_true", help="used by the benchmark itself")
    given = parser.parse_args()
    if given.of:
        measure(given.of, given.rival)
        return
    lines = []
    for network in NAMES:
        ours, rival = first(network, rival=False), first(network, rival=True)
        ratio = f"{ours[0] / rival[0]:.2f}" if ours and rival else "–"
        for name, times in (
            (f"{COVERS} covers, message lift", ours),
            ("plain, torch.compile", rival),
        ):
            shown = [f"{times[0]:.1f} s", f"{1e3 * times[1]:.0f} ms"] if times else ["–", "–"]
            lines.append([network, name, *shown, ratio if times is ours else ""])
    rows("first step", ["network", "what", "first", "later", "ours / rival"], lines)


if __name__ == "__main__":
    main()
