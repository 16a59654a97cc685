"""Networks of public model zoos: inferred and computed as PaddlePaddle has them. As a script it prints a table of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.zoo import NAMES, OVERFLOWS, TOLERANCE, feed_value, kept, network, parameter_value

import foreshape as fs
from foreshape.language.wire import framework_pb2 as pb

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


def test_boxes_are_compared_in_any_order_and_scores_in_theirs() -> None:
    of = network("det_detr")
    boxes, count = (w.reshape(f["dims"]) for w, f in zip(of.want, of.about["fetches"], strict=True))
    swapped = boxes[[1, 0, *range(2, len(boxes))]]
    swapped[:, 1] = boxes[:, 1]
    assert of.error([boxes, count]) == 0.0 and of.error([swapped, count]) < 0.1 * of.error([boxes + 0.5 * np.abs(boxes).max(), count])
    other = boxes.copy()
    other[3, 2:] += 0.01 * np.abs(boxes).max()
    assert of.error([other, count]) > TOLERANCE
    scored = boxes.copy()
    scored[:, 1] = boxes[::-1, 1]
    assert of.error([scored, count]) > 0.0


def test_the_formulas_give_what_they_gave() -> None:
    assert parameter_value("conv2d_0.w_0", [2, 3], "float32").dtype == np.float32
    np.testing.assert_array_equal(kept(np.arange(10_000)), np.arange(0, 10_000, 3))
    np.testing.assert_array_equal(kept(np.arange(6).reshape(2, 3)), np.arange(6))
    assert set(np.unique(parameter_value("flags", [50], "int64"))) == {0, 1} and feed_value("ids", [99], "int64").min() >= 1


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_saved_as_it_was_read(name: str) -> None:
    data = network(name).data
    assert fs.load_program(data).to_bytes() == data


def test_sizes_that_the_file_names_in_an_attribute_are_operands() -> None:
    """PaddlePaddle has the names of variables as the value of unpool's attribute output_size."""
    data = network("seg_enet").data
    program = fs.load_program(data)
    first, second = (op for op in program.all_ops() if op.type == "unpool")
    assert first.inputs["OutputSizes"] == ("fill_constant_19.tmp_0", "fill_constant_21.tmp_0")
    assert second.operator is not None and second.operator.output_size == ()  # type: ignore[attr-defined]
    again = fs.Program.parse(str(program))
    assert str(again) == str(program)
    assert list(pb.ProgramDesc.FromString(again.to_bytes()).blocks[0].ops) == list(pb.ProgramDesc.FromString(data).blocks[0].ops)
    first.rename_input("fill_constant_19.tmp_0", "fill_constant_25.tmp_0")
    renamed = fs.load_program(program.to_bytes())
    op = next(op for op in renamed.all_ops() if op.type == "unpool")
    assert op.inputs["OutputSizes"] == ("fill_constant_25.tmp_0", "fill_constant_21.tmp_0")
    assert set(op.inputs) == set(first.inputs)


@pytest.mark.parametrize("name", EACH)
def test_every_variable_is_inferred_as_the_file_has_it(name: str) -> None:
    of = network(name)
    assert not of.unknown()
    wrong = of.inferred_otherwise()
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.long_cases("seg_enet")
@pytest.mark.parametrize("name", EACH)
def test_the_results_are_those_of_paddlepaddle(name: str) -> None:
    of = network(name)
    results = of.run()
    if name in OVERFLOWS:
        assert all(np.isnan(r).all() for r in results) and [list(r.shape) for r in results] == [f["dims"] for f in of.about["fetches"]]
    else:
        assert of.error(results) <= TOLERANCE


IN_HALF = 0.01
"""The largest error in bf16 of a whole network, of the largest magnitude: a rounding is 0.004 of a number, and sums are of fp32."""
FARTHER = {"ocr_rare_att": 0.05}
"""The error of a loop that reads its own results."""
OTHER_PLACES = ("seg_enet",)
"""They put pixels back to the places of the largest ones, and others are as good as equal to these."""


@pytest.mark.quick_cases("clas_PPLCNet_x0_25", "ocr_crnn_mv3", "vision_mobilenet_v3_small", "vision_shufflenet_v2_x0_25", "det_ppyoloe")
@pytest.mark.parametrize("name", NAMES)
def test_in_bf16_the_results_are_within_its_rounding_and_classes_stay(name: str) -> None:
    of = network(name)
    if name in (*OVERFLOWS, *OTHER_PLACES):
        pytest.skip("it has no steady results")
    executor = fs.Executor(frozen=True, precision="bf16")
    results = [np.asarray(v) for v in executor.run(fs.load_program(of.data), feed=of.feed, fetch=of.fetches, scope=of.scope())]
    assert of.error(results) <= FARTHER.get(name, IN_HALF)
    if name.startswith(("clas_", "vision_")):
        for seen, whole in zip(results, of.run(), strict=True):
            np.testing.assert_array_equal(seen.argmax(-1), whole.argmax(-1))


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
                results = of.run()
                if name in OVERFLOWS and all(np.isnan(r).all() for r in results):
                    agrees = False
                    print(f"{name:46} {count:5}  {len(wrong):11}  {'overflows':>13}", flush=True)
                else:
                    error = of.error(results)
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


@pytest.mark.long
def test_frozen_networks_one_after_the_other_in_one_process() -> None:
    """Over a thousand kernels are made, more than a library's own cache has."""
    for name in NAMES:
        if name not in OVERFLOWS:
            of = network(name)
            executor = fs.Executor(frozen=True)
            found = executor.run(fs.load_program(of.data), feed=of.feed, fetch=of.fetches, scope=of.scope())
            assert of.error([np.asarray(v) for v in found]) <= TOLERANCE, name


if __name__ == "__main__":
    sys.exit(1 if report(sys.argv[1:]) else 0)
