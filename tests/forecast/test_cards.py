"""Cards by the names of torch, and bytes without a unit."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_texts import Texts, batch, entropy

import foreshape as fs
from foreshape.apps.forecast.cards import CARDS, card_of


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA RTX A6000", "A6000-48GB"),
        ("NVIDIA H100 NVL", "H100-94GB"),
        ("NVIDIA GH200 480GB", "GH200-96GB"),
        ("H100 SXM", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB"),
        ("NVIDIA H100 PCIe", "H100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100-40GB"),
        ("Tesla V100-SXM2-32GB", "V100-32GB"),
        ("Tesla P100-PCIE-16GB", "P100-16GB"),
        ("NVIDIA H200", "H200-141GB"),
        ("NVIDIA B200", "B200-180GB"),
        ("NVIDIA L4", "L4-24GB"),
        ("NVIDIA A10G", "A10G-24GB"),
        ("Tesla T4", "T4-16GB"),
        ("RTX4090-24GB", "RTX4090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("RTX 2080 Ti 11GB", "RTX2080TI"),
    ],
)
def test_a_card_is_known_by_the_name_that_torch_has(device: str, name: str) -> None:
    assert card_of(device) is CARDS[name]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": 24}, "device must be a card, or its bytes; seen 24: did you mean '24GiB'"),
        ({"device": "RTX4090-48GB"}, "device must be a card, or bytes"),
        ({"device": "RTX4090 Laptop"}, "device must be a card, or bytes"),
        ({"limit": "10"}, "limit must be a number of bytes, or one with its unit; seen '10': did you mean '10GiB'"),
        ({"limit": 80}, "limit must be .* seen 80: did you mean '80GiB'"),
    ],
    ids=str,
)
def test_bytes_without_a_unit_and_other_cards_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.SchemaError, match=words):
        fs.forecast(Texts(), batch(2, 8), loss=entropy, **options)
    assert fs.forecast(Texts(), batch(2, 8), loss=entropy, limit=str(1 << 30), advice=False).available == 1 << 30
