"""Steps of a rank, reckoned by hand."""

from __future__ import annotations

from foreshape.compiler.cost.events import Compute, Start, Wait, run


def test_a_message_and_three_ops_by_hand() -> None:
    """The message goes at 2 and comes at 5; 1 is computed meanwhile, and 2 after it."""
    done = run([Compute(2.0), Start(0), Compute(1.0), Wait(0), Compute(2.0)], [3.0])
    assert (done.ready, done.began, done.ended) == ([2.0], [2.0], [5.0])
    assert (done.waited, done.seconds) == (2.0, 7.0)


def test_a_message_that_comes_while_ranks_compute_is_waited_for_by_nobody() -> None:
    done = run([Compute(1.0), Start(0), Compute(5.0), Wait(0)], [3.0])
    assert (done.seconds, done.waited) == (6.0, 0.0)


def test_messages_take_turns_in_the_order_in_which_they_are_started() -> None:
    """Both are started at 1; the second goes when the first has come."""
    done = run([Compute(1.0), Start(0), Start(1), Wait(1), Wait(0)], [2.0, 3.0])
    assert (done.ready, done.began, done.ended) == ([1.0, 1.0], [1.0, 3.0], [3.0, 6.0])
    assert done.seconds == 6.0


def test_a_message_that_nobody_waits_for_ends_the_step() -> None:
    assert run([Compute(1.0), Start(0)], [2.0]).seconds == 3.0


def test_nothing_takes_no_time() -> None:
    assert run([], []).seconds == 0.0
