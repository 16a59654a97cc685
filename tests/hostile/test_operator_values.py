"""Every operator that reads whole numbers, given those that it cannot mean: 15 and 24, huge and negative ones, sums that pass 64 bits, all at once.

Made from the operators' samples and their gradients', so that a new operator is covered at once. Only the kernels run, whose operands end
where memory does, in processes that may die of it; what they answer is told elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import permutations

import pytest
import torch
from support.guarded import run_where_memory_ends, survivors
from support.harness import operators, with_kernels
from support.kernel_calls import Call, backward, forward
from torch import Tensor

from foreshape.language.operator.operator import Operator

MOST_BYTES = 1 << 30
"""So much a kernel may take here: it does not hang in making what nobody asked for."""
QUICK = ("gather_nd", "repeat_interleave", "sequence_slice")
Place = tuple[int, int, Tensor]


def numbers(call: Call) -> list[Place]:
    """The operands of whole numbers: which one, its place in a list, and the tensor."""
    out: list[Place] = []
    for at, given in enumerate(call.arguments):
        for k, t in enumerate(given if isinstance(given, list) else [given]):
            if isinstance(t, Tensor) and not hasattr(t, "kept") and t.dtype in (torch.int64, torch.int32) and t.numel():
                out.append((at, k, t))
    return out


def put(call: Call, changes: Sequence[Place]) -> Call:
    arguments = list(call.arguments)
    for at, k, t in changes:
        given = arguments[at]
        arguments[at] = [*given[:k], t, *given[k + 1 :]] if isinstance(given, list) else t
    return replace(call, arguments=arguments)


def extremes(t: Tensor) -> list[Tensor]:
    limits = torch.iinfo(t.dtype)
    return [torch.full_like(t, n) for n in (limits.max, limits.min, limits.max // 2 + 1, -1, 2)]


def wrapping(t: Tensor) -> Iterator[Tensor]:
    """Other numbers, and such as sum to what they summed to, or near it, where a sum begins again."""
    top, given = torch.iinfo(t.dtype).max, [int(n) for n in t.reshape(-1)]
    rest, total = given[3:], sum(given)
    made = [[top, *given[1:]], [*given[:-1], -top - 1], given[::-1]]
    if len(given) > 1:
        made += [[top, -top, *given[2:]], [given[0] + 5, given[1] - 5, *given[2:]]]
    if len(given) > 2:
        made += [[top, top, total - sum(rest) + 2 + more, *rest] for more in (0, 1)]
        made += [[*rest, top, top, total - sum(rest) + 2]]
    if len(given) > 3:
        made += [[n + top // 2 + 1 for n in given[:4]] + given[4:]]
    for one in made:
        yield torch.tensor([min(max(n, -top - 1), top) for n in one], dtype=t.dtype).reshape(t.shape)


def variants(call: Call) -> Iterator[tuple[str, Call]]:
    places = numbers(call)
    for at, k, t in places:
        for n, other in enumerate([*extremes(t), *wrapping(t)]):
            yield f"{call.cls.schema.operands[at].name}[{k}], numbers {n}", put(call, [(at, k, other)])
    for n in range(5 if len(places) > 1 else 0):
        yield f"all, numbers {n}", put(call, [(at, k, extremes(t)[n]) for at, k, t in places])
    for (a, i, one), (b, j, two) in permutations(places, 2) if len(places) < 6 else ():
        for n, first in enumerate(wrapping(one)):
            for m, second in enumerate(extremes(two)[:2]):
                yield f"operands {a} and {b}, numbers {n} and {m}", put(call, [(a, i, first), (b, j, second)])


@cache
def limited() -> None:
    """From now on this process may take only so much more."""
    import resource

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def run(call: Call) -> str:
    limited()
    return run_where_memory_ends(call)


def jobs(cls: type[Operator]) -> list[tuple[str, Callable[[], str]]]:
    out: list[tuple[str, Callable[[], str]]] = []
    for name, of, sample in with_kernels():
        if of is cls:
            call = forward(cls, sample)
            for one in (call, backward(call)):
                if one is not None:
                    out += [(f"{one.cls.type} of {name}, {title}", partial(run, variant)) for title, variant in variants(one)]
    return out


READING = [c for c in operators() if any(d.is_integer for o in c.schema.operands for d in o.dtypes)]


@pytest.mark.long_cases("sequence_slice")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages without rights are asked of Linux")
@pytest.mark.parametrize("cls", [pytest.param(c, id=c.type, marks=() if c.type in QUICK else pytest.mark.long) for c in READING])
def test_15_and_24_no_kernel_dies_of_the_numbers_that_it_reads(cls: type[Operator]) -> None:
    torch.set_num_threads(1)
    made = jobs(cls)
    said = survivors([job for _, job in made])
    wrong = [f"{words}: {title}" for (title, _), words in zip(made, said, strict=True) if words.startswith(("died", "ended"))]
    assert not wrong, "\n".join(wrong[:20])
