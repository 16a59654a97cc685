"""Attention over rows with heads side by side, as a stage of a series of oneDNN's kernels: a product, a softmax and a product.

The scores of all heads are there at once, in fp32. Where they are many, `foreshape.machine.kernels.attention` makes them piece by piece instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from foreshape.core.dims import Size, minimum, reaches
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ShapeError
from foreshape.machine.kernels.attention import Attention
from foreshape.machine.kernels.onednn_bytes import turned
from foreshape.machine.kernels.onednn_grids import HALF, Kept, aligned
from foreshape.machine.kernels.onednn_library import BF16, F32, SIZES, SOURCE, STEP_OF, WEIGHTS, After, Function, Library, Memory, Primitive, Unimplemented
from foreshape.machine.kernels.onednn_packed import FEW, DescribedPrimitive, described, row_major_strides
from foreshape.machine.kernels.onednn_steps import PlannedStep

MOST = 1 << 21
"""So many scores at most are there at once."""
LONG = 512
"""With more keys torch's kernel is as fast, and takes no memory for all scores."""


_WITHOUT_NAN: Function = ("hardtanh", 0.0, 1.0)
"""The limits of weights: the library's kernels give the lower one for NaN."""


def scores_bytes(heads: int, q: Sequence[Size], k: Sequence[Size]) -> Size:
    """Return the bytes of the scores of rows ``[batch, time, width]``, and of their softmax as bf16."""
    return minimum(q[0] * heads * q[1] * k[1], MOST) * (1 - reaches(k[1], LONG + 1)) * 6


class HeadedAttention(NamedTuple):
    """``softmax(scale Q K' + mask) V`` over ``[batch, time, heads * columns]``, for each head; a mask is ``[batch, 1, time, keys]``, with 1 for
    the first or the third where it is alike for all.

    ``parts``: for each of Q, K and V the number of its operand, the first column and the number of columns there. ``blanks``: as for `Attention`.
    """

    heads: int
    scale: float
    parts: tuple[tuple[int, int, int], ...]
    blanks: bool = False

    @property
    def takes_half(self) -> bool:
        """Return True: its operands may be bf16."""
        return True

    def __call__(self, *given: Tensor) -> Tensor:
        """Return the result by torch's kernel."""
        count = 1 + max(part[0] for part in self.parts)
        q, k, v = (
            given[n].narrow(2, begin, width).reshape(*given[n].shape[:2], self.heads, width // self.heads).transpose(1, 2) for n, begin, width in self.parts
        )
        out, _ = Attention(self.scale, False, blanks=self.blanks).forward(q, k, v, *given[count:])
        return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], self.parts[2][2])

    def described(self, library: Library, dims: Sequence[Sequence[int]]) -> DescribedPrimitive:
        """Refuse: it is of several kernels."""
        raise Unimplemented("an attention is no single kernel")

    def planned(
        self, library: Library, dims: Sequence[tuple[int, ...]], sources: Sequence[int], number: int, forms: Sequence[Kept] = (), leaves: bool = True
    ) -> PlannedStep:
        """Return the work for operands of these dims and numbers; with ``forms`` of them, products of bf16.

        Raises:
            Unimplemented: there are too many scores. ShapeError: sizes do not fit.
        """
        count = 1 + max(part[0] for part in self.parts)
        rows, masks = dims[:count], dims[count:]
        heads, (of_q, of_k, of_v) = self.heads, self.parts
        batch, time, keys = rows[0][0], rows[of_q[0]][1], rows[of_k[0]][1]
        fits = all(len(d) == 3 and d[0] == batch for d in rows) and all(begin + width <= rows[n][2] for n, begin, width in self.parts)
        if (
            not fits
            or rows[of_v[0]][1] != keys
            or of_q[2] != of_k[2]
            or any(len(m) != 4 or m[0] not in (1, batch) or m[1] != 1 or m[2] not in (1, time) or m[3] != keys for m in masks)
        ):
            raise ShapeError.must("Q, K and V", "rows of one batch, and a mask [batch, 1, time, keys]", f"{[list(d) for d in dims]}")
        if keys > LONG or batch * heads * time * keys > MOST:
            raise Unimplemented("so many scores are made piece by piece")
        columns, values, pairs = of_q[2] // heads, of_v[2] // heads, (batch, heads, time, keys)
        element = BF16 if forms else F32

        def lying(part: tuple[int, int, int], turns: bool = False) -> Memory:
            """Return an operand with heads, within its rows."""
            _, length, width = rows[part[0]]
            size, steps = part[2] // heads, (length * width, part[2] // heads, width, 1)
            return Memory((batch, heads, size, length), (*steps[:2], 1, width), element) if turns else Memory((batch, heads, length, size), steps, element)

        scores = Memory(pairs, row_major_strides(pairs))
        weights = scores._replace(element=element)
        result = Memory((batch, heads, time, values), (time * of_v[2], values, of_v[2], 1), F32 if leaves else element)
        threads = 1 if prod(pairs) * columns < FEW else None
        added = Memory(masks[0], row_major_strides(masks[0])) if masks else None
        records = (
            Primitive("product", (lying(of_q), lying(of_k, True), None, scores, After(added, (), ((SOURCE, 0),))), threads),
            Primitive("softmax_to", (scores, weights, 3, After(None, [_WITHOUT_NAN] if self.blanks else [])), threads),
            Primitive("product", (weights, lying(of_v), None, result, After()), threads),
        )
        by, out, item = {STEP_OF | SOURCE: library.number(self.scale)}, (batch, time, of_v[2]), SIZES[element]
        first, second, third = (described(library, r, c, d, row_major_strides(d)) for r, c, d in zip(records, (by, {}, {}), (pairs, pairs, out), strict=True))
        first = first._replace(begins={SOURCE: of_q[1] * item, WEIGHTS: of_k[1] * item})
        third = third._replace(begins={WEIGHTS: of_v[1] * item})
        primitives: list[tuple[DescribedPrimitive, tuple[int, ...], int]] = []
        operands, room = list(sources), 0
        for index, form in enumerate(forms[:count]):
            if form is not HALF:
                primitives.append((turned(library, dims[index], form, HALF), (sources[index],), -1 - room))
                operands[index], room = -1 - room, room + aligned(2 * prod(dims[index]))
        at = room
        room += aligned(4 * prod(pairs))
        softmax = room if forms else at
        room += aligned(2 * prod(pairs)) if forms else 0
        primitives += [
            (first, (operands[of_q[0]], operands[of_k[0]], *operands[count:]), -1 - at),
            (second, (-1 - at,), -1 - softmax),
            (third, (-1 - softmax, operands[of_v[0]]), number),
        ]
        return PlannedStep(primitives, out, None if leaves or not forms else HALF, room)
