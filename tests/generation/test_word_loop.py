"""The instructions of the word loop beside numpy, for odd sizes and several threads; as compiled, and as read back from numba's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foreshape.machine.kernels import grouped_weights, instructions, word_loop
from foreshape.machine.kernels.loop_team import run_together

pytestmark = pytest.mark.skipif(not word_loop.can_compile(), reason="numba is not installed")
SIZES = [(1, 4, 1), (1, 33, 70), (2, 64, 64), (3, 66, 129), (4, 100, 15), (5, 128, 200), (9, 36, 77), (16, 260, 66)]


def call(code: int, operands: list[Any], dims: list[int], numbers: tuple[float, ...] = (), threads: int = 2, *, in_parts: bool = True) -> None:
    """Run one instruction over arrays."""
    table, factors = np.zeros((1, word_loop.WIDTH), np.int64), np.zeros((1, word_loop.NUMBERS))
    table[0, :2] = code, word_loop.IN_PARTS * in_parts
    table[0, 2 : 2 + len(operands)] = [0 if x is None else x.ctypes.data for x in operands]
    table[0, 2 + word_loop.OPERANDS : 2 + word_loop.OPERANDS + len(dims)] = dims
    factors[0, : len(numbers)] = numbers
    assert run_together(table, factors, 1, threads)


def drawn(*dims: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed + sum(dims)).randn(*dims).astype("float32")


@pytest.mark.parametrize("threads", [1, 3])
def test_products(threads: int) -> None:
    for rows, inner, columns in SIZES:
        x, weight, out = drawn(rows, inner), drawn(inner, columns), np.full((rows, columns), np.nan, "float32")
        call(word_loop.PRODUCT, [x, weight, out], [rows, inner, columns], threads=threads)
        np.testing.assert_allclose(out, x @ weight, rtol=1e-4, atol=1e-4)
        out[:] = np.nan
        turned = np.ascontiguousarray(weight.T)
        call(word_loop.TURNED_PRODUCT, [x, turned, out], [rows, inner, columns], threads=threads)
        np.testing.assert_allclose(out, x @ weight, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_offsets", [False, True])
@pytest.mark.parametrize("bits", [8, 4])
def test_packed_products(bits: Any, has_offsets: bool) -> None:
    for rows, inner, columns in SIZES:
        group = grouped_weights.group_of(inner, 16)
        if not group:
            continue
        packed, scales = grouped_weights.pack(torch.from_numpy(drawn(inner, columns)), bits, group)
        x = torch.from_numpy(drawn(rows, inner))
        offsets = torch.from_numpy(drawn(*scales.shape)) * scales if has_offsets else None
        unpacked = grouped_weights.unpack(packed, scales, bits, offsets).transpose(0, 1).reshape(inner, -1)[:, :columns]
        torch.testing.assert_close(grouped_weights.product(x, packed, scales, bits, columns, offsets), x @ unpacked, rtol=1e-4, atol=1e-4)


def test_a_rows_bits_do_not_depend_on_the_number_of_rows() -> None:
    for _, inner, columns in SIZES:
        x, weight = drawn(11, inner), drawn(inner, columns)
        turned = np.ascontiguousarray(weight.T)
        for code, operand in ((word_loop.PRODUCT, weight), (word_loop.TURNED_PRODUCT, turned)):
            results: list[Any] = []
            for count in (1, 3, 4, 7, 11):
                out = np.zeros((count, columns), "float32")
                call(code, [x[:count], operand, out], [count, inner, columns], threads=1 + count % 3)
                results.append(out[0].copy())
            assert all(np.array_equal(result, results[0]) for result in results), (code, inner, columns)


@pytest.mark.parametrize("in_parts", [False, True])
def test_functions_of_elements(in_parts: bool) -> None:
    x = np.concatenate([drawn(200), np.array([-100.0, 100.0, 0.0, 30.0], "float32")])
    wide = torch.from_numpy(x)
    for kind, expected in (
        (word_loop.AFFINE, 2 * wide + 3),
        (word_loop.SQUARE, wide**2),
        (word_loop.SINE, wide.sin()),
        (word_loop.COSINE, wide.cos()),
        (word_loop.TANH, wide.tanh()),
        (word_loop.SWISH, torch.nn.functional.silu(wide)),
        (word_loop.GELU, torch.nn.functional.gelu(wide)),
        (word_loop.GELU_BY_TANH, torch.nn.functional.gelu(wide, approximate="tanh")),
        (word_loop.RELU, wide.relu()),
    ):
        out = np.zeros_like(x)
        call(word_loop.UNARY, [x, None, out], [kind, len(x)], (2.0, 3.0), in_parts=in_parts)
        np.testing.assert_allclose(out, expected.numpy(), rtol=2e-6, atol=3e-7, err_msg=str(kind))


def test_operations_of_two_operands_and_sums_of_rows() -> None:
    a, b, row, column = drawn(6, 5, 7), drawn(6, 5, 7, seed=1), drawn(7), drawn(6, 1, 1)
    for kind, operation in ((word_loop.ADD, np.add), (word_loop.SUBTRACT, np.subtract), (word_loop.MULTIPLY, np.multiply), (word_loop.DIVIDE, np.divide)):
        for other, steps in ((b, (35, 7, 1)), (row, (0, 0, 1)), (column, (1, 0, 0))):
            out = np.zeros_like(a)
            call(word_loop.BINARY, [a, other, out], [6, 5, 7, kind, 35, 7, 1, *steps])
            np.testing.assert_allclose(out, operation(a, other), rtol=1e-6)
        flat = np.zeros(210, "float32")
        call(word_loop.BINARY, [a, b, flat], [1, 1, 210, kind, 0, 0, 1, 0, 0, 1], threads=3)
        np.testing.assert_allclose(flat.reshape(a.shape), operation(a, b), rtol=1e-6)
    out = np.zeros(30, "float32")
    call(word_loop.MEAN, [a, None, out], [30, 7], (1 / 7,))
    np.testing.assert_allclose(out, a.mean(-1).ravel(), rtol=1e-5, atol=1e-6)
    out = np.zeros((30, 7), "float32")
    call(word_loop.LAYER_NORM, [a, row, out, row], [30, 7], (1e-5,))
    expected = torch.nn.functional.layer_norm(torch.from_numpy(a).view(30, 7), [7], torch.from_numpy(row), torch.from_numpy(row), 1e-5)
    np.testing.assert_allclose(out, expected.numpy(), rtol=1e-4, atol=1e-5)
    out = np.zeros((6, 7, 5), "float32")
    call(word_loop.COPY, [a, None, out], [6, 5, 7, 35, 7, 1, 35, 1, 5])
    np.testing.assert_array_equal(out, a.transpose(0, 2, 1))


@pytest.mark.long
def test_code_read_back_from_numbas_folder_computes_the_same(tmp_path: Path) -> None:
    """The first process compiles, the second reads: both run the tests of this file and of sampling."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    files = [str(Path(__file__).with_name(name)) for name in ("test_word_loop.py", "test_word_sampling.py")]
    for _ in range(2):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files, "-m", "not long"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:]
    assert any(tmp_path.rglob(f"word_loop.follow_{instructions.sources_checksum(instructions.FOLDER):08x}-*.nbc"))


def test_code_on_disk_is_of_all_files_with_functions(tmp_path: Path) -> None:
    """Numba looks at the file of the outermost function alone: after a change of another one it read back older code."""
    (tmp_path / "one.py").write_text("x = 1")
    (tmp_path / "two.py").write_text("y = 1")
    before = instructions.sources_checksum(tmp_path)
    (tmp_path / "two.py").write_text("y = 2")
    assert instructions.sources_checksum(tmp_path) != before
