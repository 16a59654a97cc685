"""Products of ragged rows, of which there is another number in most calls."""

from __future__ import annotations

from foreshape.errors import ShapeError
from foreshape.kernels.onednn_packed import PackedProduct
from foreshape.values.torch_proxy import Tensor, torch

PART = 32


class RaggedProduct(PackedProduct):
    """A `PackedProduct` of rows in two parts: up to a multiple of `PART`, or of a 32nd of their number, and the rest.

    Few kernels do for all numbers of rows so: a kernel takes longer to make than to run.
    """

    def __call__(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the result as `PackedProduct` does."""
        count = len(x) if x.dim() == 2 else 0
        rest = count % max(PART, (1 << count.bit_length()) >> 6)
        if not rest or rest == count:
            return super().__call__(x, other)
        if other is not None and (other.dim() != 2 or len(other) != count):
            raise ShapeError.must("what is added", f"{[count, self._shape[1]]}, as the result is", f"{list(other.shape)}")
        y: Tensor = torch.empty((count, self._shape[1]), dtype=torch.float32, device="cpu")
        for rows in (slice(count - rest), slice(count - rest, None)):
            part, added, into = x[rows].contiguous(), None if other is None else other[rows], y[rows]
            made = self.kernel_of(part, added)(part, added, into)
            if made is not into:
                into.copy_(made)
        return y

    add = __call__
