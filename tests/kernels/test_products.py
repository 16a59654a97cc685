"""Products on oneDNN: the same numbers as torch's own, whatever the number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from foreshape.kernels import products
from foreshape.values.torch_proxy import torch


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 100])
def test_products_of_rows_that_are_not_whole_steps(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LARGE", 0)
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    a, w, bias, d = (torch.from_numpy(np.random.RandomState(k).standard_normal(s).astype("f")) for k, s in enumerate([(rows, 24), (24, 40), 40, (rows, 40)]))
    close = torch.testing.assert_close
    close(products.linear(a, w, bias), torch.addmm(bias, a, w))
    close(products.mm(a, w), a @ w)
    close(products.mm(d, w.t()), d @ w.t())
    close(products.mm(a.t(), d), a.t() @ d)
    close(products.add_product_(w.clone(), a.t(), d, -0.5), w - 0.5 * (a.t() @ d))
    cube = a[None].expand(3, rows, 24)
    close(products.onednn_linear()(cube, w.t(), bias, "none", (), ""), cube @ w + bias)
