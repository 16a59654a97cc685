"""From what users have as ragged data to a `LoDTensor`."""

from __future__ import annotations

from typing import Any

from foreshape.engine.values import LoDTensor
from foreshape.errors import FeedError
from foreshape.spec import Spec


def as_ragged(name: str, given: Any, spec: Spec) -> LoDTensor:
    """What was fed for the ragged variable ``name``, as a `LoDTensor` with as many levels as ``spec`` has.

    Raises:
        FeedError: it is not ragged, or has another number of levels.
    """
    if not isinstance(given, LoDTensor):
        raise FeedError(f"{name} is ragged, {spec.text()}; feed a LoDTensor(data, sequence_lengths)")
    if given.lod_level != spec.lod_level:
        raise FeedError(f"{name} has {spec.lod_level} levels of sequences; fed are {given.lod_level}")
    return given
