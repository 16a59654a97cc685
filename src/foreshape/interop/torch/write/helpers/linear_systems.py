"""Systems of linear equations."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def least_squares(x: Tensor, y: Tensor, rcond: float, driver: str) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the solutions of ``x z = y`` with the least squares, the sums of these, the rank (not of gels), and the singular values (of gelsd and gelss)."""
    solve: Any = torch.linalg.lstsq
    columns = y if y.shape[-1] else y.new_zeros((*y.shape[:-1], 1))  # torch wants a column
    if driver == "gels":
        solution, _, rank, values = solve(x, columns, driver=driver)
    else:  # on processors alone
        solution, _, rank, values = (t.to(x.device) for t in solve(x.cpu(), columns.cpu(), rcond=rcond, driver=driver))
    solution = solution[..., : y.shape[-1]]
    residuals = (x @ solution - y).square().sum(-2) if x.shape[-2] > x.shape[-1] else x.new_empty(0)
    return solution, residuals, None if driver == "gels" else rank.to(torch.int32), values if driver in ("gelsd", "gelss") else None


def symmetric_eigenvalues(x: Tensor, triangle: str) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of symmetric matrices, by one triangle of each; the gradient is as if both were read."""
    function: Any = SymmetricEigenvalues
    return function.apply(x, triangle)


class SymmetricEigenvalues(torch.autograd.Function):
    """Eigenvalues and eigenvectors; torch's own gradient would be spread over both triangles alike."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, triangle: str) -> Any:
        """Return both."""
        parts: Any = torch.linalg.eigh(x, triangle)
        ctx.save_for_backward(*parts)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient of the matrices; it holds for different eigenvalues."""
        (values, vectors), (d_values, d_vectors) = ctx.saved_tensors, gradients
        apart = values.unsqueeze(-2) - values.unsqueeze(-1) + torch.diag_embed(torch.full_like(values, float("inf")))
        return vectors @ ((vectors.mT @ d_vectors) / apart + torch.diag_embed(d_values)) @ vectors.mT, None


def ranks(x: Tensor, tolerance: Tensor, hermitian: bool, relative: bool) -> Tensor:
    """Return the numbers of singular values above a tolerance; if ``relative``, also above the largest one times the larger dim and the epsilon."""
    values: Tensor = torch.linalg.eigvalsh(x).abs() if hermitian else torch.linalg.svdvals(x)
    if relative and values.shape[-1]:
        tolerance = torch.maximum(tolerance, values.amax(-1) * (torch.finfo(x.dtype).eps * max(x.shape[-2:])))
    return (values > tolerance.unsqueeze(-1)).sum(-1).to(torch.int32)
