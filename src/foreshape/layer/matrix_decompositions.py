"""Decompositions of matrices, and their uses: eigenvalues, ranks, least squares. Matrices are the last two dims of a tensor."""

from __future__ import annotations

from foreshape.language.program.variable import Variable
from foreshape.layer.functions import apply


def svd(x: Variable, full_matrices: bool = False) -> tuple[Variable, Variable, Variable]:
    """Decompose matrices into U diag(S) VH, with the singular values S from the largest on.

    Args:
        x: floats ``[..., m, n]``.
        full_matrices: give U as ``[..., m, m]`` and VH as ``[..., n, n]``.

    Returns:
        U ``[..., m, k]``, S ``[..., k]`` and VH ``[..., k, n]``, where k is the lesser of m and n.
    """
    return apply("svd", {"X": x}, full_matrices=full_matrices)


def qr(x: Variable, mode: str = "reduced") -> tuple[Variable, Variable]:
    """Decompose matrices into Q R, with orthogonal columns in Q and upper triangular R.

    Args:
        x: floats ``[..., m, n]``.
        mode: "reduced"; "complete", where Q is ``[..., m, m]``; or "r", where Q is empty.

    Returns:
        Q ``[..., m, k]`` and R ``[..., k, n]``, where k is the lesser of m and n.
    """
    return apply("qr", {"X": x}, mode=mode)


def eigh(x: Variable, upper: bool = False) -> tuple[Variable, Variable]:
    """Return the eigenvalues of symmetric matrices, the least first, and their eigenvectors, a column for each.

    Args:
        x: floats ``[..., n, n]``; one triangle is read.
        upper: read the upper triangle; otherwise the lower one.

    Returns:
        ``[..., n]`` and ``[..., n, n]``.
    """
    return apply("eigh", {"X": x}, UPLO="U" if upper else "L")


def eigvalsh(x: Variable, upper: bool = False) -> Variable:
    """Return the eigenvalues of symmetric matrices, ``[..., n]``, the least first.

    Args:
        x: floats ``[..., n, n]``; one triangle is read.
        upper: read the upper triangle; otherwise the lower one.
    """
    return apply("eigvalsh", {"X": x}, UPLO="U" if upper else "L")[0]


def lu(x: Variable) -> tuple[Variable, Variable]:
    """Decompose matrices into P L U; `lu_unpack` gives the three.

    Args:
        x: floats ``[..., m, n]``.

    Returns:
        L below the diagonal and U from the diagonal on, ``[..., m, n]``; and the pivots, int32 ``[..., min(m, n)]``: the row exchanged with each,
        counted from 1.
    """
    return apply("lu", {"X": x})[:2]


def lu_unpack(x: Variable, pivots: Variable) -> tuple[Variable, Variable, Variable]:
    """Return P, L and U of matrices decomposed by `lu`.

    Args:
        x, pivots: as from `lu`.

    Returns:
        ``[..., m, m]``, ``[..., m, k]`` and ``[..., k, n]``, where k is the lesser of m and n.
    """
    return apply("lu_unpack", {"X": x, "Pivots": pivots})


def lstsq(x: Variable, y: Variable, rcond: float = 0.0, driver: str = "gelsd") -> tuple[Variable, Variable, Variable, Variable]:
    """Return the z with the least sum of squares of x z - y; of several the least.

    Args:
        x: floats ``[..., m, n]``.
        y: of the element type of x, ``[..., m, k]``.
        rcond: singular values up to this part of the largest count as 0.
        driver: LAPACK's: "gelsd", "gelss", "gelsy", or "gels", for x of full rank.

    Returns:
        z ``[..., n, k]``; the sums of squares ``[..., k]``, or ``[0]`` where m is not above n; the ranks, int32 ``[...]`` (not by "gels");
        and the singular values ``[..., min(m, n)]`` (by "gelsd" and "gelss").
    """
    return apply("lstsq", {"X": x, "Y": y}, rcond=rcond, driver=driver)


def matrix_rank(x: Variable, tolerance: float | Variable | None = None, hermitian: bool = False) -> Variable:
    """Count the singular values of each matrix above a tolerance: int32 ``[...]``.

    Args:
        x: floats ``[..., m, n]``.
        tolerance: a number, or a tensor, broadcast against ``[...]``. By default: the largest singular value times max(m, n)
            times the distance from 1 to the next number.
        hermitian: the matrices are symmetric, so eigenvalues count, faster.
    """
    inputs = {"TolTensor": tolerance} if isinstance(tolerance, Variable) else {}
    tol = 0.0 if tolerance is None or isinstance(tolerance, Variable) else tolerance
    return apply("matrix_rank", {"X": x, **inputs}, tol=tol, hermitian=hermitian, use_default_tol=tolerance is None)
