"""What is measured of operators on arrays of tensors and rank tables against what they say, where nobody has asked anything of the offsets
before, and where an array of gradients holds something already."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.kernel_calls import backward, forward, mapped, tensors_of
from support.kernel_memory import SMALL, bound, workspaces
from support.measured import allocated
from torch import Tensor

from foreshape.core.values.tensor_array import TensorArray
from foreshape.language.ops import Offsets, f32, get, i64, sample

NEAR = 1.2
WIDTH = 64
STEPS = np.random.RandomState(4).randint(0, 60, 32).tolist()
ROWS = sum(STEPS)
ALIVE = [sum(n > t for n in STEPS) for t in range(max(STEPS))]
PARTS = np.random.RandomState(5).randint(0, 5, ROWS).tolist()
TABLE: dict[str, Any] = {"RankTable": i64(ROWS).ragged(STEPS)}


def taken_apart(*levels: list[int]) -> dict[str, Any]:
    return {"X": f32(sum(levels[-1]), WIDTH).ragged(*levels), **TABLE}


COLD: dict[str, tuple[str, dict[str, Any]]] = {
    "rows taken apart": ("lod_tensor_to_array", taken_apart(STEPS)),
    "sequences taken apart": ("lod_tensor_to_array", taken_apart(STEPS, PARTS)),
    "narrow rows taken apart": ("lod_tensor_to_array", {"X": f32(ROWS, 1).ragged(STEPS), **TABLE}),
    "rows put together": ("array_to_lod_tensor", {"X": [f32(n, WIDTH) for n in ALIVE], **TABLE}),
    "narrow rows put together": ("array_to_lod_tensor", {"X": [f32(n, 1) for n in ALIVE], **TABLE}),
    "rows ordered": ("reorder_lod_tensor_by_rank", {"X": f32(len(STEPS), WIDTH), **TABLE}),
    "sequences ordered": ("reorder_lod_tensor_by_rank", taken_apart(STEPS)),
    "sequences in their own order": ("reorder_lod_tensor_by_rank_grad", taken_apart(STEPS)),
    "the longest": ("max_sequence_len", TABLE),
}


@pytest.mark.parametrize("name", COLD)
def test_what_is_worked_out_of_offsets_is_in_what_is_said(name: str) -> None:
    kind, given = COLD[name]
    (m,) = workspaces([(name, forward(get(kind), sample(**given)))])
    taken = m.most + m.kept
    assert taken <= m.bound + SMALL, f"{taken} bytes are taken, and {m.bound} are said"
    assert m.bound <= taken * NEAR + SMALL, f"{taken} bytes are taken, and {m.bound} are said"


ELEMENTS = [f32(n, WIDTH) for n in ALIVE]
JOINED = {"Out@GRAD": f32(ROWS, WIDTH)}
ADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "read_from_array_grad": ("read_from_array_grad", {"I": i64(1, data=[0]), "Out@GRAD": f32(ROWS, WIDTH)}),
    "tensor_array_to_tensor_grad": ("tensor_array_to_tensor_grad", {"X": ELEMENTS, **JOINED}),
    "array_to_lod_tensor_grad": ("array_to_lod_tensor_grad", {**TABLE, "Out@GRAD": f32(ROWS, WIDTH).ragged(STEPS)}),
    "assign_array_grad": ("assign_array_grad", {"Out@GRAD": [f32(40, WIDTH)] * 9}),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_to_an_array_takes_no_more_than_is_said(name: str) -> None:
    kind, given = ADDED[name]
    call = forward(get(kind), sample(**given))
    new = next(r for r in call.run() if isinstance(r, TensorArray)).copy()  # which has asked the table
    held = TensorArray.of([torch.randn_like(t) if t is not None else None for t in new.tensors])
    made: list[tuple[int, TensorArray]] = []

    def run() -> object:
        before, arguments = mapped(held, Tensor.clone), [mapped(a, Tensor.clone) for a in forward(get(kind), sample(**given)).arguments]
        arguments = [old if isinstance(old, Offsets) else a for old, a in zip(call.arguments, arguments, strict=True)]
        taken = sum(t.untyped_storage().nbytes() for v in (before, *arguments) if not isinstance(v, Offsets) for t in tensors_of(v))
        arrays = [before, *(a for a in arguments if isinstance(a, TensorArray))][: len(call.cls.accumulates)]
        named = {"offsets": call.offsets} if call.cls.kernel_offsets else {}
        with torch.inference_mode():
            call.cls.kernel(call.operator, *arguments, before=arrays, **named)
        made.append((taken, before))
        return before

    taken, said = allocated(run) - made[0][0], bound(call)
    for now, old, added in zip(tensors_of(made[0][1]), tensors_of(held), tensors_of(new), strict=True):
        assert torch.equal(now, old + added)
    assert taken <= said + SMALL, f"{taken} bytes are taken, and {said} are said"


def test_the_gradient_of_sequences_taken_apart_takes_what_it_says() -> None:
    back = backward(forward(get("shrink_rnn_memory"), sample(X=f32(len(STEPS), WIDTH), I=i64(1, data=[7]), **TABLE)))
    assert back is not None
    parts: dict[str, Any] = {"Out@GRAD": [f32(n, WIDTH) for n in ALIVE]}
    again = forward(get("lod_tensor_to_array_grad"), sample(X=f32(ROWS, WIDTH).ragged(STEPS), **TABLE, **parts))
    again.run()  # the forward has asked the table
    for m in workspaces([("shrink", back), ("apart", again)]):
        assert m.most <= m.bound + SMALL
