"""The names of a fetch, and the form of its values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

from foreshape.compiler.lowering.kernel_calls import Step, Value, region_of
from foreshape.compiler.lowering.memory_uses import place_of, views_made
from foreshape.core.spec import LOD_TENSOR, STEP_SCOPES
from foreshape.core.values.conversion import to_numpy
from foreshape.core.values.late_checks import LateCheck, first_failure, late_checks, numbers_of
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.offsets import Offsets, as_list
from foreshape.core.values.rows import Rows
from foreshape.core.values.selected_rows import SelectedRows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.call_site import line_of
from foreshape.machine.process.this_run import require_room
from foreshape.runtime.engine.emit import Emitted
from foreshape.runtime.engine.scope import Scope

_OWN_USERS = 2
"""The users of memory that one tensor alone is in: the tensor, and the object that asks for their number."""
_MOST_PINNED = 1 << 24
"""The most bytes of a tensor that is copied by pinned memory."""


def names_of(program: Program, fetch: Any) -> tuple[str, ...]:
    """Return the names in ``fetch``; without any the program's own fetch ops'."""
    if isinstance(fetch, (str, Variable)):
        fetch = (fetch,)
    names: list[str] = []
    for target in fetch:
        if isinstance(target, Variable):
            if target.block.program is not program:
                raise SchemaError(f"{target.name} is a variable of another program")
            names.append(target.name)
        else:
            names.append(program.global_block.var(target).name)
    if not names:
        fetches = sorted((op for op in program.global_block.ops if op.is_fetch), key=_column)
        names = [name for op in fetches for name in op.input_names()]
    return tuple(names)


def _column(op: Op) -> int:
    """Return the place of a fetch op's result; other values of a file are refused when the op is inferred."""
    column = op.attributes.values.get("col", 0)
    return column if isinstance(column, int) else 0


def fetchers(step: Step) -> list[Callable[[Any], Any]]:
    """Return the functions that hand out the fetched values of a step: copied where they share memory with others; contiguous if of a frozen step."""
    first: dict[Value, int] = {}
    return [_fetcher(v, first.setdefault(v, index) != index or _is_shared(v), step.frozen) for index, v in enumerate(step.fetches)]


def _fetcher(source: Value, shared: bool, frozen: bool) -> Callable[[Any], Any]:
    if source.variable is not None and source.variable.kind is STEP_SCOPES:
        raise ExecutionError(f"{source.name} cannot be fetched: it stands for what the rounds of a block keep for their gradient")

    def convert(value: Any) -> Any:
        if isinstance(value, Rows):
            return SelectedRows(to_numpy(value.rows).copy(), to_numpy(value.values).copy(), value.height)
        if isinstance(value, TensorArray):
            return [None if t is None else _element(to_numpy(t).copy(), o) for t, o in zip(value.tensors, value.offsets, strict=True)]
        if isinstance(value, Offsets):
            return [(int(index), value.host_lengths[int(index)]) for index in value.on_host.order]
        if value is None:  # an array that nothing was written to
            return []
        if shared or frozen:  # an expanded tensor is as large as its numbers only now
            require_room(source.name, value.numel() * value.element_size(), "a copy of what is fetched")
        array = to_numpy(value.contiguous() if frozen else value)
        return array.copy() if shared else array

    def tensor(value: Tensor) -> Any:
        if not value.is_contiguous():
            return convert(value)
        if not shared:
            return to_numpy(value)
        require_room(source.name, value.nbytes, "a copy of what is fetched")
        return to_numpy(value).copy()

    return convert if source.variable is None or source.variable.kind is not LOD_TENSOR else to_numpy if not shared and not frozen else tensor


class BlockResults:
    """The fetched results of blocks, which may be fed values, constants or values of the scope that came into the block, or views of these.

    Args:
        emitted: a step.
    """

    def __init__(self, emitted: Emitted) -> None:
        step = emitted.lowered
        views = {view: source for i in step.calls for view, source in views_made(i)}
        own = {v for i in step.calls if region_of(i) is None and not i.effects.outlives for v in i.writes()}
        self.places = [index for index, v in enumerate(step.fetches) if place_of(v, views) not in own and not _is_shared(v)]
        """Their places among the fetches."""
        self._constants = [*emitted.constants.values(), *_constants_within(step)] if self.places else []
        self._stored = [place.name for i in step.calls for place, _ in i.stores] if self.places else []
        self._known: tuple[Any, frozenset[int]] = (None, frozenset())

    def copied(self, fetched: Sequence[Any], fed: Sequence[Any], bound: Sequence[Any], scope: Scope) -> list[Any]:
        """Return fetched values, those of blocks copied that share memory with anything else.

        Args:
            fed: the tensors of the run.
            bound: the values that the step is bound to over the ``scope``, one tuple for all runs.
        """
        known = self._known
        if known[0] is not bound:
            self._known = known = (bound, frozenset(_identities((*bound, *self._constants))))
        values_of_run = {*map(id, fed), *(id(scope.tensor(n)) for n in self._stored if n in scope)}
        repeated = len({*map(id, fetched)}) < len(fetched)
        out = [*fetched]
        for place in self.places:
            value = out[place]
            if not isinstance(value, Tensor) or not value.is_cpu:  # what is on a device is copied from there
                continue
            if id(value) in known[1] or id(value) in values_of_run or (repeated and sum(value is t for t in out) > 1) or _has_other_users(value):
                require_room("a result of a block", value.nbytes, "a copy of what is fetched")
                out[place] = value.clone()
        return out


def _has_other_users(value: Tensor) -> bool:
    """Return True if another tensor is in the memory of this one, or may be."""
    storage: Any = value.untyped_storage()
    return private.storage_users(storage._cdata) > _OWN_USERS


def _constants_within(step: Step) -> Iterator[Any]:
    """Yield the constants of a step's blocks, and of the blocks in them."""
    for region in filter(None, map(region_of, step.calls)):
        yield from region.function.__globals__.values()
        yield from _constants_within(region.lowered)


def _identities(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _identities(cast("Sequence[Any]", value))
        elif isinstance(value, Tensor):
            yield id(value)


class HostCopies:
    """Copies of a device's tensors in the memory of the host, for all of which it waits once."""

    def __init__(self) -> None:
        self._copies: list[tuple[Tensor, Tensor]] = []
        self._device: Any = None
        self._event: Any = None

    def mark(self) -> None:
        """Let `wait` wait for what has been copied until now, and for nothing launched since."""
        if self._copies:
            self._event = torch.cuda.current_stream(self._device).record_event()

    def copy(self, tensor: Tensor) -> Tensor:
        """Return the memory that a tensor is copied into, which has its numbers after `wait`; a tensor of the host itself."""
        for source, there in late_checks.copies:
            if source is tensor:
                return there
        if tensor.is_cpu or tensor.device.type != "cuda" or tensor.nbytes > _MOST_PINNED:
            return tensor.cpu()
        self._device = tensor.device
        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        out = torch.empty_like(pinned, pin_memory=False)
        self._copies.append((out, pinned.copy_(tensor, non_blocking=True)))
        return out

    def value(self, value: Any) -> Any:
        """Return the same for a fetched value of any kind."""
        if isinstance(value, Rows):
            return Rows(self.copy(value.rows), self.copy(value.values), value.height)
        if isinstance(value, TensorArray):
            return TensorArray.of([None if t is None else self.copy(t) for t in value.tensors], value.offsets)
        return self.copy(value) if isinstance(value, Tensor) else value

    def numbers(self, checks: Sequence[LateCheck]) -> Tensor | None:
        """Return the same for all numbers of checks; None without any."""
        return self.copy(numbers_of(checks)) if checks else None

    def wait(self) -> None:
        """Wait until all copies are there. Pinned memory is little, so that nobody keeps it."""
        if self._copies:
            (self._event or torch.cuda.current_stream(self._device)).synchronize()
        for out, pinned in self._copies:
            out.copy_(pinned)


def with_checks(values: Sequence[Any], checks: list[LateCheck]) -> list[Any]:
    """Return values of a device in the memory of the host, after one wait; raise the first error of the checks that were waiting for that."""
    copies = HostCopies()
    out = [copies.value(v) for v in values]
    numbers = copies.numbers(checks)
    copies.wait()
    error = error_of(checks, numbers)
    checks.clear()
    if error is not None:
        raise error
    return out


def error_of(checks: Sequence[LateCheck], numbers: Tensor | None) -> ExecutionError | None:
    """Return the first error of checks with the user's line, from their numbers on the host; None if all are right."""
    failure = None if numbers is None else first_failure(checks, as_list(numbers))
    if failure is None:
        return None
    error, op = failure
    return error if op is None else error.reworded(f"{error}{line_of(op.site, op.type)}").told(op=op.type, site=op.call_site)


def number_on_host(tensor: Tensor, *beside: Tensor) -> Any:
    """Return a tensor's number, within a step; of a device with the checks until then, and no fetch reads it again. Those ``beside`` it are read with it."""
    if tensor.is_cpu:
        return tensor.item()
    there = with_checks([tensor, *beside], late_checks.pending or [])
    late_checks.copies += zip((tensor, *beside), there, strict=True)
    return there[0].item()


def _element(data: Any, offsets: Offsets | None) -> Any:
    return data if offsets is None else LoDTensor.of_offsets(data, offsets)


def _is_shared(value: Value) -> bool:
    """Return True if a fetched tensor may share memory with the scope, a feed or another fetch."""
    if value.persistable or value.feed or value.variable is None or value.variable.op is None:
        return True
    operator = value.variable.op.operator
    return operator is None or bool(operator.effects.views or operator.effects.in_place)
