"""The parts of ONNX's models: numbers, texts, tensors and types, scanned field by field (see `foreshape.wire.onnx_model`)."""

from __future__ import annotations

import struct
from typing import Any, Final

from foreshape.errors import FormatError
from foreshape.wire.limits import Budget, Limits
from foreshape.wire.onnx_records import TensorRecord, TypeRecord, ValueRecord
from foreshape.wire.scan import expect, fields, text, varint

FIELD_COST: Final = 90
"""The memory of a field and its record, in bytes; a dropped field costs time."""
_EXTERNAL: Final = 1


class PartReader:
    """The state of reading one file."""

    __slots__ = ("budget", "data", "depth", "folder", "limits", "seen")

    def __init__(self, data: Any, limits: Limits, folder: str | None) -> None:
        self.data = data
        self.limits = limits
        self.folder = folder
        self.depth = 0
        self.seen: dict[bytes, tuple[str, Any]] = {}
        """The short attributes read so far, by their bytes: a deep network repeats them."""
        self.budget = Budget(Limits(bytes=max(limits.bytes, len(data)), memory=limits.memory, memory_per_byte=limits.memory_per_byte), len(data))

    def _number(self, wire: int, start: int, end: int, where: str, field: str = "") -> int:
        if wire != 0:
            expect(wire, 0, f"{where}{field}", start)
        if end - start == 1:
            return self.data[start]
        value, _ = varint(self.data, start, end, f"{where}{field}")
        return value - (1 << 64) if value >> 63 else value

    def _text(self, wire: int, start: int, end: int, where: str, tag: int, field: str = "") -> str:
        if wire != 2:
            expect(wire, 2, f"{where}{field}", tag)
        size = end - start
        if size > self.limits.name:
            raise FormatError(f"{where}{field}: a text of {size} bytes; the limit is {self.limits.name} (Limits.name)")
        budget = self.budget
        budget.left -= size
        if budget.left < 0:
            budget.take(0, f"{where}{field}")
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError:
            return text(self.data, start, end, f"{where}{field}")  # whose error has the place

    def _opset(self, start: int, end: int, where: str) -> tuple[str, int]:
        domain, version = "", 0
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            if number == 1:
                domain = self._text(wire, s, e, where, tag, ".domain")
            elif number == 2:
                version = self._number(wire, s, e, where, ".version")
        return "" if domain == "ai.onnx" else domain, version

    def _packed(self, number: int, wire: int, start: int, end: int, where: str) -> list[Any]:
        data = self.data
        if number == 7:
            if (end - start) % 4 or wire not in (2, 5):
                raise FormatError(f"{where}: floats of {end - start} bytes, at byte {start}")
            self.budget.take(8 * (end - start), where)
            return list(struct.unpack(f"<{(end - start) // 4}f", data[start:end]))
        if wire == 0:
            return [self._number(wire, start, end, where)]
        expect(wire, 2, where, start)
        self.budget.take(40 * (end - start), where)
        out: list[int] = []
        at = start
        while at < end:
            value, at = varint(data, at, end, where)
            out.append(value - (1 << 64) if value >> 63 else value)
        return out

    def tensor(self, start: int, end: int, where: str) -> TensorRecord:
        """Read a tensor but its data."""
        name, code, location = "", 0, 0
        dims: list[int] = []
        raw: tuple[int, int] | None = None
        numbers: list[tuple[int, int, int, int]] = []
        external: dict[str, str] = {}
        data = self.data
        for number, wire, tag, s, e in fields(data, start, end, where):
            if number == 1:
                if wire == 0 and e - s == 1:  # as nearly always
                    dims.append(data[s])
                else:
                    dims += self._packed(8, wire, s, e, f"{where}.dims")
            elif number == 2:
                code = self._number(wire, s, e, where, ".data_type")
            elif number == 8:
                name = self._text(wire, s, e, where, tag, ".name")
            elif number == 9:
                if wire != 2:
                    expect(wire, 2, f"{where}.raw_data", tag)
                raw = (s, e)
            elif number in (4, 5, 6, 7, 10, 11):
                self.budget.take(FIELD_COST, where)
                numbers.append((number, wire, s, e))
            elif number == 13:
                key, value = self._entry(s, e, f"{where}.external_data")
                external[key] = value
            elif number == 14:
                location = self._number(wire, s, e, where, ".data_location")
            elif number == 3:
                raise FormatError(f"{where}: a tensor in segments is not known here, at byte {tag}")
        if dims and (len(dims) > 64 or min(dims) < 0):
            raise FormatError(f"{where}: dims must be at most 64 numbers of at least 0; seen {dims[:8]}, at byte {start}")
        return TensorRecord(name, code, tuple(dims), where, raw, tuple(numbers), external if location == _EXTERNAL else None, data)

    def _entry(self, start: int, end: int, where: str) -> tuple[str, str]:
        key = value = ""
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(FIELD_COST, where)
            if number == 1:
                key = self._text(wire, s, e, where, tag)
            elif number == 2:
                value = self._text(wire, s, e, where, tag)
        return key, value

    def value(self, start: int, end: int, where: str) -> ValueRecord:
        """Read an input, an output or a described value."""
        name, type = "", None
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(FIELD_COST, where)
            if number == 1:
                name = self._text(wire, s, e, where, tag, ".name")
            elif number == 2:
                expect(wire, 2, f"{where}.type", tag)
                type = self.type(s, e, f"{where}.type")
        return ValueRecord(name, type)

    def type(self, start: int, end: int, where: str, depth: int = 0) -> TypeRecord:
        """Read a type."""
        if depth > 8:
            raise FormatError(f"{where}: types are nested more than 8 deep, at byte {start}")
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            self.budget.take(FIELD_COST, where)
            if number not in (1, 4, 5, 8, 9):
                continue
            expect(wire, 2, where, tag)
            if number == 1:
                return self._tensor_type(s, e, where)
            if number in (4, 9):
                inner = next(((a, b) for n, w, _, a, b in fields(self.data, s, e, where) if n == 1 and w == 2), None)
                return TypeRecord("sequence" if number == 4 else "optional", inner=None if inner is None else self.type(*inner, where, depth + 1))
            return TypeRecord({5: "map", 8: "sparse tensor"}[number])
        return TypeRecord("")

    def _tensor_type(self, start: int, end: int, where: str) -> TypeRecord:
        code, dims = 0, None
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            if number == 1:
                code = self._number(wire, s, e, where, ".elem_type")
            elif number == 2:
                expect(wire, 2, f"{where}.shape", tag)
                dims = [self._dim(a, b, f"{where}.shape") for n, _, _, a, b in fields(self.data, s, e, where) if n == 1]
                if len(dims) > 64:
                    raise FormatError(f"{where}: more than 64 dims, at byte {start}")
        return TypeRecord("tensor", code, None if dims is None else tuple(dims))

    def _dim(self, start: int, end: int, where: str) -> int | str | None:
        self.budget.take(FIELD_COST, where)
        for number, wire, tag, s, e in fields(self.data, start, end, where):
            if number == 1:
                size = self._number(wire, s, e, where)
                if size < -1:
                    raise FormatError(f"{where}: a dim of {size}, at byte {tag}")
                return None if size == -1 else size
            if number == 2:
                return self._text(wire, s, e, where, tag) or None
        return None
