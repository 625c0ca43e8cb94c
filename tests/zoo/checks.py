"""The checks of every configuration, alone and in each routing."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from entry import Entry, call
from torch import Tensor, nn
from trees import close, cover_of, same, tensors

import mcover
from covering import pickled, saved
from mcover.errors import McoverError

COVERS = 3
NOISE = 1e-2


def lift(model: nn.Module, routing: str, noise: float = NOISE) -> Any:
    """Three covers of a model, as everywhere in the zoo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a lift that mixes little says so
        return mcover.lift(
            model, covers=COVERS, topology=mcover.GaussianRing(1.0, shift=1), routing=routing,
            noise=noise, seed=0,
        )  # fmt: skip


def run(model: nn.Module, batch: Any, training: bool, seed: int = 1) -> Any:
    """One forward pass in training or evaluation mode, with the global stream at ``seed``."""
    torch.manual_seed(seed)
    return call(model.train(training), batch)


def total(entry: Entry, outputs: Any) -> Tensor:
    """The sum over covers of the loss."""
    losses = [entry.loss(cover_of(outputs, index)) for index in range(COVERS)]
    return sum(losses[1:], start=losses[0])


def check_steps(
    model: nn.Module, batch: Any, loss: Callable[[Any], Tensor], steps: int = 3
) -> None:
    """A few steps of AdamW: finite losses and gradients, and both loss and weights change."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    before = {name: p.detach().clone() for name, p in trained.items()}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-3, weight_decay=0.0)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(run(model, batch, True, seed=step))
        assert torch.isfinite(value), f"loss {value}"
        value.backward()
        for name, p in trained.items():
            assert p.grad is None or torch.isfinite(p.grad).all(), f"gradient of {name}"
        optimizer.step()
        losses.append(float(value.detach()))
    assert len(set(losses)) > 1, f"the loss stays at {losses[0]}"
    moved = [name for name, p in trained.items() if matters(p.grad)]
    assert moved, "no gradients"
    still = [name for name in moved if torch.equal(trained[name], before[name])]
    assert not still, f"do not move: {still[:3]}"


def check_slope(
    loss: Callable[[], Tensor], parameters: dict[str, Tensor], fixed: dict[str, int]
) -> None:
    """The derivative along one direction against difference quotients, in float64.

    The direction is random plus the gradient, both of length one in each parameter. Models may
    have kinks nearby or compute their loss in float32, so one agreeing step size is enough.

    Args:
        loss: what is differentiated.
        parameters: by name, or their stacks.
        fixed: rows that have no gradient by design: those of padding in embeddings.
    """
    torch.manual_seed(1)
    loss().backward()
    generator = torch.Generator().manual_seed(0)
    direction, slope = {}, 0.0
    for name, p in parameters.items():
        v = torch.randn(p.shape, generator=generator, dtype=p.dtype)
        v /= v.norm()
        if p.grad is not None:
            v += p.grad / p.grad.norm().clamp(min=1e-12)
        if name in fixed:
            v[..., fixed[name], :] = 0
        direction[name] = v
        slope += 0.0 if p.grad is None else float((p.grad * v).sum())
    quotients = []
    for size in (1e-3, 1e-4, 1e-5, 1e-6):
        values = []
        for step in (size, -size):
            with torch.no_grad():
                for name, v in direction.items():
                    parameters[name].add_(v, alpha=step)
                torch.manual_seed(1)
                values.append(float(loss().double()))
                for name, v in direction.items():
                    parameters[name].sub_(v, alpha=step)
        quotients.append((values[0] - values[1]) / (2 * size))
        if abs(slope - quotients[-1]) <= 5e-3 * abs(slope):
            return
    raise AssertionError(f"slope {slope:.6g}, quotients {quotients}")


def padding_rows(model: nn.Module) -> dict[str, int]:
    """By the name of an embedding's weight, the row that stands for padding."""
    found = {id(m.weight): m.padding_idx for m in model.modules()
             if isinstance(m, nn.Embedding) and m.padding_idx is not None}  # fmt: skip
    every = model.named_parameters(remove_duplicate=False)
    return {name: found[id(p)] for name, p in every if id(p) in found}


def matters(gradient: Tensor | None) -> bool:
    """Whether there is a gradient above rounding noise."""
    return gradient is not None and float(gradient.abs().max()) > 1e-6


def mixed_share(covered: Any) -> float:
    """Lifted parameters that mix or are routed, of all that are lifted, as ``report`` says."""
    rows = covered.report().rows
    lifted = sum(row.parameters for row in rows if row.treatment in ("mixed", "routed", "copied"))
    return sum(row.parameters for row in rows if row.treatment in ("mixed", "routed")) / max(
        lifted, 1
    )


# --- the checks ----------------------------------------------------------------------------------


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
    share = mixed_share(covered)
    if routing == "directed":
        assert share == 1.0, f"only {share:.0%} of the parameters are routed"
    elif entry.mixes == "most":
        assert share >= 0.5, f"only {share:.0%} of the lifted parameters mix"
    elif entry.mixes == "little":
        assert share < 0.5, f"{share:.0%} of the lifted parameters mix"


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
    for duplicate in (copy.deepcopy, pickled, partial(saved, weights_only=False)):
        try:
            duplicate(model)
        except Exception:  # the base cannot be copied this way: nothing to ask for
            continue
        made.append((str(duplicate), duplicate(covered)))
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
    """One check by name; an expected error must have the message of the entry.

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


def _floats(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()
