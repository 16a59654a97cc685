"""The allocator's simulator: cases whose values were worked out by hand from the rules, and its speed."""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from foreshape.apps.forecast.caching_allocator import MIB, AllocatorConfig, CachingAllocator, DeviceBlock, OutOfDeviceMemory

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("allocator_cases.json").read_text(encoding="utf-8"))
SETTINGS = {"capacity": "capacity", "expandable": "expandable", "max_split": "max_split", "divisions": "divisions", "gc": "collect_from"}


def replayed(events: list[list[Any]], config: AllocatorConfig) -> tuple[CachingAllocator, dict[Any, DeviceBlock | None], int | None]:
    allocator, blocks = CachingAllocator(config), dict[Any, "DeviceBlock | None"]()
    for number, (event, *arguments) in enumerate(events):
        try:
            match event, arguments:
                case "alloc", [name, size, stream]:
                    blocks[name] = allocator.allocate(size, stream)
                case "free", [name]:
                    allocator.free(blocks.pop(name))
                case "record", [name, stream]:
                    allocator.record_stream(blocks[name], stream)
                case "sync", []:
                    allocator.synchronize()
                case "empty_cache", []:
                    allocator.empty_cache()
                case _:
                    raise AssertionError(event)
        except OutOfDeviceMemory:
            return allocator, blocks, number
    return allocator, blocks, None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_case_is_as_worked_out_by_hand(case: dict[str, Any]) -> None:
    config = AllocatorConfig(**{SETTINGS[name]: value for name, value in case.get("config", {}).items()})
    allocator, blocks, failed = replayed(case["events"], config)
    for key, value in case["expected"].items():
        if key == "died":
            assert failed == value
        elif key == "segments":
            assert sorted(segment.size for segment in allocator.segments if segment.size) == value
        else:
            assert getattr(allocator, "failures" if key == "ooms" else key) == value, key
    for name, place in case.get("placed", {}).items():
        block = blocks[name]
        assert block is not None and [block.segment.number, block.address - block.segment.address] == place


def test_there_are_all_cases() -> None:
    assert len(CASES) == 45


def blocks_of(allocator: CachingAllocator, live: list[DeviceBlock]) -> list[DeviceBlock]:
    """Return all blocks, used, idle and unmapped, by address."""
    pools = list(allocator._pools.values())
    return sorted([*live, *(b for pool in pools for b in [*pool.blocks.values(), *pool.unmapped])], key=lambda b: b.address)


@pytest.mark.parametrize(
    "config", [AllocatorConfig(), AllocatorConfig(expandable=True), AllocatorConfig(max_split=32 * MIB), AllocatorConfig(divisions=8)], ids=str
)
def test_blocks_tile_their_segments_at_every_moment(config: AllocatorConfig) -> None:
    generator, allocator, live = random.Random(5), CachingAllocator(config), list[DeviceBlock]()
    for number in range(1500):
        if live and generator.random() < 0.48:
            allocator.free(live.pop(generator.randrange(len(live))))
        else:
            block = allocator.allocate(int(2 ** generator.uniform(6, 26)), generator.randrange(2))
            assert block is not None
            live.append(block)
        if number % 300 == 299:
            allocator.empty_cache()
        if number % 50 == 0:
            everything = blocks_of(allocator, live)
            assert allocator.allocated == sum(b.size for b in live)
            assert allocator.reserved == sum(s.size for s in allocator.segments) == sum(b.size for b in everything if b.mapped)
            for block, neighbour in itertools.pairwise(everything):
                assert block.address + block.size <= neighbour.address
                if block.next is not None:
                    assert block.next is neighbour and block.address + block.size == neighbour.address
                    assert block.used or neighbour.used or block.mapped != neighbour.mapped, "idle neighbours are one block"
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.reserved == allocator.allocated == allocator.active == allocator.requested == 0


@pytest.mark.long
def test_an_event_takes_no_more_calls_among_many() -> None:
    def calls(events: int) -> int:
        generator, allocator, live = random.Random(3), CachingAllocator(), list[DeviceBlock | None]()
        sizes = [int(2 ** generator.uniform(8, 25)) for _ in range(events)]
        count = 0

        def counted(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            for size in sizes:
                live.append(allocator.allocate(size))
                if len(live) > 400:
                    allocator.free(live.pop(size % 400))
        finally:
            sys.setprofile(None)
        return count

    assert calls(80_000) < 1.2 * 8 * calls(10_000)
