"""Kernel calls made of operators' samples, those of gradients included, with operands that lie in memory in different ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foreshape.core.spec import LOD_TENSOR, Lod, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import ForeshapeError, SchemaError, ShapeError
from foreshape.language.operator.fields import Gradient
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import RuleError
from foreshape.language.operator.samples import Sample, SampleTensor
from foreshape.language.ops import Offsets
from foreshape.machine.process.this_run import this_run
from support.harness import answer, build, split


@dataclass(frozen=True)
class Call:
    """A kernel with what it is given, by operand: tensors, offsets, what is known of them, and which results are wanted."""

    cls: type[Operator]
    operator: Operator
    arguments: list[Any]
    offsets: list[Any]
    specs: tuple[Any, ...]
    requested: tuple[bool, ...]

    def run(self, into: Tensor | None = None) -> tuple[Any, ...]:
        """The results, then the offsets that the kernel makes. Random kernels draw the same numbers each time."""
        named: dict[str, Any] = {}
        if self.cls.kernel_requested:
            named["requested"] = self.requested
        if self.cls.kernel_offsets:
            named["offsets"] = self.offsets
        if self.cls.accumulates:
            named["before"] = [None] * len(self.cls.accumulates)
        if into is not None:
            named["into"] = into
        before, this_run.generator = this_run.generator, torch.Generator().manual_seed(5)
        try:
            with torch.inference_mode():
                made: Any = self.cls.kernel(self.operator, *self.arguments, **named)
        finally:
            this_run.generator = before
        out: tuple[Any, ...] = made if isinstance(made, tuple) else (made,)
        assert len(out) == len(self.cls.schema.results) + sum(r.new_offsets for r in self.cls.schema.results)
        return out

    def laid(self, layout: Callable[[Tensor], Tensor], slot: str = "") -> Call:
        """The same call with copies of its tensors that lie as ``layout`` says; where ``slot`` names one operand, that alone."""
        named = zip(self.cls.schema.operands, self.arguments, strict=True)
        return replace(self, arguments=[mapped(a, layout) if slot in ("", o.name) else a for o, a in named])

    def operand(self, slot: str) -> Any:
        return self.arguments[[o.name for o in self.cls.schema.operands].index(slot)]

    def shared(self, at: int) -> Tensor | None:
        """The tensor that the result at a place may take over; None where it is of other dims or type, as it is in this sample."""
        slot = self.cls.schema.results[at].may_share
        given = self.operand(slot) if slot is not None else None
        given = given[0] if isinstance(given, list) and given else given
        return given if isinstance(given, Tensor) else None


def forward(cls: type[Operator], sample: Sample, seed: int = 7) -> Call:
    """The call of an operator's kernel for a sample."""
    case = build(cls, sample.arguments, seed)
    operator, key = case.key()
    arguments: list[Any] = []
    offsets: list[Any] = []
    for operand in cls.schema.operands:
        pairs = [case.value(n) for n in case.op.inputs.get(operand.name) or ()]
        for all_of, values in ((arguments, [p[0] for p in pairs]), (offsets, [p[1] for p in pairs])):
            all_of.append(values if operand.many else values[0] if values else None)
    return Call(cls, operator, arguments, offsets, key, (True,) * len(cls.schema.results))


def backward(call: Call, spoil: bool = False) -> Call | None:
    """The call of the gradient's kernel, with random numbers flowing in; None where there is none for these types or attributes.

    With ``spoil``, what the gradient does not take has been written over before it runs: operands and results alike.
    """
    made = call.cls.grad_class
    torch.default_generator.manual_seed(6)
    results = call.run() if made is not None else ()
    if made is None:
        return None
    expected = answer(call.operator, call.specs).results
    operands = {o.name: at for at, o in enumerate(call.cls.schema.operands)}
    places = {r.name: at for at, r in enumerate(call.cls.schema.results)}
    makers = [r.name for r in call.cls.schema.results if r.new_offsets]
    arguments: list[Any] = []
    offsets: list[Any] = []
    specs: list[Any] = []
    assert isinstance(call.cls.gradient, Gradient)
    for name in call.cls.gradient.inputs:
        if name in operands:
            arguments.append(mapped(call.arguments[operands[name]], Tensor.clone))
            offsets.append(call.offsets[operands[name]])
            specs.append(call.specs[operands[name]])
            continue
        place = places[name.removesuffix("@GRAD")]
        of, value = expected[place], results[place]
        if name in places:
            arguments.append(mapped(value, Tensor.clone))
        elif any(not t.is_floating_point() for t in tensors_of(value)):
            return None
        else:
            arguments.append(mapped(value, torch.randn_like))
        own = results[len(places) + makers.index(name.removesuffix("@GRAD"))] if name.removesuffix("@GRAD") in makers else None
        offsets.append([_offsets_of(call, s, own) for s in of] if isinstance(of, tuple) else _offsets_of(call, of, own))
        specs.append(_described(arguments[-1], of))
    if spoil:
        takes = set(call.cls.gradient.inputs)
        named = [*zip(call.cls.schema.operands, call.arguments, strict=True), *zip(call.cls.schema.results, results, strict=False)]
        for slot, value in named:
            for t in tensors_of(value) if slot.name not in takes and not isinstance(value, Offsets) else ():
                t.untyped_storage().fill_(0xA5)
    requested = tuple(_is_floating(call.arguments[operands[r.name.removesuffix("@GRAD")]]) for r in made.schema.results)
    if not any(requested):
        return None
    values = {n: getattr(call.operator, n) for n in made.schema.attributes}
    operator = made.with_values(values)
    try:
        answer(operator, tuple(specs))
    except RuleError as error:
        if error.error is SchemaError:  # with these attributes there is no gradient
            return None
    return Call(made, operator, arguments, offsets, tuple(specs), requested)


def _offsets_of(call: Call, spec: Any, own: Offsets | None) -> Any:
    """The offsets of a result: an operand's, or those that the kernel made."""
    lod: Lod | None = spec.lod if isinstance(spec, Spec) else None
    if lod is None:
        return None
    if own is not None:
        return own
    for of, offsets in zip(call.specs, call.offsets, strict=True):
        for one, held in zip(of, offsets or (), strict=False) if isinstance(of, tuple) else [(of, offsets)]:
            if isinstance(one, Spec) and one.lod is not None and one.lod.source == lod.source and isinstance(held, Offsets):
                return held if len(held.levels) == len(lod.counts) else held.outer(len(lod.counts))
    return None


def _described(value: Any, spec: Any) -> Any:
    if isinstance(value, list):
        return tuple(_described(v, s) for v, s in zip(value, spec, strict=True))
    if isinstance(value, Tensor):
        return Spec(LOD_TENSOR, dtype_of_torch(value.dtype), tuple(value.shape), spec.lod if isinstance(spec, Spec) else None)
    return spec if value is not None else None


def kept_by_results(call: Call) -> bool:
    """Whether a result carries what only its own gradient reads."""
    return any(hasattr(t, "kept") for v in call.run() for t in tensors_of(v))


def _is_floating(value: Any) -> bool:
    return any(t.is_floating_point() for t in tensors_of(value))


def calls(cls: type[Operator], sample: Sample) -> Iterator[Call]:
    """The calls that a sample makes: the kernel's, and its gradient's where there is one."""
    made = forward(cls, sample)
    yield made
    back = backward(made)
    if back is not None:
        yield back


def sizes_of(cls: type[Operator], sample: Sample) -> list[int]:
    """The sizes above 1 of a sample's dims. Those of a sample are different where they need not be equal, so that a size is one dim."""
    return sorted({d for v in _values(split(cls, sample.arguments)[0]) for d in v.dims if d > 1})


def resized(cls: type[Operator], sample: Sample, size: int, to: int) -> list[Call]:
    """The calls of a sample in which a dim of ``size`` is ``to`` long; none where the operator refuses that."""
    slots, attributes = split(cls, sample.arguments)
    try:
        changed = {name: _resized(value, size, to) for name, value in slots.items()}
        made = list(calls(cls, replace(sample, arguments=changed | attributes)))
        for call in made:
            call.run()
    except (ForeshapeError, RuntimeError, IndexError):
        return []
    return made


def _values(value: Any) -> list[SampleTensor]:
    if isinstance(value, dict):
        value = list(value.values())
    return [v for one in value for v in _values(one)] if isinstance(value, (list, tuple)) else [value] if isinstance(value, SampleTensor) else []


def _resized(value: Any, size: int, to: int) -> Any:
    if isinstance(value, (list, tuple)):
        return [_resized(v, size, to) for v in value]
    if not isinstance(value, SampleTensor) or size not in value.dims:
        return value
    data = None if value.data is None else np.asarray(value.data).reshape(value.dims)
    for axis, d in enumerate(value.dims):
        if d == size and data is not None:
            data = data.take(np.arange(to) % size, axis)
    lengths = value.lengths
    if lengths and value.dims[0] == size:
        if to % size:
            raise ShapeError("sequences cannot be shortened so")
        lengths = (*lengths[:-1], tuple(n * (to // size) for n in lengths[-1]))
    return replace(value, dims=tuple(to if d == size else d for d in value.dims), data=data, lengths=lengths)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value with its tensors changed."""
    if isinstance(value, Tensor):
        return value if hasattr(value, "kept") else change(value)  # a mark that carries what only its own gradient reads
    if isinstance(value, list):
        return [mapped(v, change) for v in value]
    if isinstance(value, TensorArray):
        return TensorArray.of([mapped(t, change) for t in value.tensors], value.offsets)
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """All tensors that hold a value's numbers."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Rows):
        return [value.rows, value._values, *tensors_of(value._which)]  # pyright: ignore[reportPrivateUsage]
    if isinstance(value, TensorArray):
        return [t for t in value.tensors if t is not None]
    if isinstance(value, Offsets):
        return list(value.levels)
    return [t for v in value for t in tensors_of(v)] if isinstance(value, (list, tuple)) else []


# --- how operands lie in memory


def in_a_row(x: Tensor) -> Tensor:
    """Memory of its own, row after row."""
    return x.clone(memory_format=torch.contiguous_format)


def permuted(x: Tensor) -> Tensor:
    """Dense, with its axes in memory the other way round."""
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).clone(memory_format=torch.contiguous_format).permute(order)


EDGE = 3
"""Elements before and after an operand that is a part of a larger one."""


def part(x: Tensor) -> Tensor:
    """A view of some elements in the midst of a larger storage, whose others are 85."""
    count = x.numel()
    out = torch.full((count + 2 * EDGE,), 85).to(x.dtype)[EDGE : EDGE + count].view(x.shape)
    return out.copy_(x)


def columns(x: Tensor) -> Tensor:
    """Some columns of something wider, as the gradient of `concat` gives them."""
    return torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() else x


def entries(x: Tensor) -> Tensor:
    """Entries of something with one dim more, of which each second number is one of them."""
    return torch.stack([x, x], -1)[..., 0]


def turned_columns(x: Tensor) -> Tensor:
    """The last two axes of `columns` swapped."""
    return columns(x.mT).mT if x.dim() > 1 else x


def repeated(x: Tensor, axis: int) -> Tensor:
    """The first entry of an axis again and again, as the gradient of a sum gives it."""
    return x.narrow(axis, 0, 1).expand(x.shape) if -x.dim() <= axis < x.dim() and x.numel() else x


def nothing_around_changed(x: Tensor) -> bool:
    """Whether what stands around a `part` is what stood there."""
    if hasattr(x, "kept"):
        return True
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    around = torch.cat([whole[:EDGE], whole[whole.numel() - EDGE :]])
    return bool((around == torch.full((2 * EDGE,), 85).to(x.dtype)).all())


# --- who holds which memory


def storage(x: Tensor) -> int:
    """Which memory a tensor is in."""
    return x.untyped_storage().data_ptr()


def in_natural_order(x: Tensor) -> bool:
    """Whether a tensor lies in a row with the strides of one that does, also along dims of 1."""
    return x.stride() == torch.empty(x.shape).stride()


def bits(x: Tensor) -> bytes:
    """The numbers of a tensor as they are written, in row-major order."""
    return x.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy().tobytes() if x.numel() else b""


def written(values: Sequence[Any]) -> list[list[bytes]]:
    """The bits of all tensors of some values."""
    return [[bits(t) for t in tensors_of(v)] for v in values]


__all__ = [
    "Call",
    "backward",
    "bits",
    "calls",
    "columns",
    "entries",
    "forward",
    "in_a_row",
    "in_natural_order",
    "kept_by_results",
    "mapped",
    "nothing_around_changed",
    "part",
    "permuted",
    "repeated",
    "resized",
    "sizes_of",
    "storage",
    "tensors_of",
    "turned_columns",
    "written",
]
