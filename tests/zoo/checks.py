"""What every configuration has to pass, alone and in each routing."""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from entry import Entry, call
from probes import (
    COVERS,
    NOISE,
    check_slope,
    check_steps,
    lift,
    matters,
    mixed_share,
    padding_rows,
    run,
    total,
)  # fmt: skip
from torch import Tensor, nn
from trees import close, cover_of, same, tensors

import mcover
from mcover.errors import McoverError


def base_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """Gradients by every name of a parameter, tied ones too."""
    return {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}


def check_base(entry: Entry) -> None:
    """The model alone: builds, runs twice the same, and trains. If not, the zoo is at fault."""
    model, batch = entry.make()
    again, _ = entry.make()
    wanted = run(model, batch, False)
    same(run(again, batch, False, seed=2), wanted, 1e-6)
    if not entry.keeps:
        same(run(again, batch, False, seed=3), wanted, 1e-6)
    if not entry.random:
        same(run(again, batch, True, seed=2), run(model, batch, True), 1e-6)
    check_steps(model, batch, entry.loss)
    assert all(torch.isfinite(t).all() for t in tensors(run(model, batch, False)) if _floats(t))
    if entry.smooth and not entry.keeps:
        model, batch = entry.make(torch.float64)
        model.eval()
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        generator = torch.Generator().manual_seed(0)
        for p in trained.values():  # away from zeros behind a norm, where slopes are huge
            p.data += 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        check_slope(lambda: entry.loss(call(model, batch)), trained, padding_rows(model))


def check_equal(entry: Entry, routing: str) -> None:
    """Without noise every cover puts out, learns and keeps what the base does."""
    model, batch = entry.make()
    covered = lift(model, routing, noise=0.0)
    _outputs_equal(entry, covered, model, batch, False)
    if entry.random:
        return
    outputs, wanted = _outputs_equal(entry, covered, model, batch, True)
    total(entry, outputs).backward()
    entry.loss(wanted).backward()
    gradients = base_gradients(model)
    scale = max((float(g.abs().max()) for g in gradients.values() if g is not None), default=0.0)
    for name, stack in covered.stacks().items():
        wanted_gradient = gradients[name]
        if wanted_gradient is None or stack.grad is None:
            rest = stack.grad if wanted_gradient is None else wanted_gradient
            assert rest is None or not rest.any(), f"{name}: gradient in one of base and covers"
            continue
        for index in range(COVERS):
            where = f"gradient of {name}, cover {index}"
            close(stack.grad[index], wanted_gradient, 10 * entry.tolerance, where, scale / 10)


def check_collapse(entry: Entry, routing: str) -> None:
    """Without noise the collapsed model is the base: class, keys, values, buffers, outputs."""
    model, batch = entry.make()
    covered = lift(model, routing, noise=0.0)
    _same_model(entry, covered.collapse(), model, batch)
    if entry.random:
        return
    run(covered, batch, True)  # running statistics and the like move on in both
    run(model, batch, True)
    collapsed = covered.collapse()
    lost = model.state_dict().keys() ^ collapsed.state_dict().keys()
    assert not lost, f"after a forward pass in only one of base and collapsed: {sorted(lost)}"
    if not entry.keeps:
        _same_model(entry, collapsed, model, batch)


def check_trains(entry: Entry, routing: str) -> None:
    """Covers that differ train: losses, gradients and weights; what is frozen stays; collapses."""
    model, batch = entry.make()
    entry.loss(run(model, batch, True)).backward()
    wanted = {name for name, g in base_gradients(model).items() if matters(g)}
    keys = list(model.state_dict())  # quantisers may add some when they first run
    model, batch = entry.make()
    frozen = {name: p.detach().clone() for name, p in model.named_parameters()
              if not p.requires_grad}  # fmt: skip
    covered = lift(model, routing)
    stacks = covered.stacks()
    assert stacks, "nothing was lifted"
    assert not frozen.keys() & stacks.keys(), f"frozen but lifted: {[*frozen.keys() & stacks][:3]}"
    check_steps(covered, batch, lambda outputs: total(entry, outputs))
    for name, stack in stacks.items():
        if name in wanted and not entry.random:
            assert stack.grad is not None, f"{name}: no gradient"
            assert stack.grad.reshape(COVERS, -1).any(1).all(), f"{name}: no gradient in some cover"
    outputs = run(covered, batch, False)
    assert all(len(t) == COVERS for t in tensors(outputs)), "covers are not first"
    collapsed = covered.collapse()
    assert type(collapsed) is type(model)
    assert list(collapsed.state_dict()) == keys
    kept = dict(collapsed.named_parameters())
    assert all(torch.equal(kept[name], value) for name, value in frozen.items()), "frozen moved"
    assert torch.isfinite(entry.loss(run(collapsed, batch, False)))


def check_slopes(entry: Entry, routing: str) -> None:
    """Gradients of unequal covers are derivatives, and covers depend on one another."""
    smooth = entry.smooth and not entry.keeps
    model, batch = entry.make(torch.float64 if smooth else None)
    covered = lift(model, routing, noise=0.1 if smooth else NOISE).eval()
    stacks = {name: p for name, p in covered.stacks().items() if p.requires_grad}
    if smooth:
        check_slope(lambda: total(entry, call(covered, batch)), stacks, padding_rows(model))
    covered.zero_grad()
    entry.loss(cover_of(call(covered, batch), 1)).backward()
    heard = [bool(p.grad[[0, 2]].any()) for p in stacks.values() if p.grad is not None]
    assert any(heard), "cover 1 does not depend on the others"
    check_share(entry, covered, routing)


def check_share(entry: Entry, covered: Any, routing: str) -> float:
    """The share of lifted parameters that mix or are routed, after a forward pass."""
    share = mixed_share(covered)
    if routing == "directed":
        assert share == 1.0, f"only {share:.0%} of the parameters are routed"
    elif entry.mixes == "most":
        assert share >= 0.5, f"only {share:.0%} of the lifted parameters mix"
    elif entry.mixes == "little":
        assert share < 0.5, f"{share:.0%} of the lifted parameters mix"
    return share


def check_saves(entry: Entry, routing: str, folder: Path) -> None:
    """``save`` and ``load`` reproduce outputs."""
    model, batch = entry.make()
    covered = lift(model, routing)
    if not entry.keeps:  # attributes of the model are not saved
        _step(entry, covered, batch)
    covered.save(folder / "covered")
    if not entry.loads:
        with pytest.raises(McoverError, match="does not fit"):
            mcover.nn.load(folder / "covered", entry.make()[0])
        return
    loaded = mcover.nn.load(folder / "covered", entry.make()[0])
    same(run(loaded, batch, False), run(covered, batch, False), 1e-6)


def check_copies(entry: Entry, routing: str) -> None:
    """``copy.deepcopy`` and ``pickle`` reproduce outputs, wherever the base itself allows them."""
    model, batch = entry.make()
    covered = lift(model, routing)
    _step(entry, covered, batch)
    _step(entry, model, batch, entry.loss)
    made = []
    for duplicate in (copy.deepcopy, _pickled, _saved):
        try:
            duplicate(model)
        except Exception:  # the base cannot be copied this way: nothing to ask for
            continue
        made.append((duplicate.__name__, duplicate(covered)))
    wanted = run(covered, batch, False)
    for name, duplicate in made:
        same(run(duplicate, batch, False), wanted, 1e-6, name)


CHECKS: dict[str, Callable[..., None]] = {
    "equal": check_equal,
    "collapse": check_collapse,
    "trains": check_trains,
    "slopes": check_slopes,
    "saves": check_saves,
    "copies": check_copies,
}


def check(name: str, entry: Entry, routing: str, folder: Path) -> str | None:
    """One check by name; what has to be refused is refused, with the message of the entry.

    Returns:
        The message of an expected refusal, or None where everything works.
    """
    refusal = entry.refuses.get(routing)
    try:
        if refusal is not None and refusal.sure:
            model, batch = entry.make()
            covered = lift(model, routing)
            for _ in range(5):
                _step(entry, covered, batch)
        else:
            CHECKS[name](entry, routing, *([folder] if name == "saves" else []))
            return None
    except McoverError as error:
        if refusal is not None and re.search(refusal.pattern, str(error), re.IGNORECASE):
            return str(error)
        raise
    raise AssertionError(f"works, and should say: {refusal.pattern}")


def _outputs_equal(
    entry: Entry, covered: Any, model: nn.Module, batch: Any, training: bool
) -> tuple[Any, Any]:
    wanted = run(model, batch, training)
    outputs = run(covered, batch, training)
    for index in range(COVERS):
        same(cover_of(outputs, index), wanted, entry.tolerance, f"cover {index}")
    return outputs, wanted


def _same_model(entry: Entry, collapsed: nn.Module, model: nn.Module, batch: Any) -> None:
    assert type(collapsed) is type(model)
    kinds = [(name, type(m).__qualname__) for name, m in model.named_modules()]
    assert [(name, type(m).__qualname__) for name, m in collapsed.named_modules()] == kinds
    state, wanted = collapsed.state_dict(), model.state_dict()
    assert list(state) == list(wanted)
    for name, value in wanted.items():
        assert state[name].dtype == value.dtype, name
        close(state[name], value, entry.tolerance, name, scale=1e-2)
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    assert {name: p.requires_grad for name, p in collapsed.named_parameters()} == flags
    same(run(collapsed, batch, False), run(model, batch, False), entry.tolerance, "collapsed")


def _step(entry: Entry, model: nn.Module, batch: Any, loss: Any = None) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    outputs = run(model, batch, True)
    (total(entry, outputs) if loss is None else loss(outputs)).backward()
    optimizer.step()


def _pickled(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def _floats(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()
