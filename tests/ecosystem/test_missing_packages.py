"""If the package of an integration is missing, the error names the extra that installs it."""

import subprocess
import sys

import pytest

HIDE = """
import sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name == {missing!r} else find(name, *more)
{code}
"""
# Transformers itself imports peft where it is installed, so it is hidden from mcover alone.
COLLAPSE = """
import torch, mcover
from mcover.hf import collapse_adapters
sys.modules["peft.tuners.lora"] = None
collapse_adapters(mcover.lift(torch.nn.Linear(2, 2), 2, routing="messages"))
"""


@pytest.mark.parametrize(
    ("missing", "code", "printed"),
    [
        ("sklearn", "import mcover.sklearn", "constraints.txt '.[sklearn]'"),
        ("torch", "from mcover.sklearn import MCoverMLPClassifier", "needs torch"),
        ("torch", "from mcover.sklearn import MCoverPerceptronClassifier; 1 / 0", "ZeroDivision"),
        *(
            ("torch", f"import mcover; mcover.{name}", f"mcover.{name} needs torch")
            for name in ("lift", "nn", "optim", "distributed")
        ),
        ("torch", "import mcover.nn.binary", "mcover.nn needs torch"),
        ("torch", "import mcover, pydoc; pydoc.render_doc(mcover); 1 / 0", "ZeroDivision"),
        ("optuna", "import mcover; mcover.optuna", "constraints.txt '.[optuna]'"),
        ("optuna", "import mcover.optuna", "constraints.txt '.[optuna]'"),
        ("nothing", COLLAPSE, "'.[peft]'"),
        *((name, "import mcover.hf", f"needs {name}") for name in ("transformers", "accelerate")),
        ("torch", "import mcover.hf", "constraints.txt '.[hf]'"),
    ],
)
def test_what_is_missing_is_named(missing, code, printed):
    command = [sys.executable, "-c", HIDE.format(missing=missing, code=code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert printed in done.stderr, done.stderr
