"""Whatever views kernels are given, torch's kernels are given operands that they are fast at: for others some of them are tens to hundreds of times
slower, and one gives wrong numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from support.harness import of_each_operator, with_kernels
from support.kernel_calls import Call, calls, columns, entries, in_a_row, permuted, repeated, tensors_of, turned_columns
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.machine.kernels import products

PARTS = (in_a_row, permuted, columns, entries, turned_columns)
REPEATED = tuple(partial(repeated, axis=axis) for axis in (0, -1, -2))
"""They change what the numbers are, so that a matrix may have no inverse."""


def is_dense(x: Tensor | None) -> bool:
    """Rows, or columns, behind one another."""
    return x is None or x.is_contiguous() or x.mT.is_contiguous()


def is_batch(x: Tensor) -> bool:
    """Matrices of rows, or columns, of numbers side by side: a batch of others is multiplied one by one."""
    (rows, columns), (row, column) = x.shape[-2:], x.stride()[-2:]
    return len(x) == 1 or not x.numel() or (column == 1 and (rows == 1 or row >= columns)) or (row == 1 and (columns == 1 or column >= rows))


def is_image(x: Tensor) -> bool:
    return x.is_contiguous() or is_innermost(x)


def is_innermost(x: Tensor) -> bool:
    """The channels are innermost in memory."""
    return x.dim() > 3 and x.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


def are_images(*given: Tensor) -> bool:
    return all(x.is_contiguous() for x in given) or all(is_innermost(x) for x in given)


FAST: dict[str, Callable[[Sequence[Any]], bool]] = {
    "aten::bmm": lambda a: is_batch(a[0]) and is_batch(a[1]),
    "aten::baddbmm": lambda a: is_batch(a[1]) and is_batch(a[2]),
    "aten::native_batch_norm": lambda a: is_image(a[0]) and all(x is None or x.is_contiguous() for x in a[1:3]),
    "aten::batch_norm_update_stats": lambda a: is_image(a[0]),
    "aten::native_batch_norm_backward": lambda a: are_images(*a[:2]) and all(x is None or x.is_contiguous() for x in (a[2], *a[5:7])),
    "aten::mkldnn_rnn_layer": lambda a: all(x.is_contiguous() for x in a[:7]),
    "aten::mkldnn_rnn_layer_backward": lambda a: all(x.is_contiguous() for x in a[:10]),
    "mkldnn::_linear_pointwise": lambda a: is_dense(a[1]) and (a[2] is None or a[2].is_contiguous()),
    "mkldnn::_convolution_pointwise": lambda a: a[2] is None or a[2].is_contiguous(),
}
"""What each kernel is fast at, and right: with a bias that has gaps, ``_linear_pointwise`` gives wrong numbers."""


class Asked(TorchDispatchMode):
    """Notes which kernels were asked with what they are slow at, and how many of those that are looked at were asked."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.slow: list[str] = []
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fast = FAST.get(func._schema.name)
        if fast is not None:
            self.count += 1
            if not fast(args):
                self.slow.append(f"{func._schema.name} of {', '.join(f'{tuple(x.shape)} {x.stride()}' for x in args if isinstance(x, Tensor))}")
        with self:  # what is made of other kernels, which are looked at, too
            made = func.decompose(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if made is NotImplemented else made


def laid(call: Call) -> Iterator[tuple[str, Call]]:
    """The call with each of its operands of numbers in other layouts, one at a time; what is updated in place is no view of a part."""
    multiplies = call.cls.multiplies or (call.cls.forward_class is not None and call.cls.forward_class.multiplies)
    updated = {r.updates for r in call.cls.schema.results}
    for operand in call.cls.schema.operands:
        if operand.name not in updated and any(x.is_floating_point() for x in tensors_of(call.operand(operand.name))):
            for layout in (*PARTS, *(REPEATED if multiplies else ())):
                yield f"{call.cls.type}, {operand.name}, {layout}", call.laid(layout, operand.name)


@pytest.fixture(autouse=True)
def every_product_by_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LARGE", 1)
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)


@pytest.mark.quick_cases(one_in=2)
@of_each_operator(list(with_kernels()), quick=24)
def test_kernels_are_asked_for_what_they_are_fast_at(name: str, cls: type[Operator], sample: Sample) -> None:
    for call in calls(cls, sample):
        for what, other in laid(call.laid(in_a_row)):
            with Asked() as asked:
                other.run()
            assert not asked.slow, f"{what}: {asked.slow}"
