"""Torch's thread-local modes, context variables and warning handlers belong to a cover."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from covering import RING, both, doubles, mlp  # noqa: E402
from mcover import lift  # noqa: E402
from mcover.nn import lockstep  # noqa: E402


class Modes(nn.Module):
    """Enters torch's modes around layers that mix, and looks at them behind."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        assert torch.is_grad_enabled()
        with torch.no_grad():
            h = self.a(x)
            assert not torch.is_grad_enabled()
            h = self.b(h)
            assert not torch.is_grad_enabled()
        assert not h.requires_grad
        assert torch.is_grad_enabled()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            k = self.c(h)
            assert torch.is_autocast_enabled("cpu")
            assert k.dtype == torch.bfloat16
            with torch.autocast("cpu", enabled=False):
                k = self.c(h)
                assert k.dtype == torch.float32
            assert self.c(h).dtype == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
        with torch.inference_mode():
            free = self.b(h)
            assert torch.is_inference_mode_enabled()
            assert self.b(free).is_inference()
        assert not torch.is_inference_mode_enabled()
        return self.c(h) + k


@both
def test_modes_of_torch_belong_to_a_cover(routing):
    covered = lift(Modes(), 3, RING, routing, noise=0, seed=0)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(covered(x)[1], covered.cover(1)(x))
    covered(x).sum().backward()
    assert covered.net.a.weight.grad is None or not covered.net.a.weight.grad.any()
    assert covered.net.c.weight.grad.any()
    with torch.inference_mode():
        assert lift(mlp(), 3, RING, routing, seed=0)(doubles(2, 6)).is_inference()
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_layers_in_double_precision_stay_so_under_autocast():
    covered = lift(mlp(), 3, RING, "messages", seed=0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert covered(doubles(2, 6)).dtype == torch.float64


def test_context_variables_reach_the_covers():
    import contextvars

    variable = contextvars.ContextVar("variable", default="lost")
    variable.set("found")
    assert lockstep.run([variable.get, variable.get]) == ["found", "found"]


def test_warnings_of_torch_after_a_forward_find_their_handler(tmp_path):
    """Covers stop inside calls of torch, each of which notes its own handler for the thread.

    One that is left behind is read when something warns outside of such a call, as the reducer of
    DistributedDataParallel does; that ends the process, so the test has one of its own.
    """
    script = """
import sys, torch, mcover
torch.distributed.init_process_group("gloo", init_method=sys.argv[1], rank=0, world_size=1)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
covered = mcover.lift(net, 3, mcover.Uniform(), seed=0)
model = torch.nn.parallel.DistributedDataParallel(covered, find_unused_parameters=True)
model(torch.ones(3, 4)).sum().backward()
"""
    store = (tmp_path / "store").as_uri()
    done = subprocess.run(
        [sys.executable, "-c", script, store], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "find_unused_parameters=True" in done.stderr
