"""Class numbers, row ids and indices out of range: on a device the words of the processor, with the step's results, and no kernel that ends all work there."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.harness import Case, build, of_each_operator, sampled
from support.pretended_device import pretended

import foreshape as fs
from foreshape.errors import ForeshapeError
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample


def error_on(device: str, case: Case, feed: dict[str, Any]) -> str | None:
    fetches = [n for names in case.outputs.values() for n in names]
    try:
        fs.Executor(device, seed=1).run(case.program, feed, fetches, fs.Scope())
    except ForeshapeError as error:
        return str(error)
    return None


def wrong_feeds(case: Case) -> list[dict[str, Any]]:
    """Return the feeds with one number of one operand far too large, or far too small."""
    out: list[dict[str, Any]] = []
    for name, value in case.feed.items():
        rows = value.data if isinstance(value, fs.LoDTensor) else value
        if not isinstance(rows, np.ndarray) or rows.dtype.kind != "i" or rows.itemsize < 4 or not rows.size:
            continue
        for number in (1_000_003, -1_000_003):
            wrong = rows.copy()
            wrong.reshape(-1)[-1] = number
            out.append({**case.feed, name: value.with_data(wrong) if isinstance(value, fs.LoDTensor) else wrong})
    return out


@of_each_operator((c for c in sampled() if c[1].type != "fetch"), quick=6)
def test_an_operator_refuses_them_in_the_same_words(name: str, cls: type[Operator], sample: Sample) -> None:
    case = build(cls, sample.arguments)
    for feed in wrong_feeds(case):
        words = error_on("cpu", case, feed)
        with pretended() as device:
            assert error_on(device.name, case, feed) == words
