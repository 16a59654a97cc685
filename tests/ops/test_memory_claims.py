"""What operators declare of memory is true: views, results in place, results with memory of their own, bytes taken meanwhile.

A plan of memory believes these claims, and memory is given away by it: a wrong one is a wrong number somewhere else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.harness import of_each_operator, with_kernels
from support.kernel_calls import (
    Call,
    backward,
    bits,
    calls,
    forward,
    in_a_row,
    in_natural_order,
    kept_by_results,
    nothing_around_changed,
    part,
    permuted,
    resized,
    sizes_of,
    storage,
    tensors_of,
    written,
)
from support.kernel_memory import has_bound, measured

from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.language.operator.fields import Result
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import all_operators
from foreshape.language.operator.samples import Sample
from foreshape.language.ops import Offsets

CASES = list(with_kernels())
PATTERN = 0xA5
MANY = 137


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(CASES, quick=10)
def test_results_are_where_they_are_said_to_be(name: str, cls: type[Operator], sample: Sample) -> None:
    for call in calls(cls, sample):
        plain = prove(call.laid(in_a_row))
        for layout in (permuted, part):
            other = call.laid(layout)
            for seen, want in zip(prove(other, layout is part), plain if sample.exact else (), strict=sample.exact):
                same_numbers(seen, want, f"{call.cls.type}: {layout.__name__} operands give other numbers")


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(CASES, quick=10)
def test_what_is_said_to_lie_in_a_row_does_so_wherever_one_operand_lies(name: str, cls: type[Operator], sample: Sample) -> None:
    for call in calls(cls, sample):
        rows = [at for at, r in enumerate(call.cls.schema.results) if r.layout == "row"]
        for slot in call.cls.schema.operands if rows else ():
            made = call.laid(permuted, slot.name).run()
            assert all(t.is_contiguous() for at in rows for t in tensors_of(made[at])), f"{call.cls.type}: {slot.name} lies otherwise"


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(CASES, quick=10)
def test_results_are_written_into_the_memory_that_they_may_take(name: str, cls: type[Operator], sample: Sample) -> None:
    for call in calls(cls, sample):
        for layout in (in_a_row, permuted, part):
            for at, field in enumerate(call.cls.schema.results):
                if field.may_share is not None:
                    prove_into(call, at, layout)
    for size in sizes_of(cls, sample) if cls.kernel_into or (cls.grad_class is not None and cls.grad_class.kernel_into) else ():
        for call in resized(cls, sample, size, size * MANY):  # where kernels work in blocks
            for at, field in enumerate(call.cls.schema.results):
                if field.may_share is not None:
                    prove_into(call, at, in_a_row)


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(CASES, quick=10)
def test_results_are_where_they_are_said_to_be_where_a_dim_is_one(name: str, cls: type[Operator], sample: Sample) -> None:
    for size in sizes_of(cls, sample):
        for call in resized(cls, sample, size, 1):
            for layout in (in_a_row, permuted):
                prove(call.laid(layout))


WITH_GRADIENTS = [c for c in CASES if c[1].grad_class is not None]


@of_each_operator(WITH_GRADIENTS, quick=10)
def test_a_gradient_reads_nothing_that_it_does_not_take(name: str, cls: type[Operator], sample: Sample) -> None:
    call = forward(cls, sample)
    if kept_by_results(call):
        usual, spoiled = backward(call), backward(call.laid(in_a_row), True)
        assert usual is not None and spoiled is not None
        assert written(usual.run()) == written(spoiled.run())


ONLY_THE_RUN_TELLS = ("array_to_lod_tensor-2,", "repeat_interleave-3,", "repeat_interleave-4,")
"""Samples, made larger, of whose memory no description tells: how many rows the parts have that are sequences themselves, how often
entries are repeated."""


@pytest.mark.long
@pytest.mark.parametrize("first", [True, pytest.param(False, marks=pytest.mark.longest)], ids=["first samples", "all samples"])
def test_kernels_take_no_more_than_their_operators_say(first: bool) -> None:
    """Of the operators that have a rule; ``PYTHONPATH=tests python -m support.kernel_memory`` tells of all.

    Where a result carries more than it shows, and its gradient uses that up, a kernel alone cannot be measured again and again:
    ``tests/memory/test_recurrent_memory.py`` measures whole steps.
    """
    bounded = [t for t, c in all_operators().items() if has_bound(c) and (c.forward_class or c).retained_bytes is Operator.retained_bytes]
    found = [m for m in measured(bounded, first) if m.over > 0 and not m.name.startswith(ONLY_THE_RUN_TELLS)] if bounded else []
    over = [f"{m.call.cls.type} takes {m.most} bytes and says {m.bound}: {m.name}" for m in found]
    assert not over, "\n".join(over[:40])


def prove(call: Call, parts: bool = False) -> tuple[Any, ...]:
    """The results of a call, copied, after all that is declared of their memory was found true."""
    schema, what = call.cls.schema, call.cls.type
    updated = {r.updates for r in schema.results if r.updates is not None}
    tensors = [(o.name, tensors_of(v)) for o, v in zip(schema.operands, call.arguments, strict=True) if not isinstance(v, Offsets)]
    before = written([t for _, t in tensors])
    made = call.run()
    for (slot, _), old, new in zip(tensors, before, written([t for _, t in tensors]), strict=True):
        assert old == new or slot in updated, f"{what} changes {slot}"
    if parts:
        assert all(nothing_around_changed(t) for _, of in tensors for t in of), f"{what} writes beside an operand"
    owners = {storage(t): slot for slot, of in tensors for t in of if t.numel()}
    seen: dict[int, str] = {}
    held = set(updated)
    for at, (field, value) in enumerate(zip(schema.results, made, strict=False)):
        if any(isinstance(v, (TensorArray, Rows)) for v in (value if isinstance(value, list) else [value])):  # a plan: they hold all they are made of
            held |= set(owners.values())
            continue
        for k, t in enumerate(tensors_of(value)):
            if t.numel():
                name = f"{what} {field.name}" + (f"[{k}]" if field.many else "")
                source = source_of(call, field, k)
                owner = owners.get(storage(t))
                if field.updates is not None:
                    assert source is not None and t.data_ptr() == source.data_ptr() and t.stride() == source.stride(), f"{name} is not {field.updates} itself"
                elif owner is not None and owner == field.view_of:
                    prove_view(call, field, source, t, name)
                    held.add(owner)
                else:
                    assert owner is None, f"{name} is in the memory of {owner}"
                    assert storage(t) not in seen, f"{name} is in the memory of {seen[storage(t)]}"
                    seen[storage(t)] = name
                    prove_own(call, at, source, t, name)
    copied = tuple([t.clone() for t in tensors_of(v)] for v in made)
    kept = {storage(t) for slot, of in tensors for t in of if slot in held}
    for t in (t for _, of in tensors for t in of):
        if storage(t) not in kept:
            fill(t)
    assert written(made) == written(copied), f"{what}: its results change with operands that it does not say to hold"
    return copied


def prove_view(call: Call, field: Result, source: Any, t: torch.Tensor, name: str) -> None:
    """A view is one that a plan takes for a view, and lies as it is said to."""
    assert source is None or is_view(call, field, source, t) is not False, f"{name} is a view of {field.view_of} and said to have memory of its own"
    row = field.layout == "strided" or source is None or not source.is_contiguous() or t.is_contiguous()
    assert row, f"{name} does not lie in a row, as {field.view_of} does"


def prove_own(call: Call, at: int, source: Any, t: torch.Tensor, name: str) -> None:
    """Memory of a result's own is as large as the result, and in it the result lies as it is said to."""
    field = call.cls.schema.results[at]
    size, holds = t.numel() * t.element_size(), t.untyped_storage().nbytes()
    if field.layout == "strided" and call.cls.forward_class is not None and (source.numel() != t.numel() or t.numel() == 1):
        # numbers scaled, then shown in many places
        assert t.dtype is not source.dtype or holds == source.numel() * t.element_size(), f"{name} holds {holds} bytes and not those of {field.view_of}"
        return
    assert field.view_of is None or source is None or is_view(call, field, source, t) is not True, f"{name} is said to be a view of {field.view_of} and is not"
    assert holds == size, f"{name} has {size} bytes and holds {holds}"
    apart = any(not in_natural_order(s) for v in call.arguments for s in tensors_of(v))
    assert t.is_contiguous() or (apart and field.layout != "row"), f"{name} does not lie in a row: {tuple(t.shape)}, {t.stride()}"
    x = call.shared(at)
    if x is not None and x.shape == t.shape and x.dtype is t.dtype and is_dense(x):
        assert t.is_contiguous() or is_dense(t), f"{name} is not dense"


def is_dense(t: torch.Tensor) -> bool:
    """Whether a tensor's elements are all there is between its first and its last."""
    return sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) == t.numel() - 1


def source_of(call: Call, field: Result, at: int) -> torch.Tensor | None:
    """The operand's tensor that a result is said to live in."""
    slot = field.updates or field.view_of
    given = call.operand(slot) if slot is not None else None
    if isinstance(given, (list, TensorArray)):
        of = tensors_of(given)
        return of[at] if isinstance(given, list) and at < len(of) else None
    return given if isinstance(given, torch.Tensor) else None


def is_view(call: Call, field: Result, source: torch.Tensor, t: torch.Tensor) -> bool | None:
    """Whether a plan takes a result for a view: yes, no, or as it comes (then it reckons with both)."""
    if source.dtype is not t.dtype:
        return False
    if field.layout == "strided":
        return True
    if call.cls.forward_class is not None and source.numel() != t.numel():
        return False
    if field.layout == "same" or source.is_contiguous() or source.shape == t.shape:
        return True
    return None


def prove_into(call: Call, at: int, layout: Any) -> None:
    """A result written into an operand's memory is there, is the same to the bit, and nothing else was touched."""
    field, what = call.cls.schema.results[at], f"{call.cls.type} into {call.cls.schema.results[at].may_share}"
    given = call.laid(layout)
    usual = given.run()
    own = usual[at]
    one = call.laid(layout)
    into = one.shared(at)
    if into is None or not isinstance(own, torch.Tensor) or into.shape != own.shape or into.dtype is not own.dtype:
        return
    wanted = written(usual)
    before = written(one.arguments)
    made = one.run(into=into)
    assert made[at].data_ptr() == into.data_ptr(), f"{what}: {field.name} is elsewhere"
    assert made[at].shape == own.shape, what
    if own.is_complex():  # torch divides some of the elements by another formula, by where they lie
        same_numbers(made[at], own, f"{what}: other numbers")
    else:
        assert written(made) == wanted, f"{what}: other numbers"
    for slot, old, new in zip(call.cls.schema.operands, before, written(one.arguments), strict=True):
        first = 1 if slot.name == field.may_share else 0
        assert old[first:] == new[first:], f"{what} changes {slot.name}"
    if layout is part:
        assert all(nothing_around_changed(t) for v in one.arguments if not isinstance(v, Offsets) for t in tensors_of(v)), what


def fill(t: torch.Tensor) -> None:
    """Write a pattern over all of a tensor's memory."""
    if t.numel():
        torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).fill_(PATTERN)


def same_numbers(a: Any, b: Any, message: str) -> None:
    for x, y in zip(tensors_of(a), tensors_of(b), strict=True):
        assert x.shape == y.shape and x.dtype is y.dtype, message
        if x.is_floating_point() or x.is_complex():
            of = torch.complex128 if x.is_complex() else torch.float64
            np.testing.assert_allclose(x.to(of).numpy(), y.to(of).numpy(), rtol=2e-5, atol=2e-6, err_msg=message)
        else:
            assert bits(x) == bits(y), message
