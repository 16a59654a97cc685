"""The parts of ONNX's models: numbers, texts, tensors and types, scanned field by field (see `foreshape.language.wire.onnx_model`)."""

from __future__ import annotations

import struct
from typing import Any, Final

from foreshape.errors import FormatError
from foreshape.language.wire.limits import Budget, Limits
from foreshape.language.wire.onnx_records import TensorRecord, TypeRecord, ValueRecord
from foreshape.language.wire.scan import expect, fields, text, varint

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

    def _number(self, wire: int, start: int, end: int, place: str, field: str = "") -> int:
        if wire != 0:
            expect(wire, 0, f"{place}{field}", start)
        if end - start == 1:
            return self.data[start]
        value, _ = varint(self.data, start, end, f"{place}{field}")
        return value - (1 << 64) if value >> 63 else value

    def _text(self, wire: int, start: int, end: int, place: str, tag: int, field: str = "") -> str:
        if wire != 2:
            expect(wire, 2, f"{place}{field}", tag)
        size = end - start
        if size > self.limits.name:
            raise FormatError(f"{place}{field}: a text of {size} bytes; the limit is {self.limits.name} (Limits.name)")
        budget = self.budget
        budget.left -= size
        if budget.left < 0:
            budget.take(0, f"{place}{field}")
        try:
            return self.data[start:end].decode()
        except UnicodeDecodeError:
            return text(self.data, start, end, f"{place}{field}")  # whose error has the place

    def _opset(self, start: int, end: int, place: str) -> tuple[str, int]:
        domain, version = "", 0
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            if number == 1:
                domain = self._text(wire, s, e, place, tag, ".domain")
            elif number == 2:
                version = self._number(wire, s, e, place, ".version")
        return "" if domain == "ai.onnx" else domain, version

    def _packed(self, number: int, wire: int, start: int, end: int, place: str) -> list[Any]:
        data = self.data
        if number == 7:
            if (end - start) % 4 or wire not in (2, 5):
                raise FormatError(f"{place}: floats of {end - start} bytes, at byte {start}")
            self.budget.take(8 * (end - start), place)
            return list(struct.unpack(f"<{(end - start) // 4}f", data[start:end]))
        if wire == 0:
            return [self._number(wire, start, end, place)]
        expect(wire, 2, place, start)
        self.budget.take(40 * (end - start), place)
        out: list[int] = []
        position = start
        while position < end:
            value, position = varint(data, position, end, place)
            out.append(value - (1 << 64) if value >> 63 else value)
        return out

    def tensor(self, start: int, end: int, place: str) -> TensorRecord:
        """Read a tensor but its data."""
        name, code, location = "", 0, 0
        dims: list[int] = []
        raw: tuple[int, int] | None = None
        numbers: list[tuple[int, int, int, int]] = []
        external: dict[str, str] = {}
        data = self.data
        for number, wire, tag, s, e in fields(data, start, end, place):
            if number == 1:
                if wire == 0 and e - s == 1:  # as nearly always
                    dims.append(data[s])
                else:
                    dims += self._packed(8, wire, s, e, f"{place}.dims")
            elif number == 2:
                code = self._number(wire, s, e, place, ".data_type")
            elif number == 8:
                name = self._text(wire, s, e, place, tag, ".name")
            elif number == 9:
                if wire != 2:
                    expect(wire, 2, f"{place}.raw_data", tag)
                raw = (s, e)
            elif number in (4, 5, 6, 7, 10, 11):
                self.budget.take(FIELD_COST, place)
                numbers.append((number, wire, s, e))
            elif number == 13:
                key, value = self._entry(s, e, f"{place}.external_data")
                external[key] = value
            elif number == 14:
                location = self._number(wire, s, e, place, ".data_location")
            elif number == 3:
                raise FormatError(f"{place}: a tensor in segments is not known here, at byte {tag}")
        if dims and (len(dims) > 64 or min(dims) < 0):
            raise FormatError(f"{place}: dims must be at most 64 numbers of at least 0; seen {dims[:8]}, at byte {start}")
        return TensorRecord(name, code, tuple(dims), place, raw, tuple(numbers), external if location == _EXTERNAL else None, data)

    def _entry(self, start: int, end: int, place: str) -> tuple[str, str]:
        key = value = ""
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            self.budget.take(FIELD_COST, place)
            if number == 1:
                key = self._text(wire, s, e, place, tag)
            elif number == 2:
                value = self._text(wire, s, e, place, tag)
        return key, value

    def value(self, start: int, end: int, place: str) -> ValueRecord:
        """Read an input, an output or a described value."""
        name, type = "", None
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            self.budget.take(FIELD_COST, place)
            if number == 1:
                name = self._text(wire, s, e, place, tag, ".name")
            elif number == 2:
                expect(wire, 2, f"{place}.type", tag)
                type = self.type(s, e, f"{place}.type")
        return ValueRecord(name, type)

    def type(self, start: int, end: int, place: str, depth: int = 0) -> TypeRecord:
        """Read a type."""
        if depth > 8:
            raise FormatError(f"{place}: types are nested more than 8 deep, at byte {start}")
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            self.budget.take(FIELD_COST, place)
            if number not in (1, 4, 5, 8, 9):
                continue
            expect(wire, 2, place, tag)
            if number == 1:
                return self._tensor_type(s, e, place)
            if number in (4, 9):
                inner = next(((a, b) for n, w, _, a, b in fields(self.data, s, e, place) if n == 1 and w == 2), None)
                return TypeRecord("sequence" if number == 4 else "optional", inner=None if inner is None else self.type(*inner, place, depth + 1))
            return TypeRecord({5: "map", 8: "sparse tensor"}[number])
        return TypeRecord("")

    def _tensor_type(self, start: int, end: int, place: str) -> TypeRecord:
        code, dims = 0, None
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            if number == 1:
                code = self._number(wire, s, e, place, ".elem_type")
            elif number == 2:
                expect(wire, 2, f"{place}.shape", tag)
                dims = [self._dim(a, b, f"{place}.shape") for n, _, _, a, b in fields(self.data, s, e, place) if n == 1]
                if len(dims) > 64:
                    raise FormatError(f"{place}: more than 64 dims, at byte {start}")
        return TypeRecord("tensor", code, None if dims is None else tuple(dims))

    def _dim(self, start: int, end: int, place: str) -> int | str | None:
        self.budget.take(FIELD_COST, place)
        for number, wire, tag, s, e in fields(self.data, start, end, place):
            if number == 1:
                size = self._number(wire, s, e, place)
                if size < -1:
                    raise FormatError(f"{place}: a dim of {size}, at byte {tag}")
                return None if size == -1 else size
            if number == 2:
                return self._text(wire, s, e, place, tag) or None
        return None
