"""Checked running: instruction by instruction, with every value compared with its inferred spec, up to the first that is not finite.

A value is filled with a pattern before it is dropped, so that a late reader computes nonsense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from foreshape.compiler.lowering.kernel_calls import KernelCall, Step, Value, region_of
from foreshape.core.data_class import data_class
from foreshape.core.values.emitted_code import STEP_FILE, with_ops
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import ExecutionError
from foreshape.language.program import Op
from foreshape.machine.process.this_run import this_run
from foreshape.runtime.engine.emit import Emitted, Writer
from foreshape.runtime.engine.freed import Freed
from foreshape.runtime.engine.scope import Scope
from foreshape.runtime.engine.symbols import Symbols


@data_class()
class BlockFrame:
    """A block while it runs: its values, by their names in the step's text, and the number of the instruction."""

    lowered: Step
    values: dict[str, Any]
    at: int = 0


Watch = Callable[[list[BlockFrame]], None]


class Checked:
    """A runner of a step, instruction by instruction, by the text that is compiled otherwise.

    Args:
        symbols: the values of symbols, for the dims of values.
        every: make and look at unread results too.
        look: compare values with their specs, and refuse values that are not finite.
        fill: write a pattern over the memory of dropped values.
        watch: called after every kernel, before anything is dropped, with the running blocks, the outermost first.
    """

    def __init__(self, symbols: Mapping[str, int], *, every: bool = True, look: bool = True, fill: bool = True, watch: Watch | None = None) -> None:
        self.given, self.every, self.look, self.fill, self.watch = symbols, every, look, fill, watch
        self.frames: list[BlockFrame] = []
        self._texts: dict[int, _Text] = {}

    def run(self, emitted: Emitted, tensors: Sequence[Any], scope: Scope) -> list[Any]:
        """Return the results that the compiled step would return.

        Raises:
            ExecutionError: a value of another shape or element type than inferred, or an op made a NaN or an infinity.
        """
        bound = emitted.bind(scope, emitted.lowered.target.device)
        self.symbols = Symbols(self.given, emitted.lowered.block.program)
        previous = this_run.run_block
        this_run.run_block = self._block
        try:
            return self._block(emitted.lowered, [*tensors, *bound.values], bound.names)
        finally:
            this_run.run_block = previous

    def _block(self, lowered: Step, tensors: Sequence[Any], bound: Mapping[str, Any] | None = None) -> list[Any]:
        text = self._texts.get(id(lowered))
        if text is None:
            text = self._texts[id(lowered)] = _Text(lowered, self.every)
        names = {**(bound or {}), **text.constants}
        frame = BlockFrame(lowered, dict(zip(text.parameters, tensors, strict=True)))
        freed = Freed(tensors, text.constants.values()) if self.fill else None
        self.frames.append(frame)
        self.symbols.enter(lowered.block)
        try:
            if self.look:
                for value in lowered.feeds:
                    self._look(value, frame.values, None)
            frame.values.update((rate.number, frame.values[repr(rate)].item()) for rate in lowered.rates)
            for index, i in enumerate(lowered.calls):
                frame.at = index
                self._step(i, text, frame, names, freed)
            return [frame.values.get(repr(v)) for v in lowered.returns()]
        finally:
            self.frames.pop()
            self.symbols.leave()

    def _step(self, i: KernelCall, text: _Text, frame: BlockFrame, names: dict[str, Any], freed: Freed | None) -> None:
        values = frame.values
        operands = operands_before(i, values) if self.look else None
        exec(text.codes[frame.at], names, values)
        written = [v for v in dict.fromkeys([*(copy for copy, _ in i.copies), *i.writes()]) if values.get(repr(v)) is not None]
        if self.look:
            for value in written:
                self._look(value, values, i, lambda name, result: is_meant(i, name, result, operands, lambda v: exec(text.codes[frame.at], names, v)))
        if self.watch is not None:
            self.watch(self.frames)
        if freed is not None:
            for value in written:
                freed.hold(repr(value), values[repr(value)])
            for place, _ in i.stores:
                freed.keep(values[repr(place)])
        dead = {repr(v): values.pop(repr(v)) for v in text.dead[frame.at] if repr(v) in values}
        if freed is not None:
            freed.drop(dead)

    def _look(self, value: Value, values: Mapping[str, Any], i: KernelCall | None, meant: Callable[[str, Any], bool] | None = None) -> None:
        tensor = values[repr(value)]
        if not isinstance(tensor, (torch.Tensor, Rows)):
            return
        spec = value.spec
        plain = tensor.values if isinstance(tensor, Rows) else tensor
        subject = f"{value.name}" + (f" of {i.op}" if i is not None else " (fed)")
        site = i.op.call_site if i is not None else None
        place = f", at {site.short()}" if site is not None else ""
        if spec is not None and spec.dims is not None and not isinstance(tensor, Rows):
            sizes = list(tensor.shape)
            want = self.symbols.required(value.name, spec.dims, sizes, i is None or region_of(i) is not None)
            if len(want) != len(sizes) or any(w is not None and w != s for w, s in zip(want, sizes, strict=True)):
                raise ExecutionError(f"{subject} must be {spec.text()}, which is {want} now; the kernel made {sizes}{place}")
        if spec is not None and spec.dtype is not None and dtype_of_torch(plain.dtype) is not spec.dtype:
            raise ExecutionError(f"{subject} must be {spec.dtype.name}; the kernel made {dtype_of_torch(plain.dtype).name}{place}")
        if value.hollow:  # kept for its dims: its one number is whatever lay there
            return
        if (plain.is_floating_point() or plain.is_complex()) and plain.numel() and not bool(torch.isfinite(plain).all()):
            if (meant is not None and meant(repr(value), plain)) or (i is None and len(self.frames) > 1):  # a block's operands were looked at
                return
            kind = "a NaN" if bool(torch.isnan(plain).any()) else "an infinity"
            operands: dict[str, Any] = {v.name: values.get(repr(v)) for v in i.reads()} if i is not None else {}
            ranges = [f"{n} in [{t.min().item():g}, {t.max().item():g}]" for n, t in operands.items() if _has_range(t)]
            inputs = f"; its inputs: {', '.join(ranges)}" if ranges else ""
            raise ExecutionError(f"{subject} has {kind}{inputs}{place}")


class _Text:
    """The text of a block, ready to be run instruction by instruction."""

    __slots__ = ("codes", "constants", "dead", "parameters")

    def __init__(self, lowered: Step, every: bool) -> None:
        writer = Writer(lowered, every)
        self.parameters = writer.parameters()
        self.codes: list[CodeType] = []
        self.dead = [writer.dead(index) for index in range(len(lowered.calls))]
        for index, i in enumerate(lowered.calls):
            lines = writer.lines(index)
            self.codes.append(with_ops(compile("\n".join(lines), STEP_FILE, "exec"), dict.fromkeys(range(1, len(lines) + 1), i.op)))
        self.constants = writer.constants


def _has_range(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.numel() > 0 and tensor.dtype is not torch.bool


# --- Intended infinities: -inf as a constant of the program, as in masks of attention, and ops that only move it or add to it.


_PUT = (-1.0, -1025.0)
"""The two substitutes of -inf, one after the other, by which a result is seen to follow it."""


def operands_before(i: KernelCall, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return copies of the operands with -inf of an instruction; None without any."""
    if region_of(i) is not None:  # its own instructions are looked at one by one
        return None
    read = {repr(v): values[repr(v)] for v in i.reads() if repr(v) in values} | {repr(s): values[repr(s)] for _, s in i.copies if repr(s) in values}
    if not any(_has_infinity(t) for t in read.values()):
        return None
    return {name: t.clone() if isinstance(t, torch.Tensor) else t for name, t in read.items()}


def is_meant(i: KernelCall, name: str, result: Tensor, operands: Mapping[str, Any] | None, run: Callable[[dict[str, Any]], None]) -> bool:
    """Return True if the infinities of a result are intended -inf.

    Args:
        name: the result's in the step's text.
        operands: the result of `operands_before`.
        run: executes the instruction over values by name, and puts its results there.
    """
    if bool((torch.isnan(result) | (result == math.inf)).any()):
        return False
    if region_of(i) is not None:
        return True
    if operands is None:
        return writes_infinity(i.op)
    infinite = result == -math.inf
    results: list[Tensor] = []
    state = this_run.generator.get_state() if this_run.generator is not None else None
    for number in _PUT:
        values = {n: _filled(t, number) for n, t in operands.items()}
        values["store"] = _keep  # the scope stays as it is
        if state is not None and this_run.generator is not None:
            this_run.generator.set_state(state)
        run(values)
        results.append(values[name])
    difference = (results[0] - results[1])[infinite].double()
    return bool(torch.allclose(difference, torch.full_like(difference, _PUT[0] - _PUT[1]), rtol=0.02))


def writes_infinity(op: Op) -> bool:
    """Return True if an attribute of an op is -inf, or a list with one in it."""
    values: list[Any] = list(op.attrs.values())
    return any(_is_infinity(v) or (isinstance(v, (list, tuple)) and any(map(_is_infinity, v))) for v in values)  # pyright: ignore[reportUnknownArgumentType]


def _keep(name: str, value: Any, owned: bool = True) -> Any:
    return value


def _is_infinity(value: Any) -> bool:
    return (isinstance(value, float) and value == -math.inf) or (isinstance(value, str) and value.strip().lower() in ("-inf", "-infinity"))


def _has_infinity(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and bool((value == -math.inf).any())


def _filled(value: Any, number: float) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.masked_fill(value == -math.inf, number) if value.is_floating_point() else value.clone()
