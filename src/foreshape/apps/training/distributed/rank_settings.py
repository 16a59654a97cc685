"""Settings of a training that all ranks must share, compared before the first step: otherwise ranks would wait for one another, or train apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from foreshape.apps.training.checkpoint.resume_check import Scalar
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import RankError
from foreshape.machine.communication.join import Ranks
from foreshape.machine.communication.process_group import numbers_of

_MOST_BYTES, _MOST_SHOWN, _MOST_WORDS = 1 << 14, 5, 80
"""The bytes of all settings of a rank; how many of them an error tells, and the characters of each."""


def compare_settings(ranks: Ranks, settings: Mapping[str, Scalar]) -> None:
    """Compare the settings of all ranks.

    Args:
        settings: the settings of this rank, by name.

    Raises:
        RankError: they differ; it names them with the values of each group of ranks. All ranks raise it.
    """
    if ranks.team is None:
        return
    text = json.dumps({name: str(value)[:_MOST_WORDS] for name, value in settings.items()}).encode()[:_MOST_BYTES]
    digests = ranks.all_of(torch.tensor(list(hashlib.sha256(text).digest()), dtype=torch.uint8))
    if len({bytes(numbers_of(d)) for d in digests}) == 1:
        return
    padded = torch.zeros(_MOST_BYTES, dtype=torch.uint8)
    padded[: len(text)] = torch.tensor(list(text), dtype=torch.uint8)
    all_settings = [json.loads(bytes(numbers_of(t)).rstrip(b"\0")) for t in ranks.all_of(padded)]
    names = list(dict.fromkeys(name for rank_settings in all_settings for name in rank_settings))
    apart = [
        f"{name}: {_by_rank([rank_settings.get(name, 'nothing') for rank_settings in all_settings])}"
        for name in names
        if len({rank_settings.get(name) for rank_settings in all_settings}) > 1
    ]
    left_out = f"; and {len(apart) - _MOST_SHOWN} more" if len(apart) > _MOST_SHOWN else ""
    error = RankError(f"the ranks are to train in different ways. {'; '.join(apart[:_MOST_SHOWN])}{left_out}")
    error.explained = True
    raise error


def _by_rank(values: list[str]) -> str:
    """Return ``rank 0, 2: one value | rank 1: another``."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    return " | ".join(f"rank {', '.join(numbers)}: {value}" for value, numbers in ranks.items())
