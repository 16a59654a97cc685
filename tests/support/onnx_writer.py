"""ONNX models written by hand, for tests: the `onnx` package is not needed."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape.language.wire.scan import delimited, write_varint

_NAMES = ["float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16", "float64", "uint32", "uint64"]
CODES = {name: at for at, name in enumerate(_NAMES, 1)}
"""Element type -> its number in a file."""


def number(field: int, value: int) -> bytes:
    return write_varint(field << 3) + write_varint(value & (1 << 64) - 1)


def field(number: int, value: bytes | str) -> bytes:
    return delimited(write_varint(number << 3 | 2), value.encode() if isinstance(value, str) else value)


def tensor(name: str, array: Any, external: Mapping[str, Any] | None = None) -> bytes:
    array = np.asarray(array)
    out = b"".join(number(1, d) for d in array.shape) + number(2, CODES[str(array.dtype)]) + field(8, name)
    if external is None:
        return out + field(9, array.tobytes())
    return out + b"".join(field(13, field(1, k) + field(2, str(v))) for k, v in external.items()) + number(14, 1)


def attribute(name: str, value: Any) -> bytes:
    out = field(1, name)
    if isinstance(value, Graph):
        return out + field(6, value.data) + number(20, 5)
    if isinstance(value, np.ndarray):
        return out + field(5, tensor("", value)) + number(20, 4)
    if isinstance(value, str):
        return out + field(4, value) + number(20, 3)
    if isinstance(value, float):
        return out + write_varint(2 << 3 | 5) + struct.pack("<f", value) + number(20, 1)
    if isinstance(value, int):
        return out + number(3, value) + number(20, 2)
    if isinstance(value[0], str):
        return out + b"".join(field(9, v) for v in value) + number(20, 8)
    if isinstance(value[0], float):
        return out + field(7, struct.pack(f"<{len(value)}f", *value)) + number(20, 6)
    return out + b"".join(number(8, v) for v in value) + number(20, 7)


def node(operator: str, inputs: str, outputs: str, domain: str = "", name: str = "", metadata: Mapping[str, str] | None = None, **attributes: Any) -> bytes:
    """``inputs`` and ``outputs`` are names with spaces between; ``_`` is one that is left out."""
    names = lambda text, at: b"".join(field(at, "" if n == "_" else n) for n in text.split())  # noqa: E731
    out = names(inputs, 1) + names(outputs, 2) + field(3, name) + field(4, operator) + field(7, domain)
    out += b"".join(field(9, field(1, k) + field(2, v)) for k, v in (metadata or {}).items())
    return out + b"".join(field(5, attribute(k, v)) for k, v in attributes.items())


def value(name: str, dtype: str, dims: Sequence[int | str] | None) -> bytes:
    shape = b"" if dims is None else field(2, b"".join(field(1, number(1, d) if isinstance(d, int) else field(2, d)) for d in dims))
    return field(1, name) + field(2, field(1, number(1, CODES[dtype]) + shape))


class Graph:
    def __init__(
        self,
        nodes: Sequence[bytes],
        inputs: Sequence[bytes] = (),
        outputs: Sequence[bytes] = (),
        tensors: Sequence[bytes] = (),
        described: Sequence[bytes] = (),
    ) -> None:
        parts = [*(field(1, n) for n in nodes), field(2, "g"), *(field(5, t) for t in tensors), *(field(13, v) for v in described)]
        self.data = b"".join([*parts, *(field(11, v) for v in inputs), *(field(12, v) for v in outputs)])


def function(name: str, inputs: str, outputs: str, nodes: Sequence[bytes], domain: str = "own", opset: int = 18) -> bytes:
    out = field(1, name) + b"".join(field(4, n) for n in inputs.split()) + b"".join(field(5, n) for n in outputs.split())
    return out + b"".join(field(7, n) for n in nodes) + field(9, number(2, opset)) + field(10, domain)


def model(graph: Graph, opset: int = 18, functions: Sequence[bytes] = (), domains: Sequence[str] = ()) -> bytes:
    sets = field(8, number(2, opset)) + b"".join(field(8, field(1, d) + number(2, 1)) for d in domains)
    return number(1, 8) + sets + field(7, graph.data) + b"".join(field(25, f) for f in functions)


def opened(data: bytes, folder: Path) -> fs.InferenceModel:
    """Return a model, written to a folder, in a scope of its own."""
    (folder / "m.onnx").write_bytes(data)
    return fs.load_inference_model(folder / "m.onnx", scope=fs.Scope())
