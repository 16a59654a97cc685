"""Cards with an NVIDIA GPU: the bytes of each for a process of torch, and the figures of its generation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError

MIB: Final = 1 << 20
_GIB: Final = 1 << 30


class Card(NamedTuple):
    """A card, as a process of torch meets it.

    Attributes:
        name: as ``device=`` takes it.
        total: bytes as ``cudaMemGetInfo`` says; read off torch's own messages, and a few MiB apart between drivers (modelled).
        capability: the compute capability, as (9, 0); certain.
        context: bytes of the CUDA context and of loaded kernels, outside of the allocator (modelled: no card was measured).
    """

    name: str
    total: int
    capability: tuple[int, int]
    context: int = 480 * MIB

    @property
    def blas_workspace(self) -> int:
        """Return the bytes of a workspace of cuBLAS, by ``CublasHandlePool.cpp``: certain for 9.0 and before 9.0, modelled for newer cards."""
        return 32 * MIB if self.capability >= (9, 0) and self.capability != (12, 1) else 8_519_680

    @property
    def prefers_cudnn_attention(self) -> bool:
        """Tell whether torch 2.11 with cuDNN from 9.15.1 on takes cuDNN's attention first, as ``sdp_utils.cpp`` reads (modelled)."""
        return self.capability in ((9, 0), (10, 0), (10, 3))

    @property
    def flash_attention(self) -> bool:
        """Tell whether torch's flash attention runs: certain."""
        return self.capability >= (8, 0)

    @property
    def available(self) -> int:
        """Return the bytes left for the allocator where nothing else runs on the card."""
        return self.total - self.context

    @property
    def certainty(self) -> Mapping[str, str]:
        """Return field -> "certain", "modelled" or "unknown"."""
        blas = "certain" if self.capability <= (9, 0) else "modelled"
        return {"total": "modelled", "context": "modelled", "capability": "certain", "blas_workspace": blas, "convolution_workspaces": "unknown"}

    def __str__(self) -> str:
        from foreshape.compiler.memory import byte_text

        return f"{self.name} ({byte_text(self.available)} free)"


def _card(name: str, gib: float, capability: tuple[int, int], context: int = 480) -> Card:
    return Card(name, int(gib * _GIB), capability, context * MIB)


CARDS: Final[Mapping[str, Card]] = {
    card.name: card
    for card in (
        _card("B200-180GB", 178.35, (10, 0), 600),
        _card("GH200-96GB", 94.5, (9, 0), 520),
        _card("H200-141GB", 139.80, (9, 0), 520),
        _card("H100-94GB", 93.10, (9, 0), 520),
        _card("H100-80GB", 79.11, (9, 0), 520),
        _card("A100-80GB", 79.15, (8, 0), 450),
        _card("A100-40GB", 39.39, (8, 0), 450),
        _card("A6000-48GB", 47.53, (8, 6), 400),
        _card("A40-48GB", 44.34, (8, 6), 400),
        _card("A10-24GB", 21.99, (8, 6), 350),
        _card("A10G-24GB", 22.06, (8, 6), 350),
        _card("L40S-48GB", 44.40, (8, 9), 450),
        _card("L4-24GB", 22.03, (8, 9), 350),
        _card("V100-32GB", 31.73, (7, 0), 350),
        _card("V100-16GB", 15.77, (7, 0), 350),
        _card("P100-16GB", 15.89, (6, 0), 300),
        _card("T4-16GB", 14.56, (7, 5), 300),
        _card("RTX5090", 31.36, (12, 0), 550),
        _card("RTX4090", 23.52, (8, 9), 400),
        _card("RTX4080", 15.60, (8, 9), 400),
        _card("RTX3090", 23.69, (8, 6), 350),
        _card("RTX3080", 9.77, (8, 6), 300),
        _card("RTX3060", 11.76, (8, 6), 300),
        _card("RTX2080TI", 10.75, (7, 5), 300),
    )
}
"""The cards by their names."""
_PREFERRED: Final = {"H100": "H100-80GB", "H200": "H200-141GB", "A100": "A100-40GB", "V100": "V100-16GB"}
"""The smallest card of a name without its bytes."""
_OTHER_NAMES: Final = {
    **{"RTXA6000": "A6000-48GB", "H100NVL": "H100-94GB", "H200NVL": "H200-141GB"},
    **{"GH200480GB": "GH200-96GB", "GH200120GB": "GH200-96GB"},  # by the memory of the processor beside it
}
"""Cards as torch names them, without spaces."""
_LEAST: Final = 64 * MIB
"""Less is no memory of a card: a number without its unit."""


def card_of(device: str | int | Card) -> Card:
    """Return a card by its name, as ``"H100-80GB"`` or ``"rtx 4090"``, or a card with so many bytes, as ``"24GiB"``, of capability 8.0.

    A name without bytes, as ``"A100"``, is the smallest card of this name.

    Raises:
        SchemaError: neither a known card nor a number of bytes.
    """
    if isinstance(device, Card):
        return device
    from foreshape.compiler.memory import byte_text, bytes_of  # the completion of the shell asks for the names alone

    if isinstance(device, str):
        key = re.sub(r"[\s_]|^CUDA:|NVIDIA|GEFORCE|TESLA|-?SXM\d*|-?PCIE|HBM\d\w?", "", device.upper())
        short = key.replace("-", "")
        for name in (_OTHER_NAMES.get(short), _without_bytes(short)):
            if name is not None:
                return CARDS[name]
        for name, card in CARDS.items():
            if short in (name.replace("-", ""), name.partition("-")[0]) and name.startswith(_PREFERRED.get(short, "")):
                return card
        if not re.fullmatch(r"[\d.,]+\s*([KMGT]i?B?|B)", device.strip(), re.IGNORECASE):  # without a unit, 4090 is a card and not its bytes
            likely = [name for name in CARDS if len(short) == 4 and short in name] or [f"{short}GiB"] * short.isdigit()
            hint = f": did you mean {likely[0]!r}?" if likely else did_you_mean(key, CARDS)
            words = f"device must be a card, or bytes with their unit as '24GiB'; seen {device!r:.100}{hint} (cards: {', '.join(CARDS)})"
            raise SchemaError(words).told(slot="device", seen=device)
    total = bytes_of(device)
    if total <= 0:
        raise SchemaError.must("device", "a card or a positive number of bytes", device)
    if not isinstance(device, str) and total < _LEAST:
        raise SchemaError.must("device", "a card, or its bytes", device, hint=f": did you mean '{device}GiB'?")
    return Card(byte_text(total), total, (8, 0))


def _without_bytes(short: str) -> str | None:
    """Return a card known without its bytes, of a name with them, as ``"RTX409024GB"``; None where they are another card's."""
    for name, card in CARDS.items():
        match = re.fullmatch(rf"{name}(\d+)GI?B", short)
        if match is not None and abs(card.total / (int(match[1]) * _GIB) - 1) < 0.1:
            return name
    return None


def limit_of(limit: int | str) -> int:
    """Return the bytes of a limit.

    Raises:
        SchemaError: so few bytes as without a unit. MemoryPlanError: no number of bytes.
    """
    from foreshape.compiler.memory import bytes_of

    size = bytes_of(limit)
    has_unit = isinstance(limit, str) and not limit.strip().isdecimal()
    if not has_unit and size < (_LEAST if isinstance(limit, str) else MIB):
        raise SchemaError.must("limit", "a number of bytes, or one with its unit", repr(limit), hint=f": did you mean '{size}GiB'?")
    return size
