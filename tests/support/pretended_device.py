"""A device that this machine does not have: its tensors say that they lie there, are computed on the processor, and what a GPU would do is counted.

    with pretended() as device:
        executor = fs.Executor(device.name)  # "cuda:0"
        executor.run(...)
        device.reset()
        executor.run(...)
        print(device.counts(), device.syncs_by_place)

- A launch is an operator that would start a kernel; views, metadata and empty allocations are none. What a kernel needs inside is not seen, nor that
  some are several: a convolution's gradient counts one.
- A sync is a wait of the host for the device: a number or a copy read from there, or a result whose shape its numbers decide.
  ``syncs_by_place`` has them by the line that waits.
- A copy to the device is ``blocking`` unless it is ``non_blocking`` from pinned memory: torch then waits for the copy too. It counts by itself.
- Live bytes are those of memory that some tensor is in, each in blocks of 512, as CUDA's caching allocator rounds.
- An operator over tensors of both sides is the error of CUDA, but for numbers of the host, which elementwise operators take, and indices.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock
from weakref import WeakValueDictionary

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from foreshape.core.values.torch_proxy import torch as deferred_torch
from support.gpu_operators import ASSERTING, EMPTY, INDEXED, METADATA, ON_GPUS_ALONE, TAKES_NUMBERS, WAITING, WHOLE
from support.pretended_streams import PretendedGraph, PretendedStream, capturing, current, within_stream

BLOCK = 512


class DeviceAssertion(Exception):
    """What no program can catch on a GPU: the context of the process has ended."""


@dataclass(frozen=True)
class Counts:
    """What a device has done since it was reset, and what is alive on it.

    Args:
        blocking: the copies to the device for which the host waits.
        live: bytes of memory in use now.
        peak: the largest of them.
    """

    launches: int = 0
    syncs: int = 0
    copies_in: int = 0
    bytes_in: int = 0
    blocking: int = 0
    copies_out: int = 0
    bytes_out: int = 0
    live: int = 0
    peak: int = 0


class Block:
    """The memory of a storage on the device; alive as long as a tensor is in it."""

    __slots__ = ("__weakref__", "device", "size", "stream")

    def __init__(self, device: PretendedDevice, nbytes: int) -> None:
        self.device, self.size = device, -(-nbytes // BLOCK) * BLOCK
        self.stream = device.stream
        """The stream that writes it; None once another one waited for that."""
        device.grow(self.size)

    def __del__(self) -> None:
        self.device.grow(-self.size)


class PretendedTensor(torch.Tensor):
    """A tensor that says that it lies on the device; its numbers are in ``elements``, on the processor."""

    elements: torch.Tensor
    block: Block
    owner: PretendedDevice

    @staticmethod
    def __new__(cls, elements: torch.Tensor, owner: PretendedDevice) -> PretendedTensor:
        with torch._C._InferenceMode(False):  # a view of a tensor that was made outside of that mode is none of it
            out: Any = torch.Tensor._make_wrapper_subclass(
                cls, elements.size(), strides=elements.stride(), storage_offset=elements.storage_offset(), dtype=elements.dtype, device="meta"
            )
        out.elements, out.block, out.owner = elements, owner.block_of(elements), owner
        return out

    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    @property
    def device(self) -> Any:
        """Return the device; PyTorch itself sees a meta tensor, since it looks for a guard of other devices, which it does not have without CUDA."""
        return self.owner.device

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        owner = next(t.owner for t in tree_flatten((args, kwargs))[0] if isinstance(t, PretendedTensor))
        return owner.call(func, args, kwargs or {})

    __torch_function__ = torch._C._disabled_torch_function_impl

    def to(self, *args: Any, **kwargs: Any) -> Any:
        return self.owner.moved((self, *(torch.device(x) if isinstance(x, str) else x for x in args)), kwargs)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(self._with_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(self._with_tensors(index), value)

    def _with_tensors(self, index: Any) -> Any:
        """Return an index with its lists as tensors of the device: PyTorch would make meta tensors of them."""
        if isinstance(index, tuple):
            return tuple(self._with_tensors(i) for i in index)
        return torch.tensor(index, device=self.device) if isinstance(index, list) else index

    def new_tensor(self, data: Any, **kwargs: Any) -> Any:
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    def data_ptr(self) -> int:
        return self.elements.data_ptr()

    def untyped_storage(self) -> Any:
        return self.elements.untyped_storage()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.cpu().numpy()
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first.")

    def __repr__(self, **_: Any) -> str:
        return f"PretendedTensor({self.elements}, device={self.device})"


class PretendedDevice(TorchDispatchMode):
    """The device ``cuda:0``; while it is entered, calls of torch that make tensors there make pretended ones."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda", 0)
        self.name = str(self.device)
        self.launches_by_name: Counter[str] = Counter()
        self.syncs_by_place: Counter[str] = Counter()
        """The operators that waited, each with the file and the line that called it."""
        self.stream = PretendedStream(self.device)
        self.graph: PretendedGraph | None = None
        self._pinned: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
        self._counts = Counts()
        self._live = self._peak = 0
        self._blocks: WeakValueDictionary[int, Block] = WeakValueDictionary()

    def counts(self) -> Counts:
        """Return what has been counted since the last `reset`."""
        return replace(self._counts, live=self._live, peak=self._peak)

    def reset(self) -> None:
        """Begin to count anew; the peak begins at what is alive."""
        self._counts, self._peak = Counts(), self._live
        self.launches_by_name.clear()
        self.syncs_by_place.clear()

    def grow(self, size: int) -> None:
        """Count memory that was taken, or given back."""
        self._live += size
        self._peak = max(self._peak, self._live)

    def blocks(self) -> list[Block]:
        """Return all memory that tensors are in."""
        return list(self._blocks.values())

    def block_of(self, elements: torch.Tensor) -> Block:
        """Return the memory that a tensor is in."""
        storage = elements.untyped_storage()
        block = self._blocks.get(storage._cdata)
        if block is None:
            self._blocks[storage._cdata] = block = Block(self, storage.nbytes())
        return block

    # --- calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("pin_memory"):
            return self.pin(func(*args, **{**kwargs, "pin_memory": False}))
        leaves = tree_flatten((args, kwargs))[0]
        if not any(isinstance(x, PretendedTensor) or self._is_here(x) for x in leaves):
            return func(*args, **kwargs)
        if func.namespace == "aten" and func.name().split("::")[1].split(".")[0] in ("to", "cpu", "cuda"):
            return self.moved(args, kwargs)
        if func._can_decompose() and func.overloadpacket not in WHOLE:
            with self:
                return func.decompose(*args, **kwargs)
        return self.call(func, args, kwargs)

    def _is_here(self, x: Any) -> bool:
        """Return True for the device, or for that of pretended tensors within kernels of PyTorch."""
        return isinstance(x, torch.device) and x.type in (self.device.type, "meta")

    def moved(self, args: Any, kwargs: Any) -> Any:
        """Return a tensor elsewhere, or in another element type: itself where it is so already."""
        tensor, *rest = args
        target: Any = {k: v for k, v in kwargs.items() if k in ("device", "dtype", "memory_format")}
        copies, patient = bool(kwargs.get("copy")), not kwargs.get("non_blocking")
        flags = [x for x in rest if isinstance(x, bool)]
        patient, copies = patient and flags[:1] != [True], copies or flags[1:2] == [True]
        for x in rest:
            if isinstance(x, torch.dtype):
                target["dtype"] = x
            elif isinstance(x, torch.device):
                target["device"] = x
            elif isinstance(x, torch.Tensor):
                target |= {"dtype": x.dtype, "device": x.device}
        target = {k: v for k, v in target.items() if v is not None}
        device = torch.device(target.get("device", tensor.device))
        if self._is_here(device):
            target["device"] = device = self.device
        if not copies and device == tensor.device and target.get("dtype", tensor.dtype) == tensor.dtype:
            return tensor
        return self.call(torch.ops.aten._to_copy.default, (tensor,), {**target, "non_blocking": not patient})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute one operator over pretended tensors, or that makes one, on the processor, and count it."""
        name = func.name().split("::")[-1].split(".")[0]
        if name == "_to_copy":
            return self._copied(*args, **kwargs)
        if name == "copy_":
            return self._copied_into(*args, **kwargs)
        leaves, form = tree_flatten((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        for x in tensors:
            if isinstance(x, PretendedTensor) and (stream := self.block_of(x.elements).stream) not in (None, self.stream):
                raise AssertionError(f"{name} reads what {stream} may be writing")
        self._refuse_mixed(func, name, tensors)
        plain_args, plain_kwargs = tree_unflatten([self._plain(x) for x in leaves], form)
        compute = ON_GPUS_ALONE.get(name, func)
        if self.graph is not None:
            self.graph.keep([x for x in tree_flatten(self._written(func, plain_args, plain_kwargs))[0] if isinstance(x, torch.Tensor)])
        try:
            results = compute(*plain_args, **plain_kwargs)
        except (IndexError, RuntimeError) as error:
            if name in ASSERTING and "out of" in str(error):
                raise DeviceAssertion(f"{name}: device-side assert triggered: {error}") from None
            raise
        makes = next((i for i, r in enumerate(func._schema.returns) if r.alias_info is not None and r.alias_info.is_write), None)
        out = results if makes is not None else tree_map(lambda x: PretendedTensor(x, self) if isinstance(x, torch.Tensor) else x, results)
        if makes is not None:
            out = self._places(func, args, kwargs)
        if self.graph is not None and (name in EMPTY or not self._is_view(func, name)):
            self.graph.calls.append(partial(_again, compute, plain_args, plain_kwargs, results if makes is None else None))
        if not self._is_view(func, name):
            touched = [x for x in tree_flatten((out, self._written(func, args, kwargs)))[0] if isinstance(x, torch.Tensor)]
            if not touched or any(x.numel() for x in touched):
                self._launch(name)
        elif name == "_local_scalar_dense":
            self._count_out(tensors[0])
        if self._waits(name, args, kwargs):
            self._wait(name)
        return out

    def _plain(self, x: Any) -> Any:
        return x.elements if isinstance(x, PretendedTensor) else torch.device("cpu") if self._is_here(x) else x

    def _is_view(self, func: Any, name: str) -> bool:
        returns = func._schema.returns
        return name in EMPTY or name in METADATA or name == "_local_scalar_dense" or any(
            r.alias_info is not None and not r.alias_info.is_write for r in returns
        )  # fmt: skip

    @staticmethod
    def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
        """Return the arguments that an operator writes to, in their order."""
        out: list[Any] = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                out.append(args[place] if place < len(args) else kwargs.get(argument.name))
        return out

    def _places(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the results of an operator that writes to its arguments: these."""
        places = self._written(func, args, kwargs)[: len(func._schema.returns)]
        for x in places:
            if isinstance(x, PretendedTensor) and (x.shape != x.elements.shape or x.stride() != x.elements.stride()):
                raise NotImplementedError(f"{func} changes the shape {list(x.shape)} in place to {list(x.elements.shape)}")
        return places[0] if len(places) == 1 else tuple(places)

    def _refuse_mixed(self, func: Any, name: str, tensors: Sequence[torch.Tensor]) -> None:
        """Raise CUDA's error for tensors of both sides."""
        host = [t for t in tensors if not isinstance(t, PretendedTensor)]
        if not host or len(host) == len(tensors):
            return
        if name in INDEXED and isinstance(tensors[0], PretendedTensor):
            for t in host:
                if t.dim():
                    self._count_in(t, blocking=True)
            return
        numbers = torch.Tag.pointwise in func.tags or name in TAKES_NUMBERS or name.startswith("_foreach_")
        if not numbers or any(t.dim() for t in host) or (name.endswith("_") and tensors[0] is host[0]):
            shapes = ", ".join(f"{list(t.shape)} on {t.device}" for t in tensors)
            raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two devices, {self.name} and cpu! ({name}: {shapes})")

    # --- copies and waits

    def _count_in(self, source: torch.Tensor, blocking: bool) -> None:
        c = self._counts
        self._counts = replace(c, copies_in=c.copies_in + 1, bytes_in=c.bytes_in + source.nbytes, blocking=c.blocking + blocking)

    def _count_out(self, source: torch.Tensor) -> None:
        c = self._counts
        self._counts = replace(c, copies_out=c.copies_out + 1, bytes_out=c.bytes_out + source.nbytes)

    def _waits(self, name: str, args: Any, kwargs: Any) -> bool:
        if name in WAITING:
            return True
        if name == "repeat_interleave":
            return kwargs.get("output_size") is None
        masks = args[1] if name in INDEXED else ()
        return any(isinstance(m, torch.Tensor) and m.dtype in (torch.bool, torch.uint8) for m in masks)

    def _wait(self, name: str) -> None:
        if self.graph is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._counts = replace(self._counts, syncs=self._counts.syncs + 1)
        frame: Any = sys._getframe(2)
        while frame is not None and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        place = f"{frame.f_code.co_filename.rpartition('foreshape/')[2]}:{frame.f_lineno}" if frame is not None else "?"
        self.syncs_by_place[f"{name} at {place}"] += 1

    def is_pinned(self, source: torch.Tensor) -> bool:
        """Return True for a tensor of the host in pinned memory."""
        return source.untyped_storage()._cdata in self._pinned

    def synchronize(self) -> None:
        """Wait for all that was launched."""
        self._wait("synchronize")

    def pin(self, source: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor of the host that counts as one in pinned memory."""
        out = source.clone()
        self._pinned[out.untyped_storage()._cdata] = out
        return out

    def _copied(self, source: Any, *, device: Any = None, dtype: Any = None, non_blocking: bool = False, memory_format: Any = None, **_: Any) -> Any:
        kwargs: dict[str, Any] = {"dtype": dtype or source.dtype}
        if memory_format is not None:
            kwargs["memory_format"] = memory_format
        copy = torch.ops.aten._to_copy.default
        if not isinstance(source, PretendedTensor):  # to the device; in the element type of the host, or converted there
            if self.graph is not None and not (non_blocking and self.is_pinned(source)):
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing: a copy from unpinned memory")
            self._count_in(source, blocking=not (non_blocking and self.is_pinned(source)))
            return PretendedTensor(copy(source, **kwargs), self)
        if device is None or self._is_here(device):
            if source.numel():
                self._launch("_to_copy")
            out = copy(source.elements, **kwargs)
            if self.graph is not None:
                self.graph.calls.append(partial(out.copy_, source.elements))
            return PretendedTensor(out, self)
        self._count_out(source)
        if not non_blocking:
            self._wait("_to_copy")
        return copy(source.elements, **kwargs)

    def launched(self, name: str) -> None:
        """Count a launch."""
        self._launch(name)

    def _launch(self, name: str) -> None:
        if self.graph is not None:  # it is launched with the graph
            return
        self.launches_by_name[name] += 1
        self._counts = replace(self._counts, launches=self._counts.launches + 1)

    def _copied_into(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        here, there = isinstance(target, PretendedTensor), isinstance(source, PretendedTensor)
        if here and there:
            if target.numel():
                self._launch("copy_")
        elif here:
            self._count_in(source, blocking=not (non_blocking and self.is_pinned(source)))
        else:
            self._count_out(source)
            if not non_blocking:
                self._wait("copy_")
        if self.graph is not None:
            self.graph.keep([self._plain(target)])
            self.graph.calls.append(partial(self._plain(target).copy_, self._plain(source)))
        self._plain(target).copy_(self._plain(source))
        return target


def _again(compute: Any, args: Any, kwargs: Any, results: Any) -> None:
    """Compute an operator of a graph once more, into the results that it gave."""
    new = compute(*args, **kwargs)
    for place, value in zip(tree_flatten(results)[0], tree_flatten(new)[0], strict=False):
        if isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr():
            assert place.stride() == value.stride()
            place.untyped_storage().copy_(value.untyped_storage())


class PretendedGenerator(torch.Generator):
    """A generator that says that it is of the device, and draws on the processor."""

    def __new__(cls, device: Any = "cpu") -> Any:
        target = torch.device(device)
        if target.type == "cpu":
            return _Generator(target)
        out: Any = super().__new__(cls, "cpu")
        out.place = torch.device(target.type, target.index or 0)
        return out

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> Any:
        return self.__dict__["place"]


_Generator: Any = torch.Generator


@contextmanager
def pretended() -> Generator[PretendedDevice]:
    """Let this thread have a device ``cuda:0``, which counts."""
    device = PretendedDevice()
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes a tensor of the host, and moves it
    _ = deferred_torch.Generator  # found, so that it is there to be put back
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "device_count", lambda: 1),
        mock.patch.object(torch.cuda, "_lazy_init", lambda: None),
        mock.patch.object(torch.cuda, "synchronize", lambda _=None: device.synchronize()),
        mock.patch.object(torch.cuda, "current_stream", lambda _=None: device.stream),
        mock.patch.object(torch.cuda, "Stream", PretendedStream),
        mock.patch.object(torch.cuda, "stream", within_stream),
        mock.patch.object(torch.cuda, "CUDAGraph", PretendedGraph),
        mock.patch.object(torch.cuda, "graph", capturing),
        mock.patch.object(torch.cuda, "graph_pool_handle", lambda: (0, 0)),
        mock.patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None),
        mock.patch.object(torch.backends.cudnn, "is_acceptable", lambda x: x.is_cuda),
        mock.patch.object(torch, "Generator", PretendedGenerator),
        mock.patch.object(deferred_torch, "Generator", PretendedGenerator),
        mock.patch.object(torch.Tensor, "pin_memory", lambda tensor: device.pin(tensor)),
        device,
    ):
        current.append(device)
        try:
            yield device
        finally:
            current.pop()
            torch._C._set_only_lift_cpu_tensors(lifts)
