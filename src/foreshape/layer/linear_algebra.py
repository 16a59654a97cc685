"""Linear algebra: square matrices in the last two dims, systems of equations, products of vectors, matrices and chains of them."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.language.operator.attributes import several
from foreshape.language.program.variable import Variable
from foreshape.layer.functions import apply


def inverse(x: Variable) -> Variable:
    """Return the inverses of square matrices ``[..., n, n]``. A matrix without one is an error of the run.

    Args:
        x: floats.
    """
    return apply("inverse", {"Input": x})


def det(x: Variable) -> Variable:
    """Return the determinants of square matrices ``[..., n, n]``, ``[...]``.

    Args:
        x: floats.
    """
    return apply("determinant", {"Input": x})


def slogdet(x: Variable) -> Variable:
    """Return the signs of the determinants of square matrices, then the logarithms of their absolute values: ``[2, ...]``.

    Args:
        x: floats.
    """
    return apply("slogdeterminant", {"Input": x})


def matrix_power(x: Variable, n: int) -> Variable:
    """Return square matrices ``[..., rows, rows]`` to the power ``n``, a whole number; for a negative one the inverses' powers.

    Args:
        x: floats.
        n: any whole number.
    """
    return apply("matrix_power", {"X": x}, n=n)


def cholesky(x: Variable, upper: bool = False) -> Variable:
    """Return the lower triangular L with L L^T = x for symmetric positive definite matrices ``[..., n, n]``; or the U = L^T where ``upper``.

    Args:
        x: ``[..., n, n]``, floats, symmetric and positive definite.
        upper: give U; otherwise L.
    """
    return apply("cholesky", {"X": x}, upper=upper)


def cholesky_solve(x: Variable, y: Variable, upper: bool = False) -> Variable:
    """Return the solutions ``[..., n, k]`` of A s = x, with ``y`` the result of `cholesky` for A.

    Args:
        x: ``[..., n, k]``, floats.
        y: ``[..., n, n]``.
        upper: ``y`` is the upper factor; otherwise the lower one.
    """
    return apply("cholesky_solve", {"X": x, "Y": y}, upper=upper)


def triangular_solve(x: Variable, y: Variable, upper: bool = True, transpose: bool = False, unitriangular: bool = False) -> Variable:
    """Return the solutions ``[..., n, k]`` of x s = y, where only the upper triangle of ``x`` (the lower one without ``upper``) is read.

    Args:
        x: ``[..., n, n]``, floats.
        y: ``[..., n, k]``, of the element type of x.
        upper: read the upper triangle.
        transpose: solve x^T s = y.
        unitriangular: take the diagonal to be ones.
    """
    return apply("triangular_solve", {"X": x, "Y": y}, upper=upper, transpose=transpose, unitriangular=unitriangular)


def solve(x: Variable, y: Variable) -> Variable:
    """Return the solutions of x s = y for square matrices ``x``; ``y`` holds vectors, ``[n]`` or ``[..., n]``, or matrices ``[..., n, k]``.

    Args:
        x: ``[..., n, n]``, floats.
        y: ``[..., n, k]``, or ``[n]``.
    """
    return apply("solve", {"X": x, "Y": y})


def trace(x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """Return the sum of the diagonal of the matrices in two axes, ``offset`` above it, or below where negative.

    Args:
        x: numbers, of at least two dims.
        offset: how far from the main diagonal.
        axis1, axis2: the rows and the columns of the matrices.
    """
    return apply("trace", {"Input": x}, offset=offset, axis1=axis1, axis2=axis2)


def mv(x: Variable, y: Variable) -> Variable:
    """Return the matrix ``x``, ``[rows, n]``, times the vector ``y``, ``[n]``.

    Args:
        x: ``[rows, n]``, floats.
        y: ``[n]``, of the element type of x.
    """
    return apply("mv", {"X": x, "Vec": y})


def multi_dot(xs: Sequence[Variable]) -> Variable:
    """Return the product of a chain of matrices, in the cheapest order. The first may be a row, the last a column.

    Args:
        xs: at least two, each ``[rows, columns]``, floats.
    """
    return apply("multi_dot", {"X": list(xs)})


def kron(x: Variable, y: Variable) -> Variable:
    """Return the Kronecker product: every element of ``x`` times the whole of ``y``, block by block.

    Args:
        x: numbers of any shape.
        y: numbers of any shape, of the element type of x.
    """
    return apply("kron", {"X": x, "Y": y})


def cross(x: Variable, y: Variable, axis: int = 9) -> Variable:
    """Return the cross products of the vectors of three numbers along ``axis``; 9 stands for the first axis whose dim is 3.

    Args:
        x, y: numbers of the same dims.
        axis: of three elements.
    """
    return apply("cross", {"X": x, "Y": y}, dim=axis)


def dist(x: Variable, y: Variable, p: float = 2.0) -> Variable:
    """Return the p-norm of x - y, broadcast; a tensor without dims.

    Args:
        x: floats of any shape.
        y: floats, broadcast against x.
        p: of the norm, at least 0; may be infinite.
    """
    return apply("dist", {"X": x, "Y": y}, p=p)


def frobenius_norm(x: Variable, axis: Sequence[int] | int | None = None, keepdim: bool = False) -> Variable:
    """Return the root of the sum of the squares over ``axis`` (one, several, or by default all).

    Args:
        x: floats of any shape.
        axis: one, several, or by default all.
        keepdim: keep the axes as dims of 1.
    """
    axes = [] if axis is None else several(axis)
    return apply("frobenius_norm", {"X": x}, dim=axes, keep_dim=keepdim, reduce_all=not axes)


def einsum(equation: str, *xs: Variable) -> Variable:
    """Return sums of products of the numbers at the letters of an equation, over all letters missing on the right of ``->``.

    Args:
        equation: letters for the axes of each operand and of the result, as in "ij,jk->ik"; ``...`` stands for broadcast axes.
        xs: one or two tensors of floats of one element type.
    """
    return apply("einsum", {"Operands": list(xs)}, equation=equation)[0]


def addmm(x: Variable, y: Variable, z: Variable, alpha: float = 1.0, beta: float = 1.0) -> Variable:
    """Return beta * x + alpha * (y z), where y z is the product of two matrices.

    Args:
        x: floats, broadcast against ``[rows, columns]``.
        y: ``[rows, k]``, of the element type of x.
        z: ``[k, columns]``, of the element type of x.
        alpha, beta: of the formula.
    """
    return apply("addmm", {"Input": x, "X": y, "Y": z}, Alpha=alpha, Beta=beta)


def renorm(x: Variable, p: float, axis: int, max_norm: float) -> Variable:
    """Scale each part of x along an axis with a p-norm above ``max_norm`` down to ``max_norm``.

    Args:
        x: floats of at least 2 dims.
        p: of the norm, above 0.
        axis: of the parts.
        max_norm: the largest norm.
    """
    return apply("renorm", {"X": x}, p=p, axis=axis, max_norm=max_norm)
