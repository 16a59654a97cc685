"""Networks of public model zoos: inferred and computed as PaddlePaddle has them. As a script it prints a table of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.zoo import NAMES, TOLERANCE, feed_value, kept, network, parameter_value

QUICK = ("clas_PPLCNet_x0_25", "ocr_crnn_mv3", "seg_enet")
"""Small ones, each of another task; of the others the quick suite has none."""
EACH = [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in NAMES]


def test_the_networks_are_here() -> None:
    assert len(NAMES) == 34 and set(QUICK) <= set(NAMES)
    assert {n.partition("_")[0] for n in NAMES} == {"clas", "det", "ocr", "seg", "vision"}


def test_the_comparisons_can_fail() -> None:
    of = network(QUICK[0])
    ((about, want),) = zip(of.about["fetches"], of.want, strict=True)
    results = [want.reshape(about["dims"])]
    assert of.error(results) == 0.0
    assert of.error([r + 0.01 * np.abs(r).max() for r in results]) == pytest.approx(0.01, rel=1e-3)
    for wrong in ([r.T for r in results], [r.astype(np.float64) for r in results], [np.where(r == r.max(), np.nan, r) for r in results]):
        with pytest.raises(AssertionError):
            of.error(wrong)
    other = replace(of, data=of.data.replace(b"depthwise_conv2d", b"depthwise_conv2e"))
    assert set(other.unknown()) == {"depthwise_conv2e"} and other.inferred_otherwise()


def test_the_formulas_give_what_they_gave() -> None:
    assert parameter_value("conv2d_0.w_0", [2, 3], "float32").dtype == np.float32
    np.testing.assert_array_equal(kept(np.arange(10_000)), np.arange(0, 10_000, 3))
    np.testing.assert_array_equal(kept(np.arange(6).reshape(2, 3)), np.arange(6))
    assert set(np.unique(parameter_value("flags", [50], "int64"))) == {0, 1} and feed_value("ids", [99], "int64").min() >= 1


@pytest.mark.parametrize("name", EACH)
def test_every_variable_is_inferred_as_the_file_has_it(name: str) -> None:
    of = network(name)
    assert not of.unknown()
    wrong = of.inferred_otherwise()
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("name", EACH)
def test_the_results_are_those_of_paddlepaddle(name: str) -> None:
    of = network(name)
    assert of.error(of.run()) <= TOLERANCE


def report(names: Sequence[str]) -> int:
    """Print a line for each network; how many do not agree."""
    failed = 0
    print(f"{'network':46} {'ops':>5}  {'other specs':>11}  {'largest error':>13}")
    for name in names or NAMES:
        of = network(name)
        unknown = of.unknown()
        count = of.operations()
        if unknown:
            said = "lacks " + ", ".join(f"{t} ({n})" for t, n in unknown.most_common())
            agrees = False
            print(f"{name:46} {count:5}  {said}", flush=True)
        else:
            wrong = of.inferred_otherwise()
            try:
                error = of.error(of.run())
                agrees = not wrong and error <= TOLERANCE
                print(f"{name:46} {count:5}  {len(wrong):11}  {error:13.1e}", flush=True)
            except Exception as problem:  # a table of all is what was asked for; it says what went wrong
                agrees = False
                print(f"{name:46} {count:5}  {len(wrong):11}  {str(problem).splitlines()[0][:120]}", flush=True)
            for words in wrong[:3]:
                print(f"    {words}")
        failed += not agrees
    print(f"{len(names or NAMES) - failed} of {len(names or NAMES)} agree")
    return failed


if __name__ == "__main__":
    sys.exit(1 if report(sys.argv[1:]) else 0)
