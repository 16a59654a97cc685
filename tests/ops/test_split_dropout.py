"""Dropout of a value of which each rank has a part: each drops elements of its own, and draws what the others draw after it."""

import numpy as np
import pytest

import foreshape as fs
from foreshape.core.spec import FP32, tensor
from foreshape.machine.communication.process_group import ProcessGroup, set_team


@pytest.fixture
def draw():
    program = fs.Program()
    block = program.global_block
    block.create_variable("x", tensor(FP32, 400), need_check_feed=True)
    outputs = [block.append_op(type, {"X": "x"}, None, {"dropout_prob": 0.5, **more}).output("Mask") for type, more in
               (("c_dropout", {"ring_id": 1}), ("dropout", {}))]  # fmt: skip

    def run(rank, ranks=2, seed=3):
        set_team(1, ProcessGroup(rank, ranks, None) if ranks > 1 else None)
        try:
            return fs.Executor(seed=seed).run(program, {"x": np.ones(400, np.float32)}, outputs, fs.Scope())
        finally:
            set_team(1, None)

    return run


def test_each_rank_drops_elements_of_its_own_and_draws_on_alike(draw):
    (first, after), (second, after_second) = draw(0), draw(1)
    assert 0.4 < (first != second).mean() < 0.6
    assert 0.4 < first.mean() < 0.6 and 0.4 < second.mean() < 0.6
    np.testing.assert_array_equal(after, after_second)


def test_it_is_the_same_again_and_another_with_another_seed(draw):
    np.testing.assert_array_equal(draw(1)[0], draw(1)[0])
    assert (draw(1)[0] != draw(1, seed=4)[0]).any()
