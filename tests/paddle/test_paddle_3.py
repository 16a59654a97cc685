"""Programs that PaddlePaddle 3.3.1 exports compute the same here, and, converted, in PaddlePaddle 2.6.2."""

from __future__ import annotations

import os

import pytest
from exported3 import compare
from known import EXPORTED
from sides import Outcome

pytestmark = pytest.mark.paddle
LATER = {"layers": 1, "types": 3}
"""Kind -> so many need operators that PaddlePaddle 2 lacks."""
PYTHON_3 = os.environ.get("PADDLE3_PYTHON", "")


def held(outcomes: list[Outcome], least: int, side: str) -> None:
    """Require that all are equal but those whose difference is known, and that these still differ."""
    wrong = [o for o in outcomes if o.state in ("differs", "failed") and (side, o.name) not in EXPORTED]
    assert not wrong, "\n".join(f"{o.name}: {o.state}: {o.words}" for o in wrong)
    fine = [o.name for o in outcomes if o.state == "equal" and (side, o.name) in EXPORTED]
    assert not fine, f"known as different, and equal: {', '.join(fine)}"
    assert sum(o.state == "equal" for o in outcomes) >= least


@pytest.mark.skipif(not PYTHON_3, reason="PADDLE3_PYTHON names no Python with paddlepaddle 3.3.1")
@pytest.mark.parametrize(("kind", "least"), [("layers", 130), ("flow", 34), ("types", 24), ("models", 8)])
def test_exports_compute_the_same_here_and_in_paddlepaddle_2(kind: str, least: int) -> None:
    here, there = compare(PYTHON_3, kind, os.environ["PADDLE_PYTHON"])
    held(here, least, "here")
    held(there, least - LATER.get(kind, 0), "there")
