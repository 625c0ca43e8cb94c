"""All malformed calls, each in a process that may crash or hang; prints how they ended.

    python tests/run_fuzzing.py [--integrations] [--every 10] [--only TEXT] [--output calls.jsonl]

A worker makes the calls in order. When it crashes or does not answer, the call that it was making
is counted as such, and another worker continues after it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

MEMORY = 12 << 30  # bytes of addresses: what asks for more fails instead of swapping
KINDS = {
    "refused": "refused by McoverError",
    "validated": "refused by scikit-learn's own checks, estimators only",
    "users": "raised by the function that was passed",
    "accepted": "accepted, and can have been meant",
    "strange": "accepted, and cannot have been meant",
    "raw": "raw exception of our code",
    "foreign": "raw exception of a dependency",
    "crashed": "the process died",
    "hanging": "did not end",
}


def work(options: argparse.Namespace) -> None:
    """The calls from one index on, a line before each and a line after it."""
    os.environ["MCOVER_MEMORY_LIMIT"] = str(1 << 30)  # so that large requests end soon
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    import fuzzing
    import fuzzing_examples

    known = fuzzing.targets(options.integrations)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(tempfile.mkdtemp())
    warm = ""
    with fuzzing_examples.one_rank():
        for index, case in enumerate(fuzzing.cases(known)):
            if index < options.start or index % options.every or options.only not in case[0]:
                continue
            if case[0] != warm:  # what is compiled on first use does not count as hanging
                warm = case[0]
                known[warm].call(**known[warm].given())
            answers.write(json.dumps([index, *case]) + "\n")
            result = fuzzing.run(case, known)
            answers.write(json.dumps([index, *case, result.kind, result.text]) + "\n")
    answers.write(json.dumps(["end"]) + "\n")


def calls(options: argparse.Namespace) -> Any:
    """Results of all calls, across workers."""
    command = [sys.executable, __file__, "--work", *sys.argv[1:]]
    ended = False
    while not ended:
        worker = subprocess.Popen(
            [*command, "--start", str(options.start)], stdout=subprocess.PIPE, text=True
        )
        lines: queue.Queue[str] = queue.Queue()

        def read(worker: Any = worker, lines: Any = lines) -> None:
            for line in worker.stdout:
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        last: list[Any] | None = None
        while True:
            try:
                line = lines.get(timeout=120)
            except queue.Empty:
                assert last is not None, "the worker did not start"
                yield [*last, "hanging", ""]
                break
            if not line:
                assert last is not None, "the worker did not start"
                yield [*last, "crashed", f"exit code {worker.wait()}"]
                break
            found = json.loads(line)
            if found == ["end"]:
                ended = True
                break
            if len(found) == 4:
                last = found
            else:
                yield found
        worker.kill()
        worker.wait()
        options.start = last[0] + 1 if last else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--integrations", action="store_true", help="those instead of the library")
    parser.add_argument("--every", type=int, default=1, help="one call in so many")
    parser.add_argument("--only", default="", help="targets with this text in their name")
    parser.add_argument("--output", type=Path, help="a file for a line of JSON for each call")
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options)
        return
    counts: collections.Counter[str] = collections.Counter()
    output = options.output.open("w") if options.output else open(os.devnull, "w")  # noqa: SIM115
    for index, target, parameter, value, kind, text in calls(options):
        counts[kind] += 1
        output.write(json.dumps([index, target, parameter, value, kind, text]) + "\n")
        output.flush()
        if kind in ("strange", "raw", "foreign", "crashed", "hanging"):
            sys.stdout.write(f"{kind:9} {target}({parameter}={value}) {text}\n")
    sys.stdout.write(f"{sum(counts.values())} calls\n")
    for kind, what in KINDS.items():
        sys.stdout.write(f"{counts[kind]:7} {what}\n")


if __name__ == "__main__":
    main()
