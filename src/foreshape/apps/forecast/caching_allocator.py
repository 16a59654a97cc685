"""A simulator of torch's caching allocator for CUDA: bytes asked for go in, bytes allocated and reserved come out. It needs no torch.

The rules stand in ``c10/cuda/CUDACachingAllocator.cpp`` and ``c10/core/AllocatorConfig.h``: rounding to 512 bytes, a small and a large pool,
segments from the device, best fit, splitting, merging, streams, and the release of idle segments before an error. Addresses of segments increase
here; a driver's need not, so equal blocks of different segments may be taken in another order (modelled).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from foreshape.errors import SchemaError

MIB: Final = 1 << 20
SMALLEST: Final = 512
SMALL: Final = MIB
"""The largest size of the small pool."""
SMALL_SEGMENT: Final = 2 * MIB
LARGE_SEGMENT: Final = 20 * MIB
"""The segment for large sizes below `LARGE_FROM`; a page of an expandable large segment."""
LARGE_FROM: Final = 10 * MIB
LARGE_STEP: Final = 2 * MIB
_VIRTUAL: Final = 1 << 44
_SHIFT: Final = 64
"""Idle blocks are ordered by their size and, from this bit down, their address."""


class OutOfDeviceMemory(Exception):
    """The device has no bytes left for a request; ``requested`` are its bytes."""

    def __init__(self, requested: int) -> None:
        super().__init__(f"{requested} bytes do not fit")
        self.requested = requested


class AllocatorConfig(NamedTuple):
    """The settings of an allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` and ``set_per_process_memory_fraction`` set them.

    Attributes:
        capacity: the bytes it may reserve; None: any number.
        by_fraction: the capacity is a memory fraction, and not the end of the device.
        expandable: ``expandable_segments``.
        max_split: ``max_split_size_mb`` in bytes.
        divisions: ``roundup_power2_divisions``.
        collect_from: ``garbage_collection_threshold``, a share of the capacity.
        large_segment: ``large_segment_size_mb`` in bytes.
    """

    capacity: int | None = None
    by_fraction: bool = True
    expandable: bool = False
    max_split: int | None = None
    divisions: int = 0
    collect_from: float = 0.0
    large_segment: int = LARGE_SEGMENT

    @classmethod
    def parse(cls, text: str) -> AllocatorConfig:
        """Return the settings of a text as ``PYTORCH_CUDA_ALLOC_CONF`` has it: ``"expandable_segments:True,max_split_size_mb:128"``.

        Raises:
            SchemaError: an unknown setting, or one not simulated.
        """
        config = cls()
        for part in filter(None, text.replace(" ", "").split(",")):
            name, _, value = part.partition(":")
            rule = _SETTINGS.get(name)
            try:
                if rule is None or (changed := rule(value)) is None:
                    raise ValueError(value)
            except ValueError:
                raise SchemaError.must("allocator", f"settings among {', '.join(_SETTINGS)}, as name:value", repr(part)[:100]) from None
            config = config._replace(**changed)
        return config


_SETTINGS: Final[dict[str, Callable[[str], dict[str, Any] | None]]] = {
    "backend": lambda value: {} if value == "native" else None,
    "expandable_segments": lambda value: {"expandable": value.lower() == "true"} if value.lower() in ("true", "false") else None,
    "max_split_size_mb": lambda value: {"max_split": int(value) * MIB} if int(value) >= 20 else None,
    "roundup_power2_divisions": lambda value: {"divisions": int(value)} if int(value) in (1, 2, 4, 8, 16, 32, 64) else None,
    "garbage_collection_threshold": lambda value: {"collect_from": float(value)} if 0 < float(value) < 1 else None,
    "large_segment_size_mb": lambda value: {"large_segment": int(value) * MIB} if int(value) >= 20 else None,
}
"""Name -> from its value to the changed fields; None: not simulated."""


class PlainMemory:
    """The memory of a processor: bytes as they are asked for, given back at once."""

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.allocated = self.reserved = self.allocated_peak = self.reserved_peak = 0
        self.retries = self.version = 0

    def allocate(self, requested: int) -> int:
        """Return the bytes. Raise `OutOfDeviceMemory`: there are no more."""
        self.allocated += requested
        self.reserved = self.allocated
        if self.allocated > self.allocated_peak:
            if self.capacity is not None and self.allocated > self.capacity:
                raise OutOfDeviceMemory(requested)
            self.allocated_peak = self.reserved_peak = self.allocated
        return requested

    def free(self, block: int) -> None:
        """Give bytes back."""
        self.allocated -= block
        self.reserved = self.allocated

    def reset_peaks(self) -> None:
        """Let the peaks begin again at the bytes of now."""
        self.allocated_peak = self.reserved_peak = self.allocated


class DeviceSegment:
    """Memory of the device: its first address, its bytes, and its number in the order of requests."""

    __slots__ = ("address", "number", "size")

    def __init__(self, number: int, address: int) -> None:
        self.number, self.address, self.size = number, address, 0


class DeviceBlock:
    """A piece of a segment, between its neighbours there."""

    __slots__ = ("address", "lookup", "mapped", "next", "pool", "previous", "readers", "requested", "segment", "size", "used")

    def __init__(self, pool: Pool, segment: DeviceSegment, address: int, size: int) -> None:
        self.pool, self.segment, self.address, self.size = pool, segment, address, size
        self.previous: DeviceBlock | None = None
        self.next: DeviceBlock | None = None
        self.used = False
        self.mapped = True
        """False: address space of an expandable segment without memory."""
        self.requested = 0
        self.readers: set[int] | None = None
        """Other streams, perhaps still reading it."""
        self.lookup = 0
        """The number of look-ups in its kind of pool when it became idle."""

    def is_idle(self) -> bool:
        """Tell whether it can be taken or merged, mapped or not."""
        return not self.used and not self.readers


class Pool:
    """The idle blocks of one kind and one stream, ordered by size and address."""

    __slots__ = ("blocks", "large", "order", "stream", "unmapped")

    def __init__(self, large: bool, stream: int) -> None:
        self.large, self.stream = large, stream
        self.order: list[int] = []
        self.blocks: dict[int, DeviceBlock] = {}
        self.unmapped: list[DeviceBlock] = []

    def add(self, block: DeviceBlock) -> None:
        """Add an idle block."""
        key = block.size << _SHIFT | block.address
        insort(self.order, key)
        self.blocks[key] = block

    def remove(self, block: DeviceBlock) -> None:
        """Remove a block, whose size is as when it was added."""
        key = block.size << _SHIFT | block.address
        del self.blocks[key], self.order[bisect_left(self.order, key)]


class CachingAllocator:
    """The allocator of one process on one device.

    Attributes:
        allocated, requested, active, reserved: bytes of now; ``active`` has also blocks waiting for other streams.
        allocated_peak, requested_peak, active_peak, reserved_peak: the most since `reset_peaks`.
        retries: how often all idle segments were released for a request.
        failures: how often a request was refused.
        mallocs: requests met by the device.
        version: grows whenever the memory taken from the device changes.
    """

    def __init__(self, config: AllocatorConfig | None = None) -> None:
        self.config = config = config or AllocatorConfig()
        self.allocated = self.requested = self.active = self.reserved = 0
        self.allocated_peak = self.requested_peak = self.active_peak = self.reserved_peak = 0
        self.retries = self.failures = self.mallocs = self.version = 0
        self.segments: list[DeviceSegment] = []
        self._pools: dict[tuple[bool, int], Pool] = {}
        self._lookups = [0, 0]
        self._waiting: list[DeviceBlock] = []
        self._end = 0
        self._max_split = config.max_split or _VIRTUAL

    # --- requests

    def allocate(self, requested: int, stream: int = 0) -> DeviceBlock | None:
        """Return a block for so many bytes; none for 0 bytes.

        Raises:
            OutOfDeviceMemory: it does not fit, even after all idle segments are released.
        """
        if requested <= 0:
            return None
        size = -(-requested // SMALLEST) * SMALLEST if self.config.divisions < 2 else rounded(requested, self.config.divisions)
        large = size > SMALL
        pool = self._pools.get((large, stream))
        if pool is None:
            pool = self._pools[large, stream] = Pool(large, stream)
        self._lookups[large] += 1
        block = self._best(pool, size)
        if block is None:
            block = self._device_block(pool, size)
            if block is None:
                self.failures += 1
                raise OutOfDeviceMemory(requested)
        surplus = block.size - size
        if surplus and self._is_split(large, size, surplus):
            remainder = DeviceBlock(pool, block.segment, block.address + size, surplus)
            remainder.lookup = self._lookups[large]
            remainder.previous, remainder.next = block, block.next
            if remainder.next is not None:
                remainder.next.previous = remainder
            block.next = remainder
            block.size = size
            pool.add(remainder)
        block.used, block.requested = True, requested
        size = block.size
        self.allocated += size
        self.active += size
        self.requested += requested
        if self.allocated > self.allocated_peak:
            self.allocated_peak = self.allocated
        if self.active > self.active_peak:
            self.active_peak = self.active
        if self.requested > self.requested_peak:
            self.requested_peak = self.requested
        return block

    def free(self, block: DeviceBlock | None) -> None:
        """Give a block back. It is idle at once, or when the other streams reading it are done."""
        if block is None:
            return
        block.used = False
        self.allocated -= block.size
        if block.readers:
            self._waiting.append(block)
        else:
            self._settle(block)

    def record_stream(self, block: DeviceBlock | None, stream: int) -> None:
        """Note a block's reading by another stream, as ``Tensor.record_stream`` does."""
        if block is not None and stream != block.pool.stream:
            block.readers = {*(block.readers or ()), stream}

    def synchronize(self) -> None:
        """Let all work on other streams end."""
        for block in self._waiting:
            block.readers = None
            self._settle(block)
        self._waiting = []

    def empty_cache(self) -> None:
        """Release each idle segment, and the idle pages of expandable ones."""
        self.synchronize()
        for pool in list(self._pools.values()):
            for key in list(pool.order):
                block = pool.blocks[key]
                if self.config.expandable:
                    self._unmap(block)
                elif block.previous is None and block.next is None:
                    self._release(block)

    def reset_peaks(self) -> None:
        """Let the peaks begin again at the bytes of now."""
        self.allocated_peak, self.requested_peak, self.active_peak, self.reserved_peak = self.allocated, self.requested, self.active, self.reserved

    # --- idle blocks

    def _best(self, pool: Pool, size: int) -> DeviceBlock | None:
        order = pool.order
        place = bisect_left(order, size << _SHIFT)
        if place == len(order):
            return None
        block = pool.blocks[order[place]]
        if self.config.expandable:  # a block before unmapped space counts with all of it, so holes are taken first
            while place + 1 < len(order) and _growth(pool.blocks[order[place + 1]]) < _growth(block):
                place += 1
                block = pool.blocks[order[place]]
        limit = self._max_split
        if block.size >= limit and (size < limit or block.size >= size + self.config.large_segment):
            return None
        del pool.blocks[order.pop(place)]
        return block

    def _is_split(self, large: bool, size: int, remainder: int) -> bool:
        if not large or self.config.expandable:
            return remainder >= SMALLEST
        return remainder > SMALL and size < self._max_split

    def _settle(self, block: DeviceBlock) -> None:
        """Make a block idle, one with its idle neighbours."""
        self.active -= block.size
        self.requested -= block.requested
        self._merge(block)
        block.lookup = self._lookups[block.pool.large]
        block.pool.add(block)

    def _merge(self, block: DeviceBlock) -> None:
        previous, following = block.previous, block.next
        if previous is not None and not previous.used and not previous.readers and previous.mapped == block.mapped:
            _forget(previous)
            block.address = previous.address
            block.size += previous.size
            block.previous = previous.previous
            if block.previous is not None:
                block.previous.next = block
        if following is not None and not following.used and not following.readers and following.mapped == block.mapped:
            _forget(following)
            block.size += following.size
            block.next = following.next
            if block.next is not None:
                block.next.previous = block

    # --- the device

    def _device_block(self, pool: Pool, size: int) -> DeviceBlock | None:
        """Ask the device; then release idle segments and ask again."""
        config = self.config
        if not pool.large:
            segment = SMALL_SEGMENT
        elif size < LARGE_FROM:
            segment = config.large_segment
        else:
            segment = -(-size // LARGE_STEP) * LARGE_STEP
        if config.collect_from and config.capacity and config.by_fraction:
            self._collect(self.reserved - int(config.collect_from * config.capacity))
        block = self._malloc(pool, size, segment)
        if block is None and config.max_split and self._release_oversize(pool, size):
            block = self._malloc(pool, size, segment)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._malloc(pool, size, segment)
        return block

    def _malloc(self, pool: Pool, size: int, segment: int) -> DeviceBlock | None:
        config = self.config
        full = config.capacity is not None and self.reserved + segment > config.capacity
        if config.expandable:
            return None if full and config.by_fraction else self._grow(pool, size)
        if full:
            return None
        block = DeviceBlock(pool, self._new_segment(segment), self._end - segment, segment)
        self._reserve(block.segment, segment)
        return block

    def _new_segment(self, span: int) -> DeviceSegment:
        segment = DeviceSegment(len(self.segments), self._end)
        self.segments.append(segment)
        self._end += span
        return segment

    def _reserve(self, segment: DeviceSegment, size: int) -> None:
        segment.size += size
        self.reserved += size
        self.version += 1
        if size > 0:
            self.mallocs += 1
            if self.reserved > self.reserved_peak:
                self.reserved_peak = self.reserved

    def _release(self, block: DeviceBlock) -> None:
        block.pool.remove(block)
        self._reserve(block.segment, -block.size)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Release the smallest idle segment of `max_split` or more with room enough alone, else the largest until there is room.

        Parts of a segment stay, as a device takes whole ones alone; so do expandable segments.
        """
        if self.config.expandable:
            return False
        need = max(size, self._max_split)
        oversize = [pool.blocks[key] for key in pool.order[bisect_left(pool.order, self._max_split << _SHIFT) :]]
        segments = [block for block in oversize if block.previous is None and block.next is None]
        alone = next((block for block in segments if block.size >= need), None)
        if alone is not None:
            self._release(alone)
            return True
        released = 0
        while released < need and segments:
            block = segments.pop()
            released += block.size
            self._release(block)
        return released >= need

    def _collect(self, excess: int) -> None:
        """Release idle large segments of at least the mean age until so many bytes are released."""
        lookups = self._lookups[True]
        pools = [pool for pool in self._pools.values() if pool.large]
        idle = [block for pool in pools for block in pool.blocks.values() if block.previous is None and block.next is None]
        while idle and excess > 0:
            mean = sum(lookups - block.lookup for block in idle) / len(idle)
            for block in [block for block in idle if lookups - block.lookup >= mean]:
                excess -= block.size
                idle.remove(block)
                self._release(block)

    # --- expandable segments

    def _grow(self, pool: Pool, size: int) -> DeviceBlock | None:
        """Map pages behind the first idle block, by address, with enough address space."""
        block = next((first for hole in sorted(pool.unmapped, key=_address) if _space(first := _start(hole)) >= size), None)
        if block is None:
            page = self._page(pool)
            span = -(-max(_VIRTUAL, size) // page) * page
            block = DeviceBlock(pool, self._new_segment(span), self._end - span, span)
            block.mapped = False
            pool.unmapped.append(block)
        while not block.mapped or block.size < size:
            hole = block if not block.mapped else block.next
            assert hole is not None
            mapped = self._map(hole, min(hole.size, size - (block.size if block.mapped else 0)))
            if mapped is None:
                return None
            block = mapped
        pool.remove(block)
        return block

    def _page(self, pool: Pool) -> int:
        return self.config.large_segment if pool.large else SMALL_SEGMENT

    def _map(self, hole: DeviceBlock, size: int) -> DeviceBlock | None:
        """Return the idle block ending with so many bytes of unmapped space, now mapped."""
        page = self._page(hole.pool)
        size = -(-size // page) * page
        if self.config.capacity is not None and self.reserved + size > self.config.capacity:
            return None
        hole.pool.unmapped.remove(hole)
        if size < hole.size:
            remainder = _cut(hole, size)
            remainder.mapped = False
            hole.pool.unmapped.append(remainder)
        hole.mapped = True
        self._reserve(hole.segment, size)
        self._merge(hole)
        hole.lookup = self._lookups[hole.pool.large]
        hole.pool.add(hole)
        return hole

    def _unmap(self, block: DeviceBlock) -> None:
        """Release the pages within an idle block."""
        pool, page, base = block.pool, self._page(block.pool), block.segment.address
        first = base + -(-(block.address - base) // page) * page
        end = base + (block.address + block.size - base) // page * page
        if first >= end:
            return
        pool.remove(block)
        if first > block.address:
            head, block = block, _cut(block, first - block.address)
            pool.add(head)
        if block.address + block.size > end:
            pool.add(_cut(block, end - block.address))
        block.mapped = False
        self._reserve(block.segment, -block.size)
        self._merge(block)
        pool.unmapped.append(block)


def rounded(size: int, divisions: int) -> int:
    """Return the size of a block for so many bytes under ``roundup_power2_divisions``: the next of equal parts of a power of two's interval."""
    if size <= SMALLEST * divisions:
        return max(-(-size // SMALLEST), 1) * SMALLEST
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    return size if floor == size else 2 * floor if step == 0 else -(-size // step) * step


def _cut(block: DeviceBlock, size: int) -> DeviceBlock:
    """Return the remainder behind the first bytes of a block."""
    remainder = DeviceBlock(block.pool, block.segment, block.address + size, block.size - size)
    remainder.previous, remainder.next = block, block.next
    if remainder.next is not None:
        remainder.next.previous = remainder
    block.next, block.size = remainder, size
    return remainder


def _forget(block: DeviceBlock) -> None:
    if block.mapped:
        block.pool.remove(block)
    else:
        block.pool.unmapped.remove(block)


def _address(block: DeviceBlock) -> int:
    return block.address


def _growth(block: DeviceBlock) -> int:
    """Return the bytes of an idle block, with unmapped space behind it."""
    return block.size + (block.next.size if block.next is not None and not block.next.mapped else 0)


def _start(hole: DeviceBlock) -> DeviceBlock:
    """Return the idle block before unmapped space, else the space."""
    return hole.previous if hole.previous is not None and hole.previous.is_idle() else hole


def _space(block: DeviceBlock | None) -> int:
    size = 0
    while block is not None and block.is_idle():
        size, block = size + block.size, block.next
    return size
