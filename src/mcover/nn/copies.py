"""The modules that covers run on: one private copy of the module tree for each cover.

A copy consists of structure and attributes; its tensors are set ("bound") before each pass. Three
things make this hard:

- *A model keeps state in attributes.* ``self.count += 1`` in a forward must change one cover only,
  so each cover has its own module tree. Swapping tensors in and out of a single tree, as
  ``torch.func.functional_call`` does, would keep tensors apart, but no other attribute.
- *Users change the covered model between forwards.* ``covered.net.dropout.p = 0`` and hooks on
  ``covered.net`` must take effect in every copy. :meth:`Copies.follow_changes` compares the
  attributes of ``covered.net`` with those of the previous forward, and applies the differences to
  every copy. Nothing is copied back to ``covered.net``: an attribute that a copy has set on itself
  stays until the user sets it. Replaced, added and removed submodules are refused, because routes,
  mixers, optimizers and files belong to the tensors of the lift.
- *Tensors are held in several places.* A tied weight has several names, and ``nn.LSTM`` keeps its
  weights in a list as well. All these places are found once (:func:`_places`) and bound together. A
  place that was missed would hold the tensors of the previous pass: wrong results without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mcover.errors import McoverError
from mcover.nn.modules import TENSOR_TABLES, held_tensors, structure

# The slices of each stack. Tensors are keys by identity: torch hashes a tensor by its id.
StackSlices = Mapping[Tensor, Sequence[Tensor]]
_MISSING = object()
_NOT_FOLLOWED = (*TENSOR_TABLES, "_modules")  # tensors are bound, other modules are refused


class Copies:
    """M private copies of ``net``, a tree whose stacked tensors have the covers first.

    ``prepare`` is called with each copy, to replace the forwards of layers that mix.
    """

    net: nn.Module
    prepare: Callable[[nn.Module], None]
    modules: list[nn.Module]

    def __init__(self, net: nn.Module, covers: int, prepare: Callable[[nn.Module], None]) -> None:
        modules = [structure(net) for _ in range(covers)]
        self.__setstate__({"net": net, "prepare": prepare, "modules": modules})

    def __getstate__(self) -> dict[str, Any]:
        self.follow_changes()
        held = [(*module.parameters(), *module.buffers()) for module in self.modules]
        unbound = dict.fromkeys(tensor for tensors in held for tensor in tensors)
        modules = [structure(module, unbound) for module in self.modules]
        return {"net": self.net, "prepare": self.prepare, "modules": modules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._slots: list[list[tuple[Any, Any]]] | None = None
        self._own = list(self.net.modules())
        self._seen = [_attributes(module) for module in self._own]
        self._children = [_children(module) for module in self._own]

    def bind(self, slices: StackSlices) -> list[nn.Module]:
        """Sets the tensors of a pass in all copies, and returns the copies."""
        self.follow_changes()
        values = [table[key] for _, _, table, key in self._places]
        sliced = [None if value is None else slices.get(value) for value in values]
        for cover, slots in enumerate(self._slots or ()):
            for (holder, key), value, own in zip(slots, values, sliced, strict=True):
                holder[key] = value if own is None else own[cover]
        return self.modules

    def bind_cover(self, cover: int, own: Mapping[Tensor, Tensor | None]) -> nn.Module:
        """Replaces some of the tensors that are bound in one copy, and returns that copy."""
        slots = self._slots or []
        for (_, _, table, name), (holder, key) in zip(self._places, slots[cover], strict=True):
            if table[name] is not None and table[name] in own:
                holder[key] = own[table[name]]
        return self.modules[cover]

    def collect_buffers(self, slices: StackSlices) -> list[str]:
        """Stacks the buffers that the model assigned to in its forward, and returns their names.

        A buffer that was changed in place needs nothing, because its slice is a view of the stack.
        """
        names = []
        for position, (prefix, owner) in enumerate(self.net.named_modules()):
            for key, stack in owner._buffers.items():
                values = [members[position]._buffers.get(key) for members in self._members]
                bound = None if stack is None else slices.get(stack)
                if all(v is (stack if bound is None else bound[i]) for i, v in enumerate(values)):
                    continue
                name = f"{prefix}.{key}".lstrip(".")
                if stack is not None and bound is None:
                    raise shared_buffer_error(name, stack)
                owner._buffers[key] = _stacked(values, name)
                names.append(name)
        return names

    def independent_copy(self, cover: int, values: Mapping[Tensor, Tensor]) -> nn.Module:
        """A copy of a cover's modules with other tensors, which later forwards do not change.

        ``values`` maps each tensor of the covered model to the one that replaces it.
        """
        self.follow_changes()
        made = structure(self.modules[cover])
        members = list(made.modules())
        for position, path, table, name in self._places:
            if table[name] is not None:
                holder, key = _resolved(members[position], path)
                holder[key] = values[table[name]]
        return made

    def replace_copies(self) -> None:
        """Replaces the copies by new ones; those that ran before keep their tensors.

        A backward that runs modules again (activation checkpointing) holds references to the old
        copies and needs the tensors of its own forward in them. If the same copies were bound
        again, it would recompute that forward with the tensors of a later one: wrong gradients
        without an error.
        """
        self.use(copied(self.modules))

    def replace_copy(self, cover: int) -> None:
        """As :meth:`replace_copies`, for a single cover whose tensors stay bound."""
        made = structure(self.modules[cover])
        self.modules[cover], self._members[cover] = made, list(made.modules())
        if self._slots is not None:
            self._slots[cover] = self._slots_of(self._members[cover])
        self.prepare(made)

    def use(self, modules: list[nn.Module]) -> None:
        """Runs later forwards on other copies."""
        self.modules, self._slots = modules, None

    def release_tensors(self) -> None:
        """Drops all references to tensors, so that the tensors of the last pass can be freed."""
        for slots in self._slots or ():
            for holder, key in slots:
                holder[key] = None

    def follow_changes(self) -> None:
        """Applies to all copies what was changed on the modules of ``net`` since the last call."""
        self.check_children()
        if self._slots is None:
            self._resolve()
        for position, (module, seen) in enumerate(zip(self._own, self._seen, strict=True)):
            for key, value in vars(module).items():
                before = seen.get(key, _MISSING)
                if value is before or key in _NOT_FOLLOWED:
                    continue
                hooks = _are_hooks(key, before)
                if hooks and value == before:
                    continue
                for members in self._members:
                    own = vars(members[position])
                    if hooks:
                        own[key].update({k: v for k, v in value.items() if k not in before})
                        for removed in before.keys() - value.keys():
                            own[key].pop(removed, None)
                    else:
                        own[key] = value
                seen[key] = dict(value) if hooks else value

    def check_children(self) -> None:
        """Refuses a tree whose modules are not those of the lift."""
        for module, before in zip(self._own, self._children, strict=True):
            now = _children(module)
            if now != before:
                names = {own: name for name, own in self.net.named_modules()}
                key = next(k for k in now | before if now.get(k) is not before.get(k))
                path = ".".join(filter(None, ("net", names[module], key)))
                raise McoverError(
                    f"the module {path!r} of a covered model was replaced, added or removed after "
                    "the lift. Undo this; then change the base model and lift it again. To keep "
                    "what the covers have learned, change the models of models = [covered.cover(k) "
                    "for k in range(M)], and write mcover.lift(models[0], models, ...)."
                )

    def _resolve(self) -> None:
        """Finds the places of tensors in each copy, and prepares the copies."""
        self._places = list(_places(self.net))
        self._members = [list(module.modules()) for module in self.modules]
        self._slots = [self._slots_of(members) for members in self._members]
        for module in self.modules:
            self.prepare(module)

    def _slots_of(self, members: list[nn.Module]) -> list[tuple[Any, Any]]:
        """The holder and the key of each place in one copy."""
        return [_resolved(members[position], path) for position, path, _, _ in self._places]


def copied(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies of module trees that share their tensors."""
    return [structure(module) for module in modules]


def shared_buffer_error(name: str, buffer: Tensor) -> McoverError:
    """The error for a model that writes to a buffer which all covers share."""
    remedy = f"name it in lift(..., buffers=[{name!r}]), or leave buffers out to keep all"
    if buffer.layout != torch.strided:  # such a buffer cannot be stacked
        remedy = "make it dense, or keep such state in a plain attribute"
    return McoverError(
        f"the model writes to its buffer {name!r}, which all covers share; {remedy}."
    )


def _places(net: nn.Module) -> Iterator[tuple[int, tuple[Any, ...], dict[str, Any], str]]:
    """All places of registered tensors, and other places where a module holds the same tensor.

    A place has four parts: the position of the module in the tree; the path to the tensor in a copy
    of that module, ``vars(module)[path[0]][path[1]]…``; and the table and key in ``net`` from which
    the tensor is read.
    """
    registered: dict[Tensor, tuple[Any, str]] = {}
    for position, module in enumerate(net.modules()):
        for table in TENSOR_TABLES:
            held = vars(module)[table]
            for key, value in held.items():
                if value is not None:
                    registered.setdefault(value, (held, key))
                yield position, (table, key), held, key
    for position, module in enumerate(net.modules()):
        for path, value in held_tensors(vars(module)):
            if value in registered:
                yield position, path, *registered[value]


def _resolved(module: nn.Module, path: tuple[Any, ...]) -> tuple[Any, Any]:
    holder: Any = vars(module)
    for key in path[:-1]:
        holder = holder[key]
    return holder, path[-1]


def _children(module: nn.Module) -> dict[str, Any]:
    return dict(module._modules.items())  # a TorchScript module has only items() of a dict


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {key: dict(v) if _are_hooks(key, v) else v for key, v in vars(module).items()}


def _are_hooks(key: str, value: Any) -> bool:
    return key.endswith("_hooks") and isinstance(value, dict)


def _stacked(values: list[Tensor | None], name: str) -> Tensor | None:
    """Stacks the tensors that the covers assigned to a buffer."""
    shapes = [None if value is None else tuple(value.shape) for value in values]
    if len(set(shapes)) > 1:
        raise McoverError(
            f"covers left the buffer {name!r} with different shapes, {shapes}; keep such state in "
            "a plain attribute, of which each cover has its own."
        )
    given = [value.detach() for value in values if value is not None]
    return torch.stack(given) if given else None
