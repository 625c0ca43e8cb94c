"""Module trees: copies that share their tensors, and forwards replaced on single modules.

Nothing here depends on how covers run, so both the state and the execution of a covered model use
it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any

from torch import Tensor, nn

TENSOR_TABLES = ("_parameters", "_buffers")  # where a module registers its tensors


class Override:
    """A forward that replaces that of a single module, and can be removed again."""

    def __init__(self, module: nn.Module) -> None:
        self.instance = vars(module).get("forward")  # a forward set on this instance, if any

    def __deepcopy__(self, memo: dict[int, Any]) -> Override:
        made = copy.copy(self)
        made.instance = copy.deepcopy(self.instance, memo)
        return made

    @staticmethod
    def of(module: nn.Module) -> Callable[..., Any]:
        """The forward of a module, or the one that was replaced."""
        override = vars(module).get("forward")
        found = override.instance if isinstance(override, Override) else override
        return MethodType(type(module).forward, module) if found is None else found

    @staticmethod
    def remove(tree: nn.Module) -> None:
        """Restores the original forward of every module in a tree."""
        for module in tree.modules():
            override = vars(module).get("forward")
            if isinstance(override, Override):
                del module.forward
                if override.instance is not None:
                    vars(module)["forward"] = override.instance


def structure(tree: nn.Module, replaced: Mapping[Tensor, Tensor | None] | None = None) -> nn.Module:
    """A copy of a module tree that has its own attributes and shares the tree's tensors.

    Tensors that are keys of ``replaced`` are replaced by its values. Both use the memo of
    ``copy.deepcopy``, whose keys are ids.
    """
    shared = {id(tensor): tensor for tensor in (*tree.parameters(), *tree.buffers())}
    instead = {id(tensor): value for tensor, value in (replaced or {}).items()}
    made = copy.deepcopy(tree, without_graph(tree) | shared | instead)
    Override.remove(made)
    return made


def copied_with(tree: nn.Module, replaced: Mapping[Tensor, Tensor]) -> nn.Module:
    """A deep copy of a module tree with other tensors in place of some; parameters stay such.

    All names of a tied tensor get the same new tensor, because deepcopy finds it in its memo.
    """
    memo = without_graph(tree)
    for tensor, value in replaced.items():
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(value, tensor.requires_grad) if is_parameter else value
    return copy.deepcopy(tree, memo)


def without_graph(tree: nn.Module) -> dict[int, Any]:
    """A memo for ``copy.deepcopy`` with detached copies of the tensors that it refuses.

    Deepcopy copies only leaves of the autograd graph, and a model may keep computed tensors.
    """
    parameters = set(tree.parameters())
    held = [held_tensors(vars(module), kinds=(list, dict, tuple)) for module in tree.modules()]
    kept = [*tree.buffers(), *(tensor for tensors in held for _, tensor in tensors)]
    own = [t for t in kept if t not in parameters]
    return {id(t): t.detach().clone() for t in own if not t.is_leaf}


def held_tensors(
    holder: Any, path: tuple[Any, ...] = (), kinds: tuple[type, ...] = (list, dict)
) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    """Tensors in plain attributes, and in nested lists and dicts (``nn.LSTM`` has such a list).

    Yields the path of keys to each tensor, and the tensor.
    """
    for key, value in holder.items() if isinstance(holder, dict) else enumerate(holder):
        if isinstance(value, Tensor):
            yield (*path, key), value
        elif isinstance(value, kinds) and key not in TENSOR_TABLES and len(path) < 3:
            yield from held_tensors(value, (*path, key), kinds)
