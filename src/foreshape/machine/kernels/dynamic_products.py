"""Products of rows with a constant matrix of bytes, where each row is rounded in a step of its own."""

from __future__ import annotations

from typing import Protocol

from foreshape.core.values.torch_proxy import Tensor
from foreshape.machine.kernels.rows_of_bytes import rounded, steps_of


class Product(Protocol):
    """A product of fp32 rows with a constant matrix, its bias and its functions; ``add``: with another tensor added before these."""

    def __call__(self, x: Tensor) -> Tensor: ...
    def add(self, x: Tensor, other: Tensor) -> Tensor: ...


class DynamicRows:
    """``product(s round(x factor / s))``: the numbers of the product of bytes, in fp32."""

    __slots__ = ("_factor", "_product")

    def __init__(self, product: Product, factor: Tensor | None) -> None:
        self._product, self._factor = product, factor

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(self._rounded(x))

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the result, with ``other``, of its shape, added before the activation."""
        return self._product.add(self._rounded(x), other)

    def _rounded(self, x: Tensor) -> Tensor:
        rows = x if self._factor is None else x * self._factor
        steps = steps_of(rows)
        return rounded(rows, steps).mul_(steps)
