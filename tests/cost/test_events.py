"""Steps on many ranks, reckoned by hand."""

from __future__ import annotations

import pytest

from foreshape.compiler.cost.events import Compute, Start, Wait, run


def test_two_ranks_and_three_ops_by_hand() -> None:
    """Rank 1 is twice as slow in the first op: the message goes at 4, comes at 7; both compute for 1 meanwhile, and for 2 after it."""
    items = [Compute(2.0), Start(0), Compute(1.0), Wait(0), Compute(2.0)]
    done = run(items, [3.0], 2, lambda rank, item: 2.0 if (rank, item) == (1, 0) else 1.0)
    assert done.began == [4.0]
    assert done.ended == [7.0]
    assert done.ready == [2.0]
    assert done.waited == [4.0, 2.0]
    assert done.finished == [9.0, 9.0]
    assert done.seconds == 9.0


def test_a_message_that_comes_while_ranks_compute_is_waited_for_by_nobody() -> None:
    done = run([Compute(1.0), Start(0), Compute(5.0), Wait(0)], [3.0], 4)
    assert done.seconds == 6.0
    assert done.waited == [0.0] * 4
    assert done.communicating == 3.0


def test_messages_take_turns_in_the_order_in_which_they_are_started() -> None:
    """Both are started at 1; the second goes when the first has come."""
    done = run([Compute(1.0), Start(0), Start(1), Wait(1), Wait(0)], [2.0, 3.0], 2)
    assert (done.began, done.ended) == ([1.0, 3.0], [3.0, 6.0])
    assert done.seconds == 6.0


def test_a_message_goes_when_the_last_rank_has_started_it() -> None:
    done = run([Compute(1.0), Start(0), Wait(0)], [1.0], 3, lambda rank, item: rank + 1.0)
    assert done.began == [3.0]
    assert done.waited == [3.0, 2.0, 1.0]


def test_without_messages_the_slowest_rank_is_the_step() -> None:
    done = run([Compute(1.0), Compute(2.0)], [], 5, lambda rank, item: 1.0 + rank / 10)
    assert done.seconds == pytest.approx(3 * 1.4)
    assert done.finished[0] == 3.0


def test_nothing_takes_no_time() -> None:
    assert run([], [], 3).seconds == 0.0
