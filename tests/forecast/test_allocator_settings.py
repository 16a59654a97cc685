"""The allocator's simulator with all settings: no request ends it but by the error of a full device, and its figures are in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from foreshape.apps.forecast.caching_allocator import MIB, AllocatorConfig, CachingAllocator, DeviceBlock, OutOfDeviceMemory

CONFIGS = st.builds(
    AllocatorConfig,
    capacity=st.none() | st.integers(1, 200).map(lambda mib: mib * MIB),
    by_fraction=st.booleans(),
    expandable=st.booleans(),
    max_split=st.none() | st.integers(20, 64).map(lambda mib: mib * MIB),
    divisions=st.sampled_from([0, 1, 2, 8, 64]),
    collect_from=st.sampled_from([0.0, 0.5, 0.9]),
    large_segment=st.integers(20, 48).map(lambda mib: mib * MIB),
)
SIZES = st.integers(0, 3 * MIB) | st.integers(1, 64).map(lambda mib: mib * MIB) | st.sampled_from([1 << 44, (1 << 44) + 1, 40 << 40])
EVENTS = st.lists(
    st.tuples(st.just("allocate"), SIZES, st.integers(0, 1))
    | st.tuples(st.sampled_from(["free", "record", "synchronize", "empty_cache", "reset_peaks"]), st.integers(0, 99), st.integers(0, 1)),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(CONFIGS, EVENTS)
@example(AllocatorConfig(expandable=True), [("allocate", MIB + 1, 0), ("free", 0, 0), ("allocate", 1 << 44, 0)])
def test_figures_are_in_order_after_each_event(config: AllocatorConfig, events: list[tuple[str, int, int]]) -> None:
    allocator, live = CachingAllocator(config), list[DeviceBlock | None]()
    for event, value, stream in events:
        if event == "allocate":
            try:
                live.append(allocator.allocate(value, stream))
            except OutOfDeviceMemory as error:
                assert config.capacity is not None and error.requested == value
        elif event in ("free", "record") and live:
            place = value % len(live)
            if event == "free":
                allocator.free(live.pop(place))
            else:
                allocator.record_stream(live[place], stream)
        elif event not in ("free", "record"):
            getattr(allocator, event)()
        assert 0 <= allocator.allocated <= allocator.active <= allocator.reserved <= allocator.reserved_peak
        assert allocator.requested <= allocator.active and allocator.allocated <= allocator.allocated_peak <= allocator.reserved_peak
        assert config.capacity is None or allocator.reserved_peak <= config.capacity
        assert allocator.allocated == sum(block.size for block in live if block is not None)
        assert allocator.reserved == sum(segment.size for segment in allocator.segments)
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == allocator.allocated == allocator.active == allocator.requested == 0


@pytest.mark.parametrize(
    ("text", "capacity", "sizes", "freed", "last", "reserved"),
    [
        # expandable: the pages of the freed block are released as idle ones, and counted as a retry
        ("expandable_segments:True,max_split_size_mb:20", 60, [12], 0, 45, 60),
        # the idle 32 MiB are no more given to small requests, and are a part of a segment: a second one of 40 does not fit
        ("max_split_size_mb:20,large_segment_size_mb:40", 60, [8], None, 2, None),
        # the first segment of 40 MiB, idle again, is released
        ("max_split_size_mb:20,large_segment_size_mb:40", 100, [8, 2], 0, 45, 86),
        # a whole segment of 30 MiB is released
        ("max_split_size_mb:20", 60, [30, 12], 0, 40, 52),
    ],
)
def test_oversize_segments_alone_are_released(text: str, capacity: int, sizes: list[int], freed: int | None, last: int, reserved: int | None) -> None:
    allocator = CachingAllocator(AllocatorConfig.parse(text)._replace(capacity=capacity * MIB))
    blocks: list[Any] = [allocator.allocate(size * MIB) for size in sizes]
    if freed is not None:
        allocator.free(blocks[freed])
    if reserved is None:
        with pytest.raises(OutOfDeviceMemory):
            allocator.allocate(last * MIB)
        return
    allocator.allocate(last * MIB)
    assert allocator.reserved == reserved * MIB


def test_a_block_above_the_address_space_of_a_segment_is_mapped() -> None:
    allocator = CachingAllocator(AllocatorConfig(expandable=True))
    size = (1 << 44) + 20 * MIB
    allocator.free(allocator.allocate(size))
    assert allocator.allocated_peak == size and allocator.reserved == -(-size // (20 * MIB)) * 20 * MIB
