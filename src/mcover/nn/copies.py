"""The modules that covers run on: one private copy of the module tree for each cover.

A copy is structure and state. Attributes that the model sets on itself stay in its copy, changes to
the covered model's own tree (``covered.net``) are followed, and tensors are put in place for each
forward: the cover's row of a stack, or the tensor that all covers share.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from mcover.errors import McoverError

StackRows = Mapping[int, Sequence[Tensor]]  # the rows of each stack, by the stack's id
_TENSORS = ("_parameters", "_buffers")
_MISSING = object()


class Override:
    """A forward that is put on one module in the place of its own, and can be taken off again."""

    def __init__(self, module: nn.Module) -> None:
        self.instance = vars(module).get("forward")  # one that was set on this module alone

    def __deepcopy__(self, memo: dict[int, Any]) -> Override:
        made = copy.copy(self)
        made.instance = copy.deepcopy(self.instance, memo)
        return made

    @staticmethod
    def of(module: nn.Module) -> Callable[..., Any]:
        """The forward that a module had before."""
        override = vars(module).get("forward")
        found = override.instance if isinstance(override, Override) else override
        return MethodType(type(module).forward, module) if found is None else found

    @staticmethod
    def remove(tree: nn.Module) -> None:
        """Gives all modules of a tree the forward that they had."""
        for module in tree.modules():
            override = vars(module).get("forward")
            if isinstance(override, Override):
                del module.forward
                if override.instance is not None:
                    vars(module)["forward"] = override.instance


class Copies:
    """M private copies of ``net``, a tree whose stacked tensors have the covers first.

    ``prepare`` is called with each copy, to give layers that mix their forward.
    """

    net: nn.Module
    prepare: Callable[[nn.Module], None]
    modules: list[nn.Module]

    def __init__(self, net: nn.Module, covers: int, prepare: Callable[[nn.Module], None]) -> None:
        modules = [structure(net) for _ in range(covers)]
        self.__setstate__({"net": net, "prepare": prepare, "modules": modules})

    def __getstate__(self) -> dict[str, Any]:
        self.follow()
        held = [(*module.parameters(), *module.buffers()) for module in self.modules]
        bare = dict.fromkeys(id(tensor) for tensors in held for tensor in tensors)
        modules = [structure(module, bare) for module in self.modules]
        return {"net": self.net, "prepare": self.prepare, "modules": modules}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._slots: list[list[tuple[Any, Any]]] | None = None
        self._seen = [_attributes(module) for module in self.net.modules()]

    def bind(self, rows: StackRows) -> list[nn.Module]:
        """The copies, with the tensors of a forward in place."""
        self.follow()
        own = [table[key] for _, _, table, key in self._places]
        for index, slots in enumerate(self._slots or ()):
            for (holder, key), value in zip(slots, own, strict=True):
                stacked = rows.get(id(value))
                holder[key] = value if stacked is None else stacked[index]
        return self.modules

    def keep_buffers(self, rows: StackRows) -> list[str]:
        """Brings buffers that the model assigned into their stacks, and returns their names."""
        named = []
        for position, (prefix, owner) in enumerate(self.net.named_modules()):
            for key, stack in owner._buffers.items():
                values = [members[position]._buffers.get(key) for members in self._members]
                bound = rows.get(id(stack))
                if all(v is (stack if bound is None else bound[i]) for i, v in enumerate(values)):
                    continue
                name = f"{prefix}.{key}".lstrip(".")
                if stack is not None and bound is None:
                    raise written_to_shared(name, stack)
                owner._buffers[key] = _restacked(values, name)
                named.append(name)
        return named

    def apart(self, index: int, values: Mapping[int, Tensor]) -> nn.Module:
        """A copy by itself, for good: with these tensors, by the ids of the covered model's own."""
        self.follow()
        made = structure(self.modules[index])
        members = list(made.modules())
        for position, path, table, name in self._places:
            if table[name] is not None:
                holder, key = _resolved(members[position], path)
                holder[key] = values[id(table[name])]
        return made

    def renew(self) -> None:
        """Copies the copies: what ran before keeps its tensors, in case it is run once more."""
        self.replace([structure(module) for module in self.modules])

    def replace(self, modules: list[nn.Module]) -> None:
        """Goes on with other copies."""
        self.modules, self._slots = modules, None

    def release(self) -> None:
        """Lets go of all tensors."""
        for slots in self._slots or ():
            for holder, key in slots:
                holder[key] = None

    def follow(self) -> None:
        """Hands on what was set on the covered model's own modules since the last forward."""
        if self._slots is None:
            self._resolve()
        for position, (module, seen) in enumerate(zip(self._own, self._seen, strict=True)):
            for key, value in vars(module).items():
                before = seen.get(key, _MISSING)
                hooks = _are_hooks(key, before)
                if value is before or key in _TENSORS or (hooks and value == before):
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

    def _resolve(self) -> None:
        """Finds where tensors go in each copy, and gives layers that mix their forward."""
        self._places = list(_places(self.net))
        self._own = list(self.net.modules())
        self._members = [list(module.modules()) for module in self.modules]
        self._slots = [
            [_resolved(members[position], path) for position, path, _, _ in self._places]
            for members in self._members
        ]
        for module in self.modules:
            self.prepare(module)


def structure(tree: nn.Module, replaced: Mapping[int, Tensor | None] | None = None) -> nn.Module:
    """A copy of a module tree with attributes of its own that shares its tensors.

    Those whose ids are in ``replaced`` make room for what it holds.
    """
    shared = {id(tensor): tensor for tensor in (*tree.parameters(), *tree.buffers())}
    made = copy.deepcopy(tree, without_graph(tree) | shared | dict(replaced or {}))
    Override.remove(made)
    return made


def written_to_shared(name: str, buffer: Tensor) -> McoverError:
    remedy = f"name it in lift(..., buffers=[{name!r}]), or leave buffers out to keep all"
    if buffer.layout != torch.strided:  # such a buffer cannot be stacked
        remedy = "make it dense, or keep such state in a plain attribute"
    return McoverError(
        f"the model writes to its buffer {name!r}, which all covers share; {remedy}."
    )


def _places(net: nn.Module) -> Iterator[tuple[int, tuple[Any, ...], dict[str, Any], str]]:
    """All places of registered tensors, and those where a module holds them a second time.

    A place is the module's position in the tree, where a copy of it holds the tensor,
    ``vars(module)[path[0]][path[1]]…``, and the table and key that the tensor comes from.
    """
    registered: dict[int, tuple[Any, str]] = {}
    for position, module in enumerate(net.modules()):
        for table in _TENSORS:
            held = vars(module)[table]
            for key, value in held.items():
                registered.setdefault(id(value), (held, key))
                yield position, (table, key), held, key
    registered.pop(id(None), None)
    for position, module in enumerate(net.modules()):
        for path, value in _held(vars(module)):
            if id(value) in registered:
                yield position, path, *registered[id(value)]


def _held(
    holder: Any, path: tuple[Any, ...] = (), kinds: tuple[type, ...] = (list, dict)
) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Tensors in plain attributes, and in lists and dicts of them (``nn.LSTM`` has such a list)."""
    for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if isinstance(value, Tensor):
            yield (*path, key), value
        elif isinstance(value, kinds) and key not in _TENSORS and len(path) < 3:
            yield from _held(value, (*path, key), kinds)


def _resolved(module: nn.Module, path: tuple[Any, ...]) -> tuple[Any, Any]:
    holder: Any = vars(module)
    for key in path[:-1]:
        holder = holder[key]
    return holder, path[-1]


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {key: dict(v) if _are_hooks(key, v) else v for key, v in vars(module).items()}


def _are_hooks(key: str, value: Any) -> bool:
    return key.endswith("_hooks") and isinstance(value, dict)


def without_graph(tree: nn.Module) -> dict[int, Any]:
    """For the memo of a deepcopy: tensors that it would refuse, without their graph."""
    parameters = {id(p) for p in tree.parameters()}
    held = [_held(vars(module), kinds=(list, dict, tuple)) for module in tree.modules()]
    kept = [*tree.buffers(), *(tensor for tensors in held for _, tensor in tensors)]
    own = [t for t in kept if id(t) not in parameters]
    return {id(t): t.detach().clone() for t in own if not t.is_leaf}


def _restacked(values: list[Tensor | None], name: str) -> Tensor | None:
    """What the covers assigned to a buffer, as a stack."""
    shapes = [None if value is None else tuple(value.shape) for value in values]
    if len(set(shapes)) > 1:
        raise McoverError(
            f"covers left the buffer {name!r} with different shapes, {shapes}; keep such state in "
            "a plain attribute, which each cover has for itself."
        )
    given = [value.detach() for value in values if value is not None]
    return torch.stack(given) if given else None
