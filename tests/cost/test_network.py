"""What collectives take on links, by hand."""

from __future__ import annotations

import pytest

import foreshape as fs
from foreshape.compiler.cost.network import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, BARRIER, BROADCAST, REDUCE_SCATTER, bandwidth_of, hops, seconds_of, sent


def test_a_ring_sends_a_sum_round_twice() -> None:
    network = fs.Network(bandwidth=1e9, latency=1e-5)
    assert sent(ALL_REDUCE, 4e6, 4) == 6e6
    assert hops(ALL_REDUCE, 4) == 6
    assert network.seconds(ALL_REDUCE, 4e6, 4) == pytest.approx(6e-3 + 6e-5)


@pytest.mark.parametrize(
    ("way", "bytes_sent", "messages"), [(ALL_GATHER, 7000.0, 7), (REDUCE_SCATTER, 875.0, 7), (ALL_TO_ALL, 875.0, 7), (BROADCAST, 1000.0, 3), (BARRIER, 0.0, 6)]
)
def test_what_a_collective_of_eight_ranks_sends(way: str, bytes_sent: float, messages: int) -> None:
    assert (sent(way, 1000, 8), hops(way, 8)) == (bytes_sent, messages)


@pytest.mark.parametrize("way", [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, BARRIER])
def test_one_rank_sends_nothing(way: str) -> None:
    assert fs.Network.of().seconds(way, 1e9, 1) == 0.0


def test_more_ranks_and_more_bytes_never_take_less() -> None:
    network = fs.Network.of("10Gb/s", "20us")
    for way in (ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, BARRIER):
        times = [network.seconds(way, 1e6, n) for n in range(1, 40)]
        assert times == sorted(times)
        assert network.seconds(way, 2e6, 8) >= network.seconds(way, 1e6, 8)


def test_a_tree_is_taken_where_it_is_faster() -> None:
    ring, tree = fs.Network(1e9, 1e-5), fs.Network(1e9, 1e-5, tree=True)
    assert tree.seconds(ALL_REDUCE, 1000, 1024) == pytest.approx(2e-6 + 20e-5)
    assert ring.seconds(ALL_REDUCE, 1000, 1024) > 2046e-5
    assert tree.seconds(ALL_REDUCE, 1e9, 8) == ring.seconds(ALL_REDUCE, 1e9, 8)


def test_what_is_small_goes_whole_from_each_to_each() -> None:
    network = fs.Network(1e9, 1e-4, whole=3000)
    assert network.seconds(ALL_REDUCE, 1000, 4) == pytest.approx(1e-4 + 3e-6)
    assert network.seconds(ALL_REDUCE, 1001, 4) == fs.Network(1e9, 1e-4).seconds(ALL_REDUCE, 1001, 4)
    assert network.seconds(ALL_GATHER, 1e6, 4) == pytest.approx(1e-4 + 3e-3)
    assert network.seconds(ALL_REDUCE, 1000, 1) == network.seconds(ALL_GATHER, 1000, 1) == 0.0


def test_ranks_meet_once_at_each_collective() -> None:
    for whole in (0, 3000):
        alone, meeting = fs.Network(1e9, 1e-4, whole=whole), fs.Network.of(1e9, 1e-4, whole=whole, meeting=1e-3)
        for way in (ALL_REDUCE, ALL_GATHER, ALL_TO_ALL):
            assert meeting.seconds(way, 1e6, 4) - alone.seconds(way, 1e6, 4) == pytest.approx(1e-3)
            assert meeting.seconds(way, 1e6, 1) == 0.0
    with pytest.raises(fs.SchemaError, match="0 or more"):
        fs.Network(1e9, 1e-4, meeting=-1.0)


def test_messages_take_the_processor_of_ranks_that_have_no_other() -> None:
    network = fs.Network(1e9, 1e-4, processor=1e-9)
    assert network.occupying(ALL_REDUCE, 1e6, 2) == pytest.approx(1e-3)
    assert fs.Network(1e9, 1e-4).occupying(ALL_REDUCE, 1e6, 2) == 0.0
    assert fs.Network(1e9, 1e-4, processor=1e-9, handling=1e-5).occupying(ALL_REDUCE, 1e6, 2) == pytest.approx(1e-3 + 1e-5)
    assert fs.Network(1e9, 1e-4, handling=1e-5).occupying(ALL_REDUCE, 1e6, 1) == 0.0
    with pytest.raises(fs.SchemaError, match="0 or more"):
        fs.Network(1e9, 1e-4, processor=-1.0)
    with pytest.raises(fs.SchemaError, match="0 or more"):
        fs.Network(1e9, 1e-4, handling=-1.0)


def test_words_for_rates_and_times() -> None:
    assert bandwidth_of("25Gb/s") == 25e9 / 8
    assert bandwidth_of("3GB/s") == 3e9
    assert bandwidth_of("1.5 Mbit/s") == 1.5e6 / 8
    assert bandwidth_of(7) == 7.0
    assert seconds_of("30us") == pytest.approx(30e-6)
    assert seconds_of("1.5ms") == pytest.approx(1.5e-3)
    assert seconds_of(0) == 0.0


@pytest.mark.parametrize("given", ["", "25", "25Gb", "fast", "-1Gb/s", "nanGb/s", "1e999GB/s", 0, -1, True, float("nan"), "9" * 400 + "Gb/s"])
def test_what_is_no_bandwidth_is_refused(given: str | float) -> None:
    with pytest.raises(fs.SchemaError):
        fs.Network.of(given)


@pytest.mark.parametrize("given", ["", "30", "30 years", "-1us", -1.0, True, float("nan"), float("inf")])
def test_what_is_no_latency_is_refused(given: str | float) -> None:
    with pytest.raises(fs.SchemaError):
        fs.Network.of("1Gb/s", given)
