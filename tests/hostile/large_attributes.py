"""Operators run with attributes of 2^28 in a process that may take little memory: `python large_attributes.py [TYPE ...]`.

Prints a line for each case that runs out of memory, instead of refusing what the run may not take or doing the little that there is to do.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from support.harness import array, operators
from test_operator_mutations import described, raggedness

from foreshape.core.spec import LOD_TENSOR
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ForeshapeError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import SampleTensor
from foreshape.runtime.engine import Executor, Scope

LARGE, MAY_TAKE, BESIDE = 2**28, 64 << 20, 768 << 20
"""The attribute; the bytes that a run may take; those that the process has, for what no plan counts, such as code that is loaded."""


def without_rows(given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return [without_rows(one) for one in given]
    if not isinstance(given, SampleTensor) or not given.dims:
        return given
    lengths = (*given.lengths[:-1], tuple(0 for _ in given.lengths[-1])) if given.lengths else given.lengths
    return replace(given, dims=(0, *given.dims[1:]), data=None, lengths=lengths)


def cases(cls: type[Operator]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A sample as it is and without rows, with each whole number among its attributes, and all numbers of a list, made large."""
    first = dict(cls.samples[0].arguments)
    bare = {name: without_rows(given) for name, given in first.items()}
    for name, field in cls.schema.attributes.items():
        if field.type in (AttrType.INT, AttrType.LONG):
            larger: list[Any] = [LARGE]
        elif field.type in (AttrType.INTS, AttrType.LONGS):
            given = first.get(name, field.default) or [1]
            larger = [[LARGE] * len(given), [*given[:-1], LARGE]]
        else:
            continue
        for value in larger:
            yield f"{cls.type}: {name} = {value}", first | {name: value}
            yield f"{cls.type}: {name} = {value}, no rows", bare | {name: value}


def fed(name: str, value: SampleTensor) -> Any:
    made = array(value if value.data is None or np.size(value.data) == np.prod(value.dims) else replace(value, data=None), np.random.RandomState(1))
    return LoDTensor(made, value.lengths) if raggedness(name, value) is not None or value.lengths else made


def tried(arguments: dict[str, Any], cls: type[Operator]) -> str | None:
    """Run one case; returns the words of an error that tells of missing memory."""
    given_as: dict[str, Any] = {}
    made = described(cls, arguments, given_as)
    if made is None or any(v.spec.kind is not LOD_TENSOR for v in made[0].all_variables()):
        return None
    program, op = made
    outputs = list(op.output_names())
    try:
        feed = {name: fed(name, value) for name, value in given_as.items()}
        Executor(memory_limit=MAY_TAKE).run(program, feed, outputs, Scope())
    except ForeshapeError as error:
        return str(error)[:300] if any(word in f"{error} {error.__cause__!r}" for word in ("allocate", "MemoryError", "bad_alloc")) else None
    except Exception as error:
        return f"{error!r}"[:300]
    return None


def main(types: list[str]) -> None:
    chosen = [c for c in operators() if c.samples and not c.sub_blocks and (not types or c.type in types)]
    for cls in chosen:  # so that what torch loads once is loaded
        tried(dict(cls.samples[0].arguments), cls)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + BESIDE, -1))
    count = 0
    for cls in chosen:
        for words, arguments in cases(cls):
            count += 1
            told = tried(arguments, cls)
            if told is not None:
                print(f"{words}: {told}")
    print(f"{count} cases")


if __name__ == "__main__":
    main(sys.argv[1:])
