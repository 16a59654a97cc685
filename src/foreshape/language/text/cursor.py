"""A cursor that reads tokens off a line of the text form, one at a time: only the position is kept, so memory is bounded."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, Final, NoReturn

from foreshape.errors import FormatError
from foreshape.language.operator.attributes import AttrType, Raw
from foreshape.language.program.call_site import Site
from foreshape.language.text.literal import escape
from foreshape.language.text.writer import PLAIN_FILE

_TOKEN: Final = re.compile(
    r"""[ \t]*+(?:
      (?P<name>[A-Za-z_@][A-Za-z0-9_.@]*+)
    | (?P<string>"(?:[^"\\\n]++|\\.)*+")
    | (?P<number>-?\d++(?:\.\d*+)?+(?:[eE][+-]?\d++)?+)
    | (?P<mark>//|[-+*/%=:,(){}\[\]|?])
    | (?P<comment>\#.*)
    )""",
    re.VERBOSE,
)
_SPACE: Final = re.compile(r"[ \t]*+")
_SITE: Final = re.compile(rf'[ \t]*#[ \t]*(?:("(?:[^"\\]++|\\.)*+")|({PLAIN_FILE})):(\d{{1,9}})[ \t]*\Z')
NAMES: Final = ("name", "string")
END: Final = ("end", "")
_MAX_DIGITS: Final = 400
"""More digits than any written number has."""
_SINGLES: Final = {AttrType.INTS: AttrType.INT, AttrType.FLOATS: AttrType.FLOAT, AttrType.STRINGS: AttrType.STRING, AttrType.BOOLEANS: AttrType.BOOLEAN,
                   AttrType.BLOCKS: AttrType.BLOCK, AttrType.LONGS: AttrType.LONG, AttrType.FLOAT64S: AttrType.FLOAT64,
                   AttrType.VARS: AttrType.VAR, AttrType.SCALARS: AttrType.SCALAR}  # fmt: skip
_RANGES: Final = {AttrType.INT: 2**31, AttrType.BLOCK: 2**31, AttrType.LONG: 2**63}


class Cursor:
    """A place in one line."""

    __slots__ = ("at", "line", "next", "next_end", "number")

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number = line, number
        self.at = 0
        self.next: tuple[str, str] = END
        self.next_end = 0
        self._scan(0)

    def _scan(self, position: int) -> None:
        match = _TOKEN.match(self.line, position)
        self.at = position
        if match is not None:
            kind = match.lastgroup
            assert kind is not None
            if kind == "comment":
                self.next, self.next_end = END, position
            else:
                self.next, self.next_end = (kind, match.group(kind)), match.end()
            return
        start = _SPACE.match(self.line, position).end()  # pyright: ignore[reportOptionalMemberAccess]
        self.next, self.next_end = END, start
        if start < len(self.line):
            self.at = start
            self.fail("a name, a number or a mark", escape(self.line[start]))

    def fail(self, expected: str, token: str | None = None) -> NoReturn:
        """Refuse the next token."""
        start = _SPACE.match(self.line, self.at).end()  # pyright: ignore[reportOptionalMemberAccess]
        text = token if token is not None else escape(self.next[1][:40]) if self.next is not END else "the end of the line"
        raise FormatError(f"line {self.number}, column {start + 1}: expected {expected}, seen {text}")

    def refuse(self, words: str) -> NoReturn:
        """Refuse the last token."""
        raise FormatError(f"line {self.number}, column {self.at + 1}: {escape(words)}")

    def take(self) -> tuple[str, str]:
        """Return the next token; the place moves past it."""
        token = self.next
        self._scan(self.next_end)
        return token

    def jump(self, position: int) -> None:
        """Go on at another place in the line."""
        self._scan(position)

    def sees(self, mark: str) -> bool:
        """Tell whether the next token is this mark or word."""
        return self.next[1] == mark and self.next[0] != "string"

    def accept(self, mark: str) -> bool:
        """Go past this mark or word if it is next."""
        if self.next[1] == mark and self.next[0] != "string":
            self._scan(self.next_end)
            return True
        return False

    def expect(self, mark: str, expected: str = "") -> None:
        """Go past this mark or word. Raises `FormatError` if another is next."""
        if not self.accept(mark):
            self.fail(expected or f"'{mark}'")

    def peek_after(self, count: int = 1) -> tuple[str, str]:
        """Return the token after the next ``count``, without going there."""
        position, end, token = self.at, self.next_end, self.next
        for _ in range(count):
            self._scan(self.next_end)
        token_after = self.next
        self.at, self.next_end, self.next = position, end, token
        return token_after

    # --- values

    def name(self, expected: str = "a name") -> str:
        kind, text = self.next
        if kind == "name":
            self._scan(self.next_end)
            return text
        if kind == "string":
            return self.string(expected)
        self.fail(expected)

    def string(self, expected: str = "a string") -> str:
        kind, text = self.next
        if kind != "string":
            self.fail(expected)
        try:
            out = json.loads(text)
        except ValueError:
            self.fail("a string in JSON's form")
        self._scan(self.next_end)
        return out

    def hex(self, expected: str = "hexadecimal digits") -> bytes:
        try:
            if self.next[0] == "string":
                out = bytes.fromhex(self.next[1][1:-1])
                self._scan(self.next_end)
                return out
        except ValueError:
            pass
        self.fail(f"{expected} in quotation marks")

    def integer(self, expected: str = "an integer", limit: int = 2**63) -> int:
        kind, text = self.next
        if kind != "number" or not text.lstrip("-").isdigit() or len(text) > 20 or not -limit <= int(text) < limit:
            self.fail(f"{expected} from {-limit} to {limit - 1}" if kind == "number" and limit else expected)
        self._scan(self.next_end)
        return int(text)

    def number_value(self) -> float:
        """Return a number, ``inf``, ``nan``, or a NaN with its bits."""
        negative = self.accept("-")
        kind, text = self.next
        if (kind == "number" and len(text) <= _MAX_DIGITS) or (kind == "name" and text in ("inf", "nan")):
            self._scan(self.next_end)
            out = float(text)
        elif kind == "name" and re.fullmatch(r"nan_[0-9a-f]{16}", text):
            self._scan(self.next_end)
            out = struct.unpack(">d", bytes.fromhex(text[4:]))[0]
            if not math.isnan(out):
                self.refuse(f"{text} is not a NaN")
        else:
            self.fail("a number")
        return -out if negative else out

    def boolean(self) -> bool:
        if self.accept("True"):
            return True
        self.expect("False", "True or False")
        return False

    def attribute(self, type: AttrType) -> Any:
        """Return a value of an attribute of this type."""
        if self.sees("raw"):
            self.take()
            return Raw(self.hex())
        single = _SINGLES.get(type)
        if single is None:
            return self._single(type)
        self.expect("[", f"'[', which begins the {type.name} value")
        out: list[Any] = []
        while not self.accept("]"):
            if out:
                self.expect(",", "',' or ']'")
            out.append(self._single(single))
        return tuple(out)

    def _single(self, type: AttrType) -> Any:
        limit = _RANGES.get(type)
        if limit is not None:
            return self.integer("an integer", limit)
        if type is AttrType.BOOLEAN:
            return self.boolean()
        if type in (AttrType.STRING, AttrType.VAR):
            return self.string(f"a string, for a {type.name} value")
        if type is AttrType.FLOAT:
            value = self.number_value()
            try:
                return struct.unpack("<f", struct.pack("<f", value))[0]
            except OverflowError:
                self.refuse(f"{value} does not fit single precision")
        if type is AttrType.FLOAT64:
            return self.number_value()
        return self._scalar()

    def _scalar(self) -> bool | int | float | complex:
        """Read a number; its spelling determines the type."""
        kind, text = self.next
        if kind == "name" and text in ("True", "False"):
            return self.boolean()
        if kind == "name" and text == "complex":
            self.take()
            self.expect("(")
            real = self.number_value()
            self.expect(",")
            imaginary = self.number_value()
            self.expect(")")
            return complex(real, imaginary)
        return self.integer() if kind == "number" and text.lstrip("-").isdigit() else self.number_value()

    def site(self) -> Site:
        """Read the call site in the comment at the end of the line; None without a comment. Anything else is refused."""
        if self.next is not END:
            self.fail("the end of the line")
        match = _SITE.match(self.line, self.at)
        if match is None:
            return None
        if match.group(1) is None:
            return (match.group(2), int(match.group(3)), "")
        try:
            return (json.loads(match.group(1)), int(match.group(3)), "")
        except ValueError:
            return None
