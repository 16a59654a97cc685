"""Matrices and systems of equations, against numpy; what has no inverse or factor is an error of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import ExecutionError, ShapeError

RNG = np.random.RandomState(4)


def run(feed: dict[str, Any], *fetch: Any) -> list[Any]:
    return fs.Executor().run(fs.default_main_program(), feed, list(fetch))


def matrices(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims) + 3 * np.eye(dims[-1])


def data(name: str, of: np.ndarray) -> Any:
    return layer.data(name, shape=list(of.shape), dtype=str(of.dtype))


def test_matrices_are_inverted_raised_and_measured() -> None:
    a = matrices(2, 4, 3, 3)
    x = data("x", a)
    inverse, det, slogdet, cube, back, zeroth, trace = run(
        {"x": a}, layer.inverse(x), layer.det(x), layer.slogdet(x), layer.matrix_power(x, 3), layer.matrix_power(x, -2), layer.matrix_power(x, 0),
        layer.trace(x, offset=1, axis1=2, axis2=3),
    )  # fmt: skip
    np.testing.assert_allclose(inverse, np.linalg.inv(a), rtol=1e-9)
    np.testing.assert_allclose(det, np.linalg.det(a), rtol=1e-9)
    np.testing.assert_allclose(slogdet, np.stack(np.linalg.slogdet(a)), rtol=1e-9)
    np.testing.assert_allclose(cube, np.linalg.matrix_power(a, 3), rtol=1e-9)
    np.testing.assert_allclose(back, np.linalg.matrix_power(a, -2), rtol=1e-7)
    np.testing.assert_array_equal(zeroth, np.broadcast_to(np.eye(3), a.shape))
    np.testing.assert_allclose(trace, np.trace(a, 1, 2, 3), rtol=1e-9)


def test_the_lower_axis_of_a_trace_has_the_rows() -> None:
    a = RNG.standard_normal((3, 4))
    one, other = run({"x": a}, layer.trace(data("x", a), offset=1), layer.trace(fs.default_main_program().global_block.vars["x"], 1, 1, 0))
    assert one == other == np.trace(a, 1)


@pytest.mark.parametrize("upper", [False, True])
def test_a_factor_solves_what_it_is_the_factor_of(upper: bool) -> None:
    b = matrices(2, 3, 3)
    a, right = b @ b.swapaxes(-1, -2), RNG.standard_normal((2, 3, 5))
    x, y = data("x", a), data("y", right)
    factor = layer.cholesky(x, upper)
    found, solved, twice = run(
        {"x": a, "y": right}, factor, layer.cholesky_solve(y, factor, upper),
        layer.triangular_solve(factor, layer.triangular_solve(factor, y, upper=upper, transpose=upper), upper=upper, transpose=not upper),
    )  # fmt: skip
    lower = np.linalg.cholesky(a)
    np.testing.assert_allclose(found, lower.swapaxes(-1, -2) if upper else lower, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(solved, np.linalg.solve(a, right), rtol=1e-7)
    np.testing.assert_allclose(twice, solved, rtol=1e-7)


@pytest.mark.parametrize("upper", [False, True])
def test_the_gradient_of_a_factor_along_symmetric_matrices(upper: bool) -> None:
    """A symmetric matrix moves in both halves at once, which the finite differences of single elements do not."""
    b = matrices(3, 3)
    x = data("x", b)
    x.stop_gradient = False
    weight = RNG.standard_normal((3, 3))
    factor = layer.cholesky(layer.matmul(x, x, transpose_y=True), upper)
    loss = layer.reduce_sum(layer.multiply(factor, data("weight", weight)))
    ((_, gradient),) = fs.append_backward(loss, ["x"])

    def at(moved: np.ndarray) -> float:
        lower = np.linalg.cholesky(moved @ moved.T)
        return float(((lower.T if upper else lower) * weight).sum())

    got = run({"x": b, "weight": weight}, gradient)[0]
    for step in 1e-6 * np.eye(9).reshape(9, 3, 3):
        np.testing.assert_allclose((got * step).sum() * 1e6, (at(b + step) - at(b - step)) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("a", "b"), [((3, 3), (3, 2)), ((3, 3), (3,)), ((2, 3, 3), (2, 3)), ((2, 3, 3), (3,)), ((2, 3, 3), (1, 3, 2)), ((4, 1, 3, 3), (2, 3, 2))]
)
def test_systems_are_solved_for_vectors_and_matrices(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    left, right = matrices(*a), RNG.standard_normal(b)
    (out,) = run({"x": left, "y": right}, layer.solve(data("x", left), data("y", right)))
    vectors = b == a[:-1] or len(b) == 1
    want = np.linalg.solve(left, right[..., None])[..., 0] if vectors else np.linalg.solve(left, right)
    assert out.shape == want.shape
    np.testing.assert_allclose(out, want, rtol=1e-8)


def test_whether_vectors_are_solved_for_must_be_known() -> None:
    x, y = layer.data("x", shape=["m", 3, 3]), layer.data("y", shape=["k", 3])
    with pytest.raises(ShapeError, match="whether Y holds vectors"):
        layer.solve(x, y)
    assert layer.solve(x, layer.data("z", shape=["m", 3])).dims == [-1, 3]


@pytest.mark.parametrize(
    ("make", "words"),
    [(layer.inverse, "no inverse"), (layer.cholesky, "not positive definite"), (lambda x: layer.matrix_power(x, -1), "no inverse")],
)
def test_what_cannot_be_taken_apart_is_an_error_of_the_run(make: Any, words: str) -> None:
    a = np.stack([np.eye(2), -np.ones((2, 2))])
    with pytest.raises(ExecutionError, match=f"{words}: matrix 1 of 2"):
        run({"x": a}, make(data("x", a)))
    b = np.ones((2, 1))
    with pytest.raises(ExecutionError, match="no inverse"):
        run({"x": a, "b": b}, layer.solve(fs.default_main_program().global_block.vars["x"], data("b", b)))


def test_products_of_vectors_and_chains() -> None:
    a, b, c, v = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 4)), RNG.standard_normal((4, 5)), RNG.standard_normal(3)
    x, y, z, w = data("x", a), data("y", b), data("z", c), data("w", v)
    chain, row, kron, mv, cross = run(
        {"x": a, "y": b, "z": c, "w": v}, layer.multi_dot([x, y, z]), layer.multi_dot([w, y, z]), layer.kron(x, y), layer.mv(x, w),
        layer.cross(x, layer.add(x, 1.0)),
    )  # fmt: skip
    np.testing.assert_allclose(chain, a @ b @ c, rtol=1e-9)
    np.testing.assert_allclose(row, v @ b @ c, rtol=1e-9)
    np.testing.assert_allclose(kron, np.kron(a, b))
    np.testing.assert_allclose(mv, a @ v)
    np.testing.assert_allclose(cross, np.cross(a, a + 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, np.inf, -np.inf])
def test_distances_are_norms_of_differences(p: float) -> None:
    a, b = RNG.standard_normal((2, 3)), RNG.standard_normal(3)
    (out,) = run({"x": a, "y": b}, layer.dist(data("x", a), data("y", b), p))
    np.testing.assert_allclose(out, np.linalg.norm((a - b).reshape(-1), p), rtol=1e-9)


def test_the_first_product_scales_and_gives_a_column_times_a_row() -> None:
    a, b = RNG.standard_normal((4, 3, 2)), RNG.standard_normal((4, 5, 3))
    u, v = RNG.standard_normal(3), RNG.standard_normal(5)
    block = fs.default_main_program().global_block
    both = block.apply("matmul", {"X": data("a", a), "Y": data("b", b)}, {"transpose_X": True, "transpose_Y": True, "alpha": 0.5})
    outer = block.apply("matmul", {"X": data("u", u), "Y": data("v", v)}, {"transpose_X": True, "transpose_Y": True})
    got, square = run({"a": a, "b": b, "u": u, "v": v}, both, outer)
    np.testing.assert_allclose(got, 0.5 * a.swapaxes(1, 2) @ b.swapaxes(1, 2), rtol=1e-9)
    np.testing.assert_allclose(square, np.outer(u, v), rtol=1e-9)


def test_a_transposed_vector_of_open_size_must_not_be_one_number() -> None:
    block = fs.default_main_program().global_block
    u, v = layer.data("u", shape=["n"]), layer.data("v", shape=["m"])
    out = block.apply("matmul", {"X": u, "Y": v}, {"transpose_X": True, "transpose_Y": True})
    feed = {"u": np.ones(3, "float32"), "v": np.ones(4, "float32")}
    assert run(feed, out)[0].shape == (3, 4)
    with pytest.raises(fs.GuardError, match="at least 2 numbers"):
        run(feed | {"u": np.ones(1, "float32")}, out)


def test_which_axis_a_cross_product_is_along_may_be_told_by_the_run() -> None:
    x = layer.data("x", shape=["m", "n"])
    out = layer.cross(x, layer.add(x, 1.0))
    for dims in ((3, 2), (2, 3)):
        a = RNG.standard_normal(dims).astype("float32")
        axis = dims.index(3)
        np.testing.assert_allclose(run({"x": a}, out)[0], np.cross(a, a + 1, axis=axis), rtol=1e-4, atol=1e-5)
    with pytest.raises(ExecutionError, match="must be 3"):
        run({"x": np.ones((2, 2), "float32")}, out)


def applied(type: str, x: Any, attrs: dict[str, Any] | None = None) -> Any:
    return fs.default_main_program().global_block.apply(type, {"X": x}, attrs)


@pytest.mark.parametrize(("type", "result"), [("eigh", 0), ("eigh", 1), ("eigvalsh", 0)])
def test_the_gradient_of_eigenvalues_along_symmetric_matrices(type: str, result: int) -> None:
    b = matrices(3, 3)
    x = data("x", b)
    x.stop_gradient = False
    weight = RNG.standard_normal((3, 3) if result else (3,))
    found = applied(type, layer.matmul(x, x, transpose_y=True))[result]
    ((_, gradient),) = fs.append_backward(layer.reduce_sum(layer.multiply(found, data("weight", weight))), ["x"])
    whole = np.linalg.eigh(b @ b.T)

    def at(moved: np.ndarray) -> float:
        values, vectors = np.linalg.eigh(moved @ moved.T)
        signs = np.sign((vectors * whole[1]).sum(0)) * np.sign((whole[1] * mine).sum(0))  # those of the ones that came out
        return float(((vectors * signs if result else values) * weight).sum())

    got, mine = run({"x": b, "weight": weight}, gradient, *([found] if result else []))[0], whole[1]
    if result:
        mine = run({"x": b, "weight": weight}, found)[0]
    for step in 1e-6 * np.eye(9).reshape(9, 3, 3):
        np.testing.assert_allclose((got * step).sum() * 1e6, (at(b + step) - at(b - step)) / 2e-6, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dims", [(4, 2), (2, 4), (2, 3, 3)])
def test_matrices_are_products_of_their_parts(dims: tuple[int, ...]) -> None:
    a = RNG.standard_normal(dims)
    x = data("x", a)
    block = fs.default_main_program().global_block
    (u, s, vh), (q, r), (packed, pivots, _) = (applied(t, x) for t in ("svd", "qr", "lu"))
    p, lower, upper = block.apply("lu_unpack", {"X": packed, "Pivots": pivots})
    rank = applied("matrix_rank", x)
    u, s, vh, q, r, p, lower, upper, rank = run({"x": a}, u, s, vh, q, r, p, lower, upper, rank)
    np.testing.assert_allclose(u * s[..., None, :] @ vh, a, atol=1e-12)
    np.testing.assert_allclose(q @ r, a, atol=1e-12)
    np.testing.assert_allclose(p @ lower @ upper, a, atol=1e-12)
    np.testing.assert_array_equal(rank, np.linalg.matrix_rank(a))
    assert (np.tril(r, -1) == 0).all() and (np.triu(lower, 1) == 0).all()


def test_what_is_parted_has_a_gradient_only_where_there_is_one() -> None:
    x = layer.data("x", shape=[4, 2], stop_gradient=False)
    for type, attrs, says in [("qr", {"mode": "complete"}, "more rows than columns"), ("svd", {"full_matrices": True}, "but through S")]:
        with pytest.raises(fs.SchemaError, match=says):
            fs.append_backward(layer.reduce_sum(applied(type, x, attrs)[0]), ["x"])


def test_pivots_outside_of_a_matrix_are_an_error_of_the_run() -> None:
    x, pivots = data("x", np.eye(2)), layer.data("pivots", shape=[2], dtype="int32")
    parts = fs.default_main_program().global_block.apply("lu_unpack", {"X": x, "Pivots": pivots})
    with pytest.raises(ExecutionError, match=r"Pivots must be in 1\.\.2; seen 1\.\.3"):
        run({"x": np.eye(2), "pivots": np.array([1, 3], "int32")}, parts[0])


@pytest.mark.parametrize("driver", ["gels", "gelsy", "gelsd", "gelss"])
def test_least_squares_of_no_columns_and_of_columns_that_depend_on_one_another(driver: str) -> None:
    block = fs.default_main_program().global_block
    x, y = layer.data("x", shape=[4, 2], dtype="float64"), layer.data("y", shape=[4, "columns"], dtype="float64")
    out, rank = block.create_variable("solution", x.spec), block.create_variable("rank", x.spec)
    made = {"Solution": out.name, **({} if driver == "gels" else {"Rank": rank.name})}
    block.append_op("lstsq", {"X": x.name, "Y": y.name}, made, {"driver": driver, "rcond": 1e-6})
    full, thin = np.array([[1.0, 2], [3, 4], [5, 6], [7, 9]]), np.array([[1.0, 0], [1, 0], [1, 0], [1, 0]])
    run = fs.Executor().run
    assert run(feed={"x": full, "y": np.zeros((4, 0))}, fetch=["solution"])[0].shape == (2, 0)
    if driver == "gels":
        with pytest.raises(fs.ExecutionError, match=r"full rank.*gelsy, gelsd and gelss do not"):
            run(feed={"x": thin, "y": np.ones((4, 1))}, fetch=["solution"])
    else:
        assert run(feed={"x": thin, "y": np.zeros((4, 0))}, fetch=["rank"])[0] == 1
