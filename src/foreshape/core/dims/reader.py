"""The reader of a size from its text, also used for pickling."""

from __future__ import annotations

import copyreg
import json
import re
from collections.abc import Callable
from typing import Any

from foreshape.core.dims.derived import ceildiv
from foreshape.core.dims.expression import INT64_MAX, MAX_DEPTH, Dim, Size, checked, symbol
from foreshape.core.dims.extremes import apply
from foreshape.core.dims.text import CALLED
from foreshape.errors import ShapeError

_TOKEN = re.compile(r'\s*(?:([0-9]+)|([A-Za-z_][A-Za-z0-9_.@]*)|("(?:[^"\\]|\\.)*")|(//|[-+*%(),/]))')
MAX_TEXT = 8192
"""The longest text for `parse`, in characters."""


def parse(text: str) -> Size:
    """Return the size of a text, such as ``2*batch*words + 1``; the inverse of ``str``.

    Raises:
        ShapeError: the text is no size, is longer than `MAX_TEXT`, or is nested too deeply.
    """
    if len(text) > MAX_TEXT:
        raise ShapeError(f"a size of {len(text)} characters is longer than the {MAX_TEXT} that are read")
    tokens: list[str] = []
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if not match:
            raise ShapeError(f"{text!r} is not a size: character {position} is not understood")
        tokens.append(match.group().strip())
        position = match.end()
    reader = _SizeParser(text, tokens)
    out = reader.sum(0)
    if reader.at != len(tokens):
        raise ShapeError(f"{text!r} is not a size: {tokens[reader.at]!r} was not expected")
    return out


class _SizeParser:
    __slots__ = ("at", "text", "tokens")

    def __init__(self, text: str, tokens: list[str]) -> None:
        self.text, self.tokens, self.at = text, tokens, 0

    def next(self) -> str:
        if self.at >= len(self.tokens):
            raise ShapeError(f"{self.text!r} is not a size: it ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def sum(self, depth: int) -> Size:
        if depth > 2 * MAX_DEPTH + 2:
            raise ShapeError("a size is nested too deeply to be read")
        out = self.term(depth)
        while self.peek() in ("+", "-"):
            sign = self.next()
            right = self.term(depth)
            out = out + right if sign == "+" else out - right
        return checked(out) if isinstance(out, int) else out

    def term(self, depth: int) -> Size:
        out = self.factor(depth)
        while self.peek() in ("*", "//", "%"):
            op = self.next()
            right = self.factor(depth)
            out = out * right if op == "*" else apply(op, (out, right))
        return out

    def number(self, token: str, limit: int) -> int:
        if len(token) > 19 or int(token) > limit:
            raise ShapeError(f"{token[:40]} does not fit a 64-bit integer")
        return int(token)

    def factor(self, depth: int) -> Size:
        token = self.next()
        if token == "-":
            if self.peek()[:1].isdigit():
                return -self.number(self.next(), INT64_MAX + 1)
            return -self.factor(depth + 1) if depth <= 2 * MAX_DEPTH + 2 else self.sum(depth + 1)
        if token == "(":
            out = self.sum(depth + 1)
            if self.next() != ")":
                raise ShapeError(f"{self.text!r} is not a size: a bracket is not closed")
            return out
        if token[0].isdigit():
            return self.number(token, INT64_MAX)
        if token in CALLED and self.peek() == "(":
            self.next()
            args = [self.sum(depth + 1)]
            while (mark := self.next()) == ",":
                args.append(self.sum(depth + 1))
            if mark != ")":
                raise ShapeError(f"{self.text!r} is not a size: a bracket is not closed")
            return apply(token, tuple(args))
        if token == "ceil" and self.peek() == "(":
            return self.rounded_up(depth)
        if token[0] == '"':
            try:
                return symbol(json.loads(token))
            except ValueError:
                raise ShapeError(f"{self.text!r} is not a size: {token} is not a name") from None
        if token[0].isalpha() or token[0] == "_":
            return symbol(token)
        raise ShapeError(f"{self.text!r} is not a size: {token!r} was not expected")

    def rounded_up(self, depth: int) -> Size:
        """Return the rest of ``ceil(a / b)``."""
        self.next()
        a = self.sum(depth + 1)
        marks = [self.next()]
        b = self.sum(depth + 1)
        marks.append(self.next())
        if marks != ["/", ")"]:
            raise ShapeError(f"{self.text!r} is not a size: ceil(a / b) was expected")
        return ceildiv(a, b)


def _reduced(size: Dim) -> tuple[Callable[[str], Any], tuple[str]]:
    return parse, (size.text,)


copyreg.pickle(Dim, _reduced)
