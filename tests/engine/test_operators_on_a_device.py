"""What the processor computes, a pretended device computes too, for every operator's samples: no kernel mixes tensors of both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.harness import build, of_each_operator, sampled
from support.pretended_device import pretended

import foreshape as fs
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample


def numbers(value: Any) -> Any:
    """Return a fetched value of any kind as an array, or a list of arrays."""
    if isinstance(value, list):
        return [numbers(v) for v in value if v is not None]
    return np.asarray(value.to_dense() if hasattr(value, "to_dense") else value)


@of_each_operator((c for c in sampled() if c[1].type != "fetch"), quick=6, always=("rnn", "sequence_attention", "sequence_rnn"))
def test_an_operator_computes_the_same_there(name: str, cls: type[Operator], sample: Sample) -> None:
    case = build(cls, sample.arguments)
    fetches = [n for names in case.outputs.values() for n in names]
    if cls.type == "argsort" and not sample.arguments.get("stable"):  # equal elements come in another order there
        fetches = fetches[:1]
    random = any(op.operator is not None and op.operator.random for op in case.program.all_ops())
    expected = fs.Executor(seed=1).run(case.program, case.feed, fetches, fs.Scope())
    with pretended() as device:
        seen = fs.Executor(device.name, seed=1).run(case.program, case.feed, fetches, fs.Scope())
    for a, b in zip(map(numbers, seen), map(numbers, expected), strict=True):
        assert np.shape(a) == np.shape(b) if not isinstance(b, list) else len(a) == len(b)
        for x, y in zip(a, b, strict=True) if isinstance(b, list) else [(a, b)]:
            if not random:
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)
