"""Products on oneDNN: the same numbers as torch's own, whatever the number of rows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.kernel_calls import columns, entries, permuted, repeated, turned_columns

from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import torch
from foreshape.machine.kernels import products
from foreshape.machine.kernels.onednn_library import library


@pytest.mark.parametrize("switch", ["", "torch"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
def test_products_of_rows_that_are_not_whole_steps(rows: int, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESHAPE_ONEDNN", switch)
    monkeypatch.setattr(products, "LARGE", 0)
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    a, w, bias, d = (torch.from_numpy(np.random.RandomState(k).standard_normal(s).astype("f")) for k, s in enumerate([(rows, 24), (24, 40), 40, (rows, 40)]))
    close = torch.testing.assert_close
    close(products.linear(a, w, bias), torch.addmm(bias, a, w))
    close(products.mm(a, w), a @ w)
    close(products.mm(d, w.t()), d @ w.t())
    close(products.mm(a.t(), d), a.t() @ d)
    close(products.add_product_(w.clone(), a.t(), d, -0.5), w - 0.5 * (a.t() @ d))
    close(products.add_product_(w.t().clone().t(), a.t(), d, -0.5), w - 0.5 * (a.t() @ d))
    close(products.add_product_(w.clone(), a.t().contiguous(), d.t().contiguous().t(), -0.5), w - 0.5 * (a.t() @ d))
    cube = a[None].expand(3, rows, 24)
    close(products.onednn_linear()(cube, w.t(), bias, "none", (), ""), cube @ w + bias)


VIEWS = [columns, turned_columns, entries, permuted, *(partial(repeated, axis=axis) for axis in (0, -1))]


@pytest.mark.parametrize("view", VIEWS, ids=[str(n) for n in range(len(VIEWS))])
def test_views_come_to_the_kernel_without_gaps(view: Callable[[torch.Tensor], torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, seen = private.linear_pointwise, list[torch.Tensor]()

    def spy(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *rest: object) -> torch.Tensor:
        seen.extend(t for t in (weight, bias) if t is not None)
        return kernel(x, weight, bias, *rest)

    monkeypatch.setattr(private, "linear_pointwise", spy)
    monkeypatch.setenv("FORESHAPE_ONEDNN", "torch")
    monkeypatch.setattr(products, "LARGE", 0)
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    for cached in (products.onednn_linear, products._sparing_linear):  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(products, cached.__name__, cached.__wrapped__)
    x, w, d, bias = view(torch.randn(32, 24)), view(torch.randn(24, 40)), view(torch.randn(32, 40)), view(torch.randn(40))
    rows, weight, of_rows, numbers = (t.contiguous() for t in (x, w, d, bias))
    close = torch.testing.assert_close
    close(products.mm(x, w), rows @ weight)
    close(products.mm(d, w.t()), of_rows @ weight.t())
    close(products.mm(x.t(), d), rows.t() @ of_rows)
    close(products.add_product_(weight.clone(), x.t(), d, 2.0), weight + 2.0 * (rows.t() @ of_rows))
    close(products.linear(x, w, bias), rows @ weight + numbers)
    close(products.onednn_linear()(x, w.t(), bias, "none", [], ""), rows @ weight + numbers)
    assert len(seen) >= 8 and all(t.is_contiguous() or t.t().is_contiguous() for t in seen)


@pytest.mark.parametrize(("vendor", "flags", "preferred"), [("AuthenticAMD", "fma avx2 avx512f avx512dq", True), ("AuthenticAMD", "fma avx avx2", False),
                                                            ("GenuineIntel", "avx2 avx512f", False)])  # fmt: skip
def test_onednn_is_preferred_where_blas_leaves_registers_unused(vendor: str, flags: str, preferred: bool, tmp_path: Path) -> None:
    of_one = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: one\nflags\t\t: fpu sse {flags}\n"
    (tmp_path / "cpuinfo").write_text(of_one + "\n" + of_one.replace("0", "1", 1))
    assert products._is_amd_with_avx512(str(tmp_path / "cpuinfo")) is preferred  # pyright: ignore[reportPrivateUsage]
    assert not products._is_amd_with_avx512(str(tmp_path / "none"))  # pyright: ignore[reportPrivateUsage]


TAKEN = """
import torch
from foreshape.machine.kernels import products

products.prefers_onednn = lambda: True

def most(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) << 10

def add(k, m, n):
    a, b, c = torch.randn(k, m), torch.randn(k, n), torch.zeros(m, n)
    open("/proc/self/clear_refs", "w").write("5")
    before = most("VmRSS")
    products.add_product_(c, a.t(), b, 1.0)
    return most("VmHWM") - before

add(128, 128, 128)  # the machine code of the kernels
for sizes in ((128, 784, 1024), (512, 2048, 512), (1024, 512, 4096)):
    print(add(*sizes), products.adding_workspace(sizes[1], sizes[0], sizes[2]))
"""


@pytest.mark.long
@pytest.mark.skipif(library() is None or not os.access("/proc/self/clear_refs", os.W_OK), reason="needs oneDNN's own library, and Linux to tell of memory")
def test_a_product_added_at_once_takes_no_more_than_planned() -> None:
    done = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, check=True)
    pairs = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(pairs) == 3
    assert all(taken < planned + (1 << 19) for taken, planned in pairs), pairs  # and what threads have besides
    assert max(taken for taken, _ in pairs) > 1 << 20  # the measure sees it
