"""What operators say of themselves holds for the numbers of their samples: see `foreshape.language.operator.traits`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from support.harness import build, of_each_operator, operators, sampled

import foreshape as fs
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, tensor
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.language.operator.traits import ShardingRule, is_update
from foreshape.language.program import Program

CASES = list(sampled())
SAYS = {
    "axes": [
        c for c in CASES if c[1].per_element or c[1].works_along or c[1].sharding_rule is not Operator.sharding_rule or c[1].computes is not Operator.computes
    ],
    "linear": [c for c in CASES if c[1].linear],
}
Given = dict[str, Any]
"""Slot -> a tensor, a list of them, or None."""


def given_of(cls: type[Operator], sample: Sample, double: bool = False) -> tuple[Operator, Any, Given]:
    """An operator, the specs of its operands, and these."""
    case = build(cls, sample.arguments)
    operator, key = case.key()
    given: Given = {}
    for field in cls.schema.operands:
        values = [case.value(n)[0] for n in case.op.inputs.get(field.name) or ()]
        values = [v.double() if double and isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in values]
        given[field.name] = values if field.many else values[0] if values else None
    return operator, key, given


def results_of(operator: Operator, given: Given) -> Given:
    """What the kernel makes of copies of operands."""
    cls = type(operator)
    if cls.expand is not Operator.expand:
        return results_of_step(operator, given)
    copies = {n: [t.clone() for t in v] if isinstance(v, list) else v.clone() if isinstance(v, torch.Tensor) else v for n, v in given.items()}
    named: dict[str, Any] = {"requested": (True,) * len(cls.schema.results)} if cls.kernel_requested else {}
    if cls.kernel_offsets:
        named["offsets"] = [[None] * len(v) if isinstance(v, list) else None for v in copies.values()]
    with torch.inference_mode():
        made = operator.kernel(*copies.values(), **named)
    found = made if isinstance(made, tuple) else (made,)
    out = dict(zip([r.name for r in cls.schema.results], found, strict=False))
    return {r.name: copies[r.updates] if r.updates and out[r.name] is None else out[r.name] for r in cls.schema.results}


def results_of_step(operator: Operator, given: Given) -> Given:
    """What a step makes of operands: for operators that are made of others."""
    block, feed, inputs = Program().global_block, {}, {}
    for slot, value in given.items():
        numbers = {f"{slot}.{k}": t.numpy() for k, t in enumerate(value if isinstance(value, list) else [value]) if t is not None}
        feed |= numbers
        inputs[slot] = [block.create_variable(n, tensor(fs.core.spec.dtype(a.dtype), *a.shape), need_check_feed=True) for n, a in numbers.items()]
    attrs = {n: getattr(operator, n) for n in operator.schema.attributes}
    op = block.append_op(operator.type, {slot: of for slot, of in inputs.items() if of}, None, attrs)
    names = {slot: of[0] for slot, of in op.outputs.items() if of}
    made = dict(zip(names, map(torch.from_numpy, fs.Executor().run(block.program, feed, list(names.values()), fs.Scope())), strict=True))
    return {r.name: made.get(r.name) for r in operator.schema.results}


def cut(value: Any, names: tuple[str, ...], name: str, at: int) -> Any:
    """Entry ``at`` of the axis of a name, which stays as an axis of 1."""
    if isinstance(value, list):
        return [cut(one, names, name, at) for one in value]
    return value if name not in names or value is None else value.narrow(names.index(name), at, 1)


def listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple)) else [value]


def hold_to_rule(operator: Operator, given: Given, rule: ShardingRule) -> int:
    """Cut operands along each axis that has a name, and compare what parts give with what all give. Says how many axes were cut."""
    whole, count = results_of(operator, given), 0
    for slot, names in rule.operands.items():
        for one in given[slot] if isinstance(given[slot], list) else [given[slot]]:
            assert one.dim() == len(names), f"{slot} has {one.dim()} axes, and the rule {len(names)}"
    for slot, names in rule.results.items():
        assert all(one is None or one.dim() == len(names) for one in listed(whole[slot])), slot
    for name in sorted({n for names in rule.operands.values() for n in names} - {""}):
        have = [s for s, names in rule.operands.items() if name in names]
        tensors = [t for s in have for t in (given[s] if isinstance(given[s], list) else [given[s]])]
        sizes = {t.shape[rule.operands[s].index(name)] for s in have for t in (given[s] if isinstance(given[s], list) else [given[s]])}
        assert len(sizes) == 1, f"{name} is of several sizes: {sizes}"
        size = sizes.pop()
        if not all(t.numel() for t in tensors):
            continue
        parts = [results_of(operator, {s: cut(v, rule.operands.get(s, ()), name, at) for s, v in given.items()}) for at in range(size)]
        made = [s for s, names in rule.results.items() if name in names]
        assert bool(made) != (name in rule.summed), f"{name} is either in a result or summed over"
        for slot, all_of in whole.items():
            if all_of is None or (slot not in made and name not in rule.summed):
                continue
            for entry, one in enumerate(listed(all_of)):
                found = [listed(p[slot])[entry] for p in parts]
                joined = torch.cat(found, rule.results[slot].index(name)) if slot in made else sum(found)
                torch.testing.assert_close(joined, one, equal_nan=True, rtol=1e-5, atol=1e-6)
                count += 1
    return count


def is_drawn(operator: Operator) -> bool:
    return type(operator).random and not getattr(operator, "is_test", False)


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(SAYS["axes"], quick=3)
def test_parts_of_operands_give_parts_of_results(name: str, cls: type[Operator], sample: Sample) -> None:
    operator, key, given = given_of(cls, sample)
    is_array = operator.accumulates or any(s is not None and not isinstance(s, tuple) and s.kind is LOD_TENSOR_ARRAY for s in key)
    rule = None if is_drawn(operator) or is_array else operator.sharding_rule(*key)
    if rule is not None:
        hold_to_rule(operator, given, rule)


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(c for c in CASES if c[1].per_element and c[1].grad_class is not None)
def test_parts_of_gradients_of_each_element_follow_too(name: str, cls: type[Operator], sample: Sample) -> None:
    operator, key, given = given_of(cls, sample)
    if is_drawn(operator) or not sample.differentiate or any(s is not None and s.kind is not LOD_TENSOR for s in key):
        return
    made, slots = results_of(operator, given), cls.grad_class.schema.operand_names
    rng = np.random.RandomState(2)
    flowing = {f"{n}@GRAD": torch.from_numpy(rng.uniform(-1, 1, t.shape)).to(t.dtype) for n, t in made.items() if t is not None}
    taken = {**given, **made, **flowing}
    if slots <= taken.keys() and all(t.is_floating_point() for t in made.values() if t is not None):
        undone = cls.grad_class.with_values({n: getattr(operator, n) for n in cls.schema.attributes})
        of_gradient: Given = {o.name: taken[o.name] for o in cls.grad_class.schema.operands}
        rule = undone.sharding_rule(*(None if t is None else tensor(dtype_of_torch(t.dtype), *t.shape) for t in of_gradient.values()))
        if rule is not None:
            hold_to_rule(undone, of_gradient, rule)


def test_most_axes_of_samples_are_cut() -> None:
    """That the rules are held to anything: an operator of each element has a rule for each axis of each sample."""
    counts: dict[str, int] = {}
    for _, cls, sample in SAYS["axes"]:
        if cls.type in ("relu", "elementwise_add", "sum", "matmul_v2", "matmul", "transpose2", "softmax", "squared_l2_norm", "dropout", "cast"):
            operator, key, given = given_of(cls, sample)
            rule = None if is_drawn(operator) else operator.sharding_rule(*key)
            counts[cls.type] = counts.get(cls.type, 0) + (0 if rule is None else hold_to_rule(operator, given, rule))
    assert all(counts.values()) and len(counts) == 10, counts


def test_what_is_not_so_is_found() -> None:
    softmax = next(c for c in operators() if c.type == "softmax")
    operator, _, given = given_of(softmax, softmax.samples[0])
    names = ("0", "1", "2")
    with pytest.raises(AssertionError):
        hold_to_rule(operator, given, ShardingRule({"X": names}, {"Out": names}))
    with pytest.raises(AssertionError):
        hold_to_rule(operator, given, ShardingRule({"X": names}, {"Out": ("0", "2", "1")}))
    relu = next(c for c in operators() if c.type == "relu")
    with pytest.raises(AssertionError, match="not close"):
        hold_to_linear(*given_of(relu, relu.samples[0], double=True)[::2], ("X",))


def floats_of(value: Any) -> list[torch.Tensor]:
    tensors = value if isinstance(value, list) else [value]
    return [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]


def hold_to_linear(operator: Operator, given: Given, slots: tuple[str, ...]) -> None:
    """Compare what sums of operands give with the sums of what they give; of zeros, nothing but what scale adds."""
    if not all(floats_of(given[s]) or given[s] is None for s in slots) or not any(floats_of(given[s]) for s in slots):
        return
    rng = np.random.RandomState(1)

    def drawn(value: Any) -> Any:
        return [drawn(t) for t in value] if isinstance(value, list) else None if value is None else torch.from_numpy(rng.uniform(-2, 2, value.shape))

    def added(a: Any, b: Any) -> Any:
        return [added(*pair) for pair in zip(a, b, strict=True)] if isinstance(a, list) else None if a is None else a + b

    def with_(values: Mapping[str, Any]) -> list[torch.Tensor]:
        return [t for v in results_of(operator, {**given, **values}).values() for t in floats_of(v) if t.numel()]

    first, second = ({s: drawn(given[s]) for s in slots} for _ in range(2))
    zeros = {s: added(v, [-t for t in v] if isinstance(v, list) else None if v is None else -v) for s, v in first.items()}
    offset = with_(zeros)
    if not getattr(operator, "bias", 0.0):
        assert all(not t.any() for t in offset), "of zeros it gives something else"
    for a, b, both, nothing in zip(with_(first), with_(second), with_({s: added(first[s], second[s]) for s in slots}), offset, strict=True):
        torch.testing.assert_close(a + b - nothing, both, rtol=1e-4, atol=1e-5, check_dtype=False)


@of_each_operator(SAYS["linear"])
def test_sums_of_operands_give_sums_of_results(name: str, cls: type[Operator], sample: Sample) -> None:
    operator, _, given = given_of(cls, sample, double=True)
    to = getattr(operator, "out_dtype", -1)
    if cls.type != "cast" or to in (5, 6):
        hold_to_linear(operator, given, cls.linear)


UPDATES = [c for c in CASES if c[1].elementwise_state is not None]


@of_each_operator(UPDATES)
def test_parts_of_parameters_are_updated_as_the_whole(name: str, cls: type[Operator], sample: Sample) -> None:
    assert is_update(cls)
    operator, key, given = given_of(cls, sample)
    if any(s is not None and s.kind is SELECTED_ROWS for s in key) or given.get("MasterParam") is not None or not given["Param"].dim():
        return
    slots = {"Param", "Grad", *(cls.elementwise_state or ())}
    assert all(given[s] is None or given[s].shape == given["Param"].shape for s in slots), "its state is of the shape of the parameter"
    whole, ends = results_of(operator, given), [0, 1, given["Param"].shape[0]]
    parts = [results_of(operator, {s: v[a:b] if s in slots and v is not None else v for s, v in given.items()}) for a, b in pairwise(ends) if b > a]
    for field in cls.schema.results:
        if field.updates in slots and whole[field.name] is not None:
            torch.testing.assert_close(torch.cat([p[field.name] for p in parts]), whole[field.name], msg=field.name)


def test_what_takes_sparse_rows_as_they_come_merges_none(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[Rows] = []
    merge = Rows.merged
    monkeypatch.setattr(Rows, "merged", lambda rows: merged.append(rows) or merge(rows))

    def taken(cls: type[Operator], sample: Sample, slot: str) -> bool:
        """Whether the rows of three ids, two of which are one, come into a kernel, and are left as they are."""
        operator, _, given = given_of(cls, sample)
        one = given[slot][0] if isinstance(given[slot], list) else given[slot]
        rows = Rows(torch.tensor([1, 0, 1]), torch.ones(3, *one.shape[1:]), one.shape[0])
        results_of(operator, {**given, slot: [rows] if isinstance(given[slot], list) else rows})
        return not merged

    said = [c for c in operators() if not c.merges_rows]
    assert {c.type for c in said} == {"sgd", "sum", "scale"}
    for cls in said:
        slot = next(o.name for o in cls.schema.operands if SELECTED_ROWS in o.kinds)
        assert taken(cls, cls.samples[0], slot), cls.type
    norm = next(c for c in operators() if c.type == "squared_l2_norm")
    assert not taken(norm, norm.samples[0], "X"), "one that merges them is found"
