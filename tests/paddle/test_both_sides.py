"""PaddlePaddle 2.6.2 computes what is computed here, but what `known` says. ``--update`` keeps what came of it for ``docs/compatibility.md``."""

from __future__ import annotations

import pytest
from known import AS_FOUND, KNOWN
from networks import LACKING
from networks import compare as compare_networks
from opened import compare as compare_opened
from pairs import compare as compare_pairs
from results import by_program, grouped, keep, wrong
from samples import compare as compare_samples
from sides import Outcome, paddle_python

pytestmark = pytest.mark.paddle


def held(outcomes: list[Outcome], least: int) -> None:
    assert not wrong(outcomes), wrong(outcomes)
    assert sum(o.state == "equal" for o in outcomes) >= least


def test_every_operators_samples(update: bool) -> None:
    found = compare_samples(paddle_python())
    if update:
        keep("operators", grouped(found, lambda o: o.of))
    held(found, 1500)
    unused = set(KNOWN) - AS_FOUND - {o.of for o in found if o.state == "known"}
    assert not unused, f"no sample shows what is known of {', '.join(sorted(unused))}"


def test_programs_described_here(update: bool) -> None:
    found = compare_pairs(paddle_python())
    if update:
        keep("described here", by_program(found))
    held(found, len(found))
    assert len(found) >= 20


@pytest.mark.parametrize(("kind", "least"), [("functions", 700), ("layers", 45), ("training", 13), ("models", 39)])
def test_programs_built_there(kind: str, least: int, update: bool) -> None:
    found = compare_opened(paddle_python(), kind)
    if update:
        keep(kind, by_program(found))
    held(found, least)


PACKAGES = {"language": 28, "ocr": 36, "training": 10, "classification": 16, "detection": 56, "segmentation": 98, "generators": 36}
"""Kind of networks -> so many were equal at least."""


@pytest.mark.parametrize(("kind", "least"), PACKAGES.items())
def test_networks_of_packages(kind: str, least: int, update: bool) -> None:
    found = compare_networks(paddle_python(), kind)
    absent = {o.words for o in found if o.state == "absent"}
    if absent:
        pytest.skip(f"{', '.join(sorted(absent))}; tests/paddle/requirements.txt has what is needed")
    if update:
        keep(f"networks: {kind}", by_program(found))
    held(found, least)
    assert not [o.name for o in found if o.state == "missing" and o.name not in LACKING]
