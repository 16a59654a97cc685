"""The implementations that oneDNN chooses for views are those that it chooses for what lies in a row, and none of them is its reference."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from support.implementations import Told, told

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch has no oneDNN here")
ROW = "in a row"
NETWORKS = ("frozen", "trained")


@cache
def seen() -> Told:
    return told()


def references(of: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """The slow ones: "ref:any" of an inner product takes some 600 times as long as another."""
    return {(kind, name) for kind, name in of if name.startswith("ref")}


@pytest.mark.long
def test_products_are_made_by_onednn() -> None:
    kinds = {what: {kind for kind, _ in of} for (what, how), of in seen().items() if how == ROW}
    assert all("inner_product" in kinds[what] for what in ("mm", "linear", "onednn_linear"))
    assert kinds["add_product_"] & {"inner_product", "gemm_api"}  # in pieces, or by oneDNN's own library at once
    assert all("convolution" in kinds[what] for what in ("convolution", "convolution gradient"))


@pytest.mark.long
def test_no_view_leads_a_kernel_to_a_reference() -> None:
    worse = {(what, how): found for (what, how), of in seen().items() if how not in NETWORKS and (found := references(of) - references(seen()[what, ROW]))}
    assert not worse
    assert len([1 for _, how in seen() if how != ROW]) > 150


@pytest.mark.long
def test_no_network_comes_to_a_reference() -> None:
    """Of a recurrence there is no other implementation; of the others, what operands in a row come to on this processor."""
    usual = {one for (_, how), of in seen().items() if how == ROW for one in references(of)}
    ran = {key: of for key, of in seen().items() if key[1] in NETWORKS}
    worse = {key: found for key, of in ran.items() if (found := {one for one in references(of) - usual if one[0] != "rnn"})}
    assert not worse
    assert len(ran) == 12 and all(ran.values())
