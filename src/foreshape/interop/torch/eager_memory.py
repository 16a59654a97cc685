"""The memory of eager torch for a call or a training step of a network, predicted without a run.

The traced graph, still with its changes in place, is gone through on torch's tensors without numbers. torch's own autograd keeps its values, and its
backward runs; every storage is counted from its operator on until nobody holds it. `eager_workspaces` adds the bytes taken by kernels on the way.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.core.dims import Size, evaluate
from foreshape.errors import MemoryPlanError
from foreshape.interop.torch.eager_locals import local_ends
from foreshape.interop.torch.eager_workspaces import kept_in_result, workspace
from foreshape.interop.torch.node_sites import Frame, frames_of, site_of
from foreshape.interop.torch.untyped_torch import is_list, pytree, torch
from foreshape.language.program.call_site import call_site
from foreshape.optimizer import SGD, Adagrad, Adamax, Momentum, Optimizer, RMSProp

_MODE: Final[Any] = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
_FAKE: Final[Any] = importlib.import_module("torch._subclasses").FakeTensorMode
_SKIPPED: Final = ("_assert", "assert_", "sym_constrain", "_guards")
"""Operators of the graph without a result: questions about sizes and values."""


class EagerMemory(NamedTuple):
    """The memory of a call or a training step in bytes.

    Attributes:
        parameters, buffers, state, inputs: there all the time; the state is the optimizer's.
        step: the most beside these: values, kept values, gradients, workspaces.
        gradients: of all parameters together, a part of ``step``; 0 of a call.
        line: ATen's operator at the peak, and the user's line; of the backward pass the line of the operator whose gradient it is.
    """

    parameters: int
    buffers: int
    state: int
    inputs: int
    step: int
    gradients: int
    line: str

    @property
    def peak(self) -> int:
        """Return the most bytes at once."""
        return self.parameters + self.buffers + self.state + self.inputs + self.step


class _HeldTensor(NamedTuple):
    """A parameter, buffer or constant of a graph, without its numbers; equal ``storage`` is one memory."""

    name: str
    storage: tuple[int, int]
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    trained: bool
    parameter: bool


class EagerGraph:
    """A traced graph of a network, ready to be gone through at any sizes. It holds none of the network's numbers.

    Args:
        traced: an ``ExportedProgram`` as torch.export gives it.
        feeds: the dims of its inputs.
        inside: the beginning of names left out, of a network within another module.
        ends_in_loss: its last result is the loss.
    """

    def __init__(self, traced: Any, feeds: Sequence[Sequence[Size]], inside: str = "", ends_in_loss: bool = False) -> None:
        self._ends_in_loss = ends_in_loss
        self._module = traced.graph_module
        self.feeds = [tuple(dims) for dims in feeds]
        self._inputs: dict[Any, Any] = {}
        self._held: dict[Any, _HeldTensor] = {}
        specs = {spec.arg.name: spec for spec in traced.graph_signature.input_specs}
        for node in self._module.graph.nodes:
            if node.op != "placeholder":
                continue
            spec = specs[node.name]
            if spec.kind.name == "USER_INPUT":
                self._inputs[node] = node.meta.get("val")
            elif spec.kind.name != "TOKEN":
                tensor = traced.state_dict[spec.target] if spec.target in traced.state_dict else traced.constants[spec.target]
                if isinstance(tensor, torch.Tensor):
                    self._held[node] = _described(spec.target.removeprefix(inside), tensor, spec.kind.name == "PARAMETER")
        self._last = _last_uses(self._module.graph)

    def at(self, sizes: Mapping[str, int], optimizer: Optimizer | None = None, state: int = 0, frozen: Collection[str] = ()) -> EagerMemory:
        """Return the memory at these sizes: of a call without gradients, or of a training step.

        Args:
            sizes: by name, of all symbols of `feeds`.
            optimizer: None for a call.
            state: the bytes of the optimizer's state.
            frozen: parameters not trained, as others with ``requires_grad=False``.

        Raises:
            MemoryPlanError: a size is missing; torch cannot tell the shapes without numbers, or refuses the sizes.
        """
        mode = _FAKE(allow_non_fake_inputs=True)
        meter = _Meter()
        with torch.set_grad_enabled(optimizer is not None), mode:
            values = self._values(sizes, frozen)
            for value in values.values():
                meter.count(value)
            there = meter.alive
            trained = [values[node] for node, one in self._held.items() if one.trained and one.name not in frozen]
            parts = [storage_bytes(values[n] for n, one in self._held.items() if one.parameter is kind) for kind in (True, False)]
            inputs = there - sum(parts)
            meter.most = there
            try:
                with meter:
                    results = self._run(values, meter)
                    if optimizer is not None:
                        _train(results[-1:] if self._ends_in_loss else results, meter, results)
            except MemoryPlanError:
                raise
            except Exception as error:  # torch's own, of many classes
                raise MemoryPlanError(f"the memory of eager torch cannot be told: {type(error).__name__}: {str(error).strip()[:300]}") from error
            del results
        given = [p.grad for p in trained if p.grad is not None]
        gradients = storage_bytes(given)
        if optimizer is not None and given:
            largest = max(g.untyped_storage().nbytes() for g in given)
            meter.reached(meter.alive + _copies(optimizer) * largest, "the updates")
        if isinstance(optimizer, RMSProp):  # torch's has a velocity and a mean only where they are asked for
            state = gradients * (1 + bool(optimizer.momentum) + bool(optimizer.centered))
        return EagerMemory(parts[0], parts[1], state, inputs, meter.most - there, gradients, meter.line)

    def _values(self, sizes: Mapping[str, int], frozen: Collection[str]) -> dict[Any, Any]:
        """Return the values of the graph's inputs, without numbers."""
        values: dict[Any, Any] = {}
        storages: dict[tuple[int, int], Any] = {}
        given = iter(self.feeds)
        for node, traced in self._inputs.items():
            if isinstance(traced, torch.Tensor):
                dims = next(given)
                shape = [evaluate(d, sizes) if not isinstance(d, int) else d for d in dims]
                values[node] = torch.empty(shape, dtype=traced.dtype)
            else:
                values[node] = traced
        for node, one in self._held.items():
            storage = storages.get(one.storage)
            if storage is None:
                storage = storages[one.storage] = torch.empty(one.storage[1], dtype=torch.uint8)
            whole = storage[: one.storage[1] // one.dtype.itemsize * one.dtype.itemsize].view(one.dtype)
            made = whole.as_strided(one.shape, one.stride, one.offset).detach()
            values[node] = made.requires_grad_() if one.trained and one.name not in frozen else made
        return values

    def _run(self, values: dict[Any, Any], meter: _Meter) -> list[Any]:
        """Go through the graph; each value is dropped where eager code drops it at the latest."""
        for node in self._module.graph.nodes:
            if node.op == "get_attr":
                found = self._module
                for part in str(node.target).split("."):
                    found = getattr(found, part)
                values[node] = found
            elif node.op == "call_function" and not any(word in str(node.target) for word in _SKIPPED):
                meter.node = node
                values[node] = _called(node, values)
                meter.tell_backward(values[node])
            elif node.op == "output":
                return [values[one] for one in pytree().tree_leaves(node.args[0]) if one in values]
            for one in self._last.get(node, ()):
                values.pop(one, None)
        return []


def _called(node: Any, values: Mapping[Any, Any]) -> Any:
    """Return the result of a node; recurrent layers and dropouts, kept whole in the trace, are torch's again."""
    arguments, named = _given(node.args, values), {k: _given(v, values) for k, v in node.kwargs.items()}
    schema = getattr(node.target, "_schema", None)
    space, _, name = schema.name.partition("::") if schema is not None else ("", "", "")
    if space != "foreshape":
        return node.target(*arguments, **named)
    if name == "ctc":
        raise MemoryPlanError("the memory of eager torch cannot be told: torch has no shapes without numbers for ctc_loss")
    if name.startswith("jagged"):
        raise MemoryPlanError("the memory of eager torch cannot be told: its jagged tensors have no shapes without numbers")
    x, states, *rest = arguments
    if not is_list(states):  # a dropout
        return getattr(torch, name)(*arguments)
    return list(getattr(torch, name)(x, tuple(states) if name == "lstm" else states[0], *rest))


def _given(value: Any, values: Mapping[Any, Any]) -> Any:
    if is_list(value):
        found = [_given(one, values) for one in value]
        return tuple(found) if isinstance(value, tuple) else found
    if value.__class__ is slice:
        return slice(_given(value.start, values), _given(value.stop, values), _given(value.step, values))
    return values[value] if value.__class__.__name__ == "Node" else value


def _train(results: list[Any], meter: _Meter, held: list[Any]) -> None:
    """Run the backward pass of a loss: the first result, if it is one number; otherwise the sum of the results' means. ``held`` is dropped before."""
    meter.node = None
    wanted = [one for one in results if isinstance(one, torch.Tensor) and one.requires_grad]
    if not wanted:
        raise MemoryPlanError("no result depends on a parameter")
    loss: Any = wanted[0]
    if loss.numel() != 1 or loss is not results[0]:
        loss = sum([one.mean() for one in wanted])
    results.clear()
    held.clear()
    del wanted
    loss.backward()


class _Meter(_MODE):  # pyright: ignore[reportUntypedBaseClass]
    """Counts the bytes of storages while operators run."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.alive = self.most = 0
        self.line = ""
        self.node: Any = None
        """The node of the graph being computed, or whose gradient is."""
        self._known: dict[int, Any] = {}
        self._told: set[Any] = set()

    def count(self, value: Any) -> None:
        """Count the storage of a tensor until it is dropped."""
        if not isinstance(value, torch.Tensor):
            return
        storage = value.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()

        def drop(_: Any) -> None:
            del self._known[key]
            self.alive -= size

        self._known[key] = weakref.ref(storage, drop)
        self.alive += size

    def reached(self, size: int, line: str) -> None:
        """Take down so many bytes, held at once."""
        if size > self.most:
            self.most, self.line = size, line

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        result = kept_in_result(name, args, result)
        for value in result if is_list(result) else (result,):
            self.count(value)
        size = self.alive + workspace(name, args, result)
        if size > self.most:
            self.most, self.line = size, self._where(name)
        return result

    def tell_backward(self, result: Any) -> None:
        """Let the gradients of a result tell their node while they are computed."""
        node = self.node

        def at(_: Any) -> None:
            self.node = node

        waiting = [value.grad_fn for value in (result if is_list(result) else (result,)) if isinstance(value, torch.Tensor)]
        while waiting:
            function = waiting.pop()
            if function is not None and function not in self._told and hasattr(function, "register_prehook"):
                self._told.add(function)
                function.register_prehook(at)
                waiting += [before for before, _ in function.next_functions]

    def _where(self, name: str) -> str:
        site = call_site(site_of(self.node)) if self.node is not None else None
        return f"{name} {site.short()}" if site is not None else name


def _described(name: str, tensor: Any, parameter: bool) -> _HeldTensor:
    storage = tensor.untyped_storage()
    key = (storage.data_ptr() or id(storage), storage.nbytes())
    trained = parameter and bool(tensor.requires_grad)
    return _HeldTensor(name, key, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, trained, parameter)


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors; a shared storage counts once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def _last_uses(graph: Any) -> dict[Any, list[Any]]:
    """Return node -> the values dropped by eager code behind it.

    The arguments of a module live until its call ends, a local variable until its function ends or the name has another value, and a value of one statement
    until the end of the other statement with its last use.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    order = {node: at for at, node in enumerate(nodes)}
    frames = [frames_of(node) for node in nodes]
    modules = [tuple(node.meta.get("nn_module_stack") or ()) for node in nodes]
    ends: dict[tuple[str, ...], int] = {}
    for at, keys in enumerate(modules):
        for depth in range(len(keys)):
            ends[keys[: depth + 1]] = at
    out: dict[Any, list[Any]] = {}
    uses = [max((order[user] for user in node.users if user in order), default=at) for at, node in enumerate(nodes)]
    named = local_ends(frames, modules, uses)
    for at, node in enumerate(nodes):
        last = uses[at]
        end = max(last, named[at])
        for user in node.users:
            if user in order:
                keys = modules[order[user]]
                entered = [keys[: depth + 1] for depth in range(len(keys)) if keys[: depth + 1] != modules[at][: depth + 1]]
                end = max([end, *(ends[one] for one in entered)])
        if any(user.op == "output" for user in node.users):
            continue
        statement = _statement(frames[at], frames[last])
        level = _same(modules[at], modules[last])
        while statement and last + 1 < len(nodes) and frames[last + 1][: len(statement)] == statement:
            if len(modules[last]) > level and modules[last + 1][level : level + 1] != modules[last][level : level + 1]:
                break
            last += 1
        out.setdefault(nodes[max(end, last)], []).append(node)
    return out


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> int:
    """Return how many entries two tuples begin with alike."""
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _statement(made: tuple[Frame, ...], used: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Return the frames down to the statement with a use of a value of another statement of the same function; none where it is the same one."""
    at = _same(made, used)
    return used[: at + 1] if at < min(len(made), len(used)) else ()


def _copies(optimizer: Optimizer) -> int:
    """Return how many values as large as the largest parameter torch's optimizer of this kind makes on the way."""
    decayed = 1 if optimizer.weight_decay else 0
    if isinstance(optimizer, (SGD, Momentum)):
        return max(decayed, 1 if isinstance(optimizer, Momentum) and optimizer.use_nesterov else 0)
    return decayed + (1 if isinstance(optimizer, (Adagrad, RMSProp, Adamax)) else 2)
