"""Random cases of every operator, valid and not: ``python tests/fuzz/operators.py --seconds 60 [--seed 1] [--case N] [TYPE ...]``.

A case is a sample of an operator with other dims (none, one, several), element types, attributes and operands that lie in memory in other ways.
Either it is refused in words, or its results have the dims and types that its rule says, operands are left as they were, and the numbers are
those of the reference in ``references/``; gradients are compared with autograd's, or with the slope along a random direction. Some run by way
of an executor, with arrays that are read-only or strided. Stops at the first fault, and says how to see that one again.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import foreshape.language.wire  # noqa: F401  the codec
from foreshape.core.dims import evaluate, symbols_of
from foreshape.core.spec import INT32, INT64, LOD_TENSOR
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import ForeshapeError
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.language.ops import Offsets
from foreshape.runtime.engine import Executor, Scope

sys.path.insert(0, str(Path(__file__).parents[1]))
from operator_cases import SMALL, changed, flat, laid, too_large
from references import REFERENCES, given
from support.harness import answer, build, operators
from support.kernel_calls import Call, backward, bits, forward, mapped, tensors_of

VALUES = re.compile(r"out of (the )?(bounds|range|DATA bounds)|invalid multinomial|not implemented for|no larger than|probability|overflow|INDICES element|"
                    r"must not have negative|between 0 and 1|ZeroDivisionError|expected to have the same dtype|should be in the range|"
                      "Expected p_in")  # fmt: skip
"""What torch says of numbers that no rule can see, and of element types that it has no kernel for."""
NO_SLOPE = {
    **dict.fromkeys(("unpool", "unpool3d"), "which of two numbers for one place is taken is left open"),
    **dict.fromkeys(("scatter", "index_put"), "which of two updates of one row is the last is left open"),
    **dict.fromkeys(("cholesky", "eigh", "eigvalsh"), "one triangle is read, and the gradient is that of a symmetric change"),
    "p_norm": "epsilon is in the gradient alone",
    "warpctc": "norm_by_times is in the gradient alone",
    "warprnnt": "fastemit_lambda is in the gradient alone",
    "soft_relu": "PaddlePaddle's gradient is 0 where the result is beyond the threshold, and not where X is",
    "teacher_student_sigmoid_loss": "the bounds are in the gradient alone",
}
"""Operators whose gradient is not the slope of their results, and why."""
EXTREMES = {"graph_send_recv": "reduce_op"}
"""Operators of which each of equal extremes has the whole gradient, as in PaddlePaddle, and the attribute that asks for them: edges may be there twice."""
MOST_SUMMED = 1e6
"""A sum of results that is larger has roundings that hide a slope."""
OPERATORS = [c for c in operators() if c.samples and not c.type.endswith("_grad") and c.expand is Operator.expand]


class Fault(Exception):
    """What an operator did that it should not."""


@dataclass
class Counts:
    """What was done."""

    kinds: Counter[str] = field(default_factory=Counter[str])
    types: set[str] = field(default_factory=set[str])

    def __str__(self) -> str:
        told = ", ".join(f"{n:,} {what}" for what, n in sorted(self.kinds.items(), key=lambda k: -k[1]))
        return f"{self.kinds['cases']:,} cases of {len(self.types)} operators: {told}"


# --- what is asked of a case


def one_case(cls: type[Operator], rng: random.Random, counts: Counts) -> str:
    """Make a case and try it. Returns what it was; raises `Fault`."""
    sample = rng.choice(list(cls.samples))
    arguments = changed(cls, sample, rng)
    words = f"{cls.type} {arguments}"
    counts.kinds["cases"] += 1
    counts.types.add(cls.type)
    if too_large(arguments):
        return words
    seed = rng.randrange(1 << 16)
    try:
        call = forward(cls, replace(sample, arguments=arguments), seed)
    except ForeshapeError:
        counts.kinds["refused in words"] += 1
        return words
    except OverflowError:  # given numbers that another element type does not hold
        return words
    except (ValueError, AssertionError) as error:  # numbers and sequences that do not fit the dims: no such value can be fed
        if "reshape" in str(error) or "lengths" in str(error) or "sequences" in str(error):
            return words
        raise Fault(f"{words}: {type(error).__name__}: {error}") from error
    expected = answer(call.operator, call.specs).results
    if any(s is not None and s.dims is not None and math.prod(d for d in s.dims if isinstance(d, int) and d) > SMALL for s in flat(expected)):
        return words
    plain = rng.random() < 0.7
    call = laid(call, rng, with_expanded=not plain)
    before = [bits(t) for v in call.arguments for t in tensors_of(v)]
    copies = replace(call, arguments=[mapped(a, Tensor.clone) for a in call.arguments])
    made = run(call, words, counts)
    if made is None:
        return words
    compare_rule(call, expected, made, words)
    updated = {r.updates for r in cls.schema.results}
    kept = [o.name not in updated for o, v in zip(cls.schema.operands, call.arguments, strict=True) for _ in tensors_of(v)]
    after = [bits(t) for v in call.arguments for t in tensors_of(v)]
    if any(stays and a != b for stays, a, b in zip(kept, before, after, strict=True)):
        raise Fault(f"{words}: an operand was changed")
    if sample.exact and not call.operator.draws():
        compare_numbers(copies, made, words, counts)
        if plain and sample.differentiate:
            compare_gradient(copies, words, counts)
        if plain and rng.random() < 0.2 and not any(updated):
            by_executor(cls, replace(sample, arguments=arguments), seed, made, rng, words, counts)
    return words


def run(call: Call, words: str, counts: Counts) -> tuple[Any, ...] | None:
    """The results; None where the operator refuses in words."""
    try:
        torch.default_generator.manual_seed(3)
        return call.run()
    except ForeshapeError:
        counts.kinds["refused when run"] += 1
        return None
    except Exception as error:
        by_torch = isinstance(error, RuntimeError)  # what is no error of torch's is a fault of a kernel
        if VALUES.search(str(error)) or answer(call.operator, call.specs).unknown or (by_torch and _has_unknown_sizes(call)):
            counts.kinds["values refused by torch"] += 1
            return None
        raise Fault(f"{words}: {call.cls.type}: {type(error).__name__}: {error}") from error


def _has_unknown_sizes(call: Call) -> bool:
    """Whether small whole numbers are among the operands that the rule did not know, such as the sizes of a result."""
    return any(s is not None and s.value is None and s.dtype in (INT32, INT64) and isinstance(s.elements, int) and s.elements < 8 for s in flat(call.specs))


def compare_rule(call: Call, expected: Any, made: tuple[Any, ...], words: str) -> None:
    """Dims and element types are the rule's."""
    for result, specs, values in zip(call.cls.schema.results, expected, made, strict=False):
        pairs = zip(specs, values, strict=True) if isinstance(specs, tuple) and isinstance(values, (list, tuple)) else [(specs, values)]
        for spec, value in pairs:
            if spec is None or spec.dims is None or not isinstance(value, (Tensor, Rows)) or (spec.kind is not LOD_TENSOR and isinstance(value, Tensor)):
                continue
            shape = (value.height, *value.values.shape[1:]) if isinstance(value, Rows) else tuple(value.shape)
            same = len(shape) == len(spec.dims) and all(symbols_of(d) or evaluate(d, {}) == n for d, n in zip(spec.dims, shape, strict=True))
            if not same or (isinstance(value, Tensor) and dtype_of_torch(value.dtype) is not spec.dtype):
                raise Fault(f"{words}: {result.name} was inferred as {spec}, and the kernel gives {shape}")


def near(seen: Any, wanted: Any, of: torch.dtype, words: str) -> None:
    """Numbers are equal as far as their type goes."""
    loose = {torch.float64: 1e-8, torch.float32: 2e-4, torch.float16: 3e-2, torch.bfloat16: 2e-1, torch.complex64: 2e-4, torch.complex128: 1e-8}.get(of, 0.0)
    seen, wanted = (torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach() for t in (seen, wanted))
    a, b = seen.to(torch.float64).numpy(), wanted.to(torch.float64).numpy()
    if a.shape != b.shape:
        raise Fault(f"{words}: dims {a.shape} instead of {b.shape}")
    told = np.isfinite(b)  # where the reference divides by zero there are other ways to write it
    if not np.allclose(a[told], b[told], rtol=loose, atol=loose * max(1.0, float(np.abs(b[told]).max(initial=0.0)))):
        raise Fault(f"{words}:\n    {a.reshape(-1)[:8]}\n    instead of\n    {b.reshape(-1)[:8]}")


def doubled(call: Call, grad: bool = False) -> Call:
    """The call with floating operands in double precision, as leaves of a graph where ``grad``."""

    def one(t: Tensor) -> Tensor:
        return t.detach().to(torch.float64).clone().requires_grad_(grad) if t.is_floating_point() else t

    return replace(call, arguments=[mapped(a, one) for a in call.arguments])


def compare_numbers(call: Call, made: tuple[Any, ...], words: str, counts: Counts) -> None:
    """The numbers are the reference's, computed in double precision."""
    function = REFERENCES.get(call.cls.type)
    precision = {t.dtype for v in call.arguments for t in tensors_of(v) if t.is_floating_point()}
    if function is None or torch.float16 in precision or torch.bfloat16 in precision:
        counts.kinds["without a reference"] += function is None
        return
    wanted = function(call.operator, given(call.cls, doubled(call).arguments))
    if wanted is None:
        return
    by_slot = {r.name: v for r, v in zip(call.cls.schema.results, made, strict=False)}
    for slot, values in wanted.items():
        pairs = zip(by_slot[slot], values, strict=True) if isinstance(values, (list, tuple)) else [(by_slot[slot], values)]
        for seen, want in pairs:
            if isinstance(seen, Tensor):
                near(seen, want, seen.dtype, f"{words}: {slot}")
    counts.kinds["compared with a reference"] += 1


def compare_gradient(call: Call, words: str, counts: Counts) -> None:
    """The gradient's operator gives what autograd gives of the reference, or the slope along a random direction."""
    floating = [t for v in call.arguments for t in tensors_of(v) if t.is_floating_point()]
    if call.cls.grad_class is None or not floating or any(t.dtype is not torch.float64 for t in floating) or any(not t.numel() for t in floating):
        return
    torch.default_generator.manual_seed(13)
    call = replace(call, arguments=[mapped(a, _beside) for a in call.arguments])
    try:
        back = backward(replace(call, arguments=[mapped(a, Tensor.clone) for a in call.arguments]))
        grads = back.run() if back is not None else ()
    except ForeshapeError:
        counts.kinds["refused when run"] += 1
        return
    except Exception as error:
        if VALUES.search(str(error)):
            return
        raise Fault(f"{words}: {call.cls.type}_grad: {type(error).__name__}: {error}") from error
    if back is None or any(isinstance(a, (TensorArray, Offsets)) for a in call.arguments):
        return
    flowing = {o.name.removesuffix("@GRAD"): a for o, a in zip(back.cls.schema.operands, back.arguments, strict=True) if o.name.endswith("@GRAD")}
    made = {r.name.removesuffix("@GRAD"): g for r, g in zip(back.cls.schema.results, grads, strict=False)}
    if not _by_autograd(call, flowing, made, words, counts):
        _by_slope(call, flowing, made, words, counts)


def _beside(t: Tensor) -> Tensor:
    """A little beside: numbers that are spread evenly meet the kinks at round ones, where either slope is right."""
    return t + 1e-4 * torch.rand_like(t) if t.is_floating_point() else t


def _by_autograd(call: Call, flowing: dict[str, Any], made: dict[str, Any], words: str, counts: Counts) -> bool:
    function = REFERENCES.get(call.cls.type)
    if function is None:
        return False
    leaves = doubled(call, grad=True)
    wanted = function(call.operator, given(call.cls, leaves.arguments))
    if wanted is None or not flowing.keys() <= wanted.keys():
        return False
    total: Any = 0
    for slot, d in flowing.items():
        for one, out in zip(d if isinstance(d, list) else [d], wanted[slot] if isinstance(d, list) else [wanted[slot]], strict=True):
            if one is not None:
                total = total + (out * one).sum()
    if not isinstance(total, Tensor) or not total.requires_grad:
        return False
    total.backward()
    for operand, argument in zip(call.cls.schema.operands, leaves.arguments, strict=True):
        seen = made.get(operand.name)
        for got, leaf in zip(seen if isinstance(seen, (list, tuple)) else [seen], argument if isinstance(argument, list) else [argument], strict=False):
            if got is None or not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                continue
            got = got.to_dense() if isinstance(got, Rows) else got
            near(got, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, torch.float64, f"{words}: the gradient of {operand.name}")
    counts.kinds["gradients compared with autograd"] += 1
    return True


def _by_slope(call: Call, flowing: dict[str, Any], made: dict[str, Any], words: str, counts: Counts) -> None:
    """The change of the results along a direction, twice: a kink shows at one step and not at the other."""
    operands = [o.name for o in call.cls.schema.operands]
    given_back = {n for n in made if made[n] is not None}
    torch.default_generator.manual_seed(11)
    along = {n: [torch.randn_like(t) for t in tensors_of(a)] for n, a in zip(operands, call.arguments, strict=True)
             if n in given_back and tensors_of(a) and all(t.is_floating_point() for t in tensors_of(a))}  # fmt: skip
    short = any(t.dtype is not torch.float64 for d in flowing.values() for t in tensors_of(d))  # results of fewer digits move in steps
    if not along or short or call.cls.type in NO_SLOPE or any(isinstance(a, Rows) for a in call.arguments):
        return
    if getattr(call.operator, EXTREMES.get(call.cls.type, ""), "") in ("MIN", "MAX"):
        return
    seen = sum(float((_dense(g) * u).sum()) for n, us in along.items() for g, u in zip(_listed(made[n]), us, strict=False) if g is not None)
    slopes = [_slope(call, flowing, along, step) for step in (1e-5, 3e-6)]
    if any(s is None for s in slopes):
        return
    size = max(1.0, abs(seen), *(abs(s) for s in slopes if s is not None))
    if all(abs(s - seen) > 3e-4 * size for s in slopes if s is not None) and abs(slopes[0] - slopes[1]) < 1e-4 * size:  # type: ignore[operator]
        raise Fault(f"{words}: the gradient says {seen} along a direction, and the results change by {slopes}")
    counts.kinds["gradients compared with slopes"] += 1


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _dense(value: Any) -> Tensor:
    return value.to_dense() if isinstance(value, Rows) else value


def _slope(call: Call, flowing: dict[str, Any], along: dict[str, list[Tensor]], step: float) -> float | None:
    ends: list[float] = []
    for sign in (step, -step):
        moved: list[Any] = []
        for operand, value in zip(call.cls.schema.operands, call.arguments, strict=True):
            directions = iter(along.get(operand.name, ()))
            moved.append(mapped(value, lambda t, u=directions, by=sign: t + by * next(u)) if operand.name in along else mapped(value, Tensor.clone))
        torch.default_generator.manual_seed(3)
        try:
            made = replace(call, arguments=moved).run()
        except ForeshapeError:
            return None
        total = 0.0
        for result, value in zip(call.cls.schema.results, made, strict=False):
            for d, out in zip(_listed(flowing.get(result.name)), _listed(value), strict=False):
                if isinstance(d, Tensor) and isinstance(out, Tensor):
                    if d.shape != out.shape:
                        return None
                    total += float((d * out).sum())
        if abs(total) > MOST_SUMMED:
            return None
        ends.append(total)
    return (ends[0] - ends[1]) / (2 * step)


def by_executor(cls: type[Operator], sample: Sample, seed: int, made: tuple[Any, ...], rng: random.Random, words: str, counts: Counts) -> None:
    """The same by way of a program, fed with arrays that are read-only, or lie in memory in other ways."""
    case = build(cls, sample.arguments, seed)
    feed = {n: _fed(a, rng) for n, a in case.feed.items()}
    fetch = [n for names in case.outputs.values() for n in names]
    tensors = [v for v in made if isinstance(v, Tensor)]
    if not fetch or len(tensors) != len(fetch) or len(made) != len(fetch):
        return
    try:
        got = Executor(check=rng.choice((False, "fused"))).run(case.program, feed, fetch, Scope())
    except ForeshapeError as error:
        if "has a NaN" in str(error) or "infinit" in str(error):  # checked mode stops there
            return
        raise Fault(f"{words}: the executor refuses what the kernel takes: {error}") from error
    for name, seen, want in zip(fetch, got, tensors, strict=True):
        if isinstance(seen, (np.ndarray, np.generic, LoDTensor)):
            near(torch.from_numpy(np.array(seen)), want, want.dtype, f"{words}: {name} by the executor")
    counts.kinds["run by an executor"] += 1


def _fed(value: Any, rng: random.Random) -> Any:
    if isinstance(value, LoDTensor) or not isinstance(value, np.ndarray) or not value.ndim:
        return value
    how = rng.randrange(4)
    out = value.copy()
    if how == 1:
        out = np.asfortranarray(value)
    elif how == 2:
        wide = np.zeros((*value.shape[:-1], 2 * value.shape[-1]), value.dtype)
        wide[..., ::2] = value
        out = wide[..., ::2]
    out.flags.writeable = how == 3
    return out


# --- the command


def fuzz(seconds: float, seed: int, types: Sequence[str] = (), cases: int | None = None, only: int | None = None) -> Counts:
    """Cases until the time is over, or so many. Raises `Fault` with a way to see it again."""
    torch.set_num_threads(1)
    counts = Counts()
    chosen = [c for c in OPERATORS if not types or c.type in types]
    until, at = time.monotonic() + seconds, only or 0
    while (cases is None or counts.kinds["cases"] < cases) and (cases is not None or only is not None or time.monotonic() < until):
        rng = random.Random(f"{seed} {at}")
        cls = chosen[at % len(chosen)]
        try:
            one_case(cls, rng, counts)
        except Exception as error:
            command = f"python tests/fuzz/operators.py --seed {seed} --case {at}{''.join(f' {t}' for t in types)}"
            raise Fault(f"{error if isinstance(error, Fault) else f'{cls.type}: {type(error).__name__}: {error}'}\nagain: {command}") from error
        if only is not None:
            break
        at += 1
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, default=None)
    parser.add_argument("types", nargs="*")
    options = parser.parse_args()
    try:
        counts = fuzz(options.seconds, options.seed, options.types, None, options.case)
    except Fault as fault:
        print(fault)
        return 1
    print(counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
