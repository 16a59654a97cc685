"""The width of texts on a terminal: letters such as 模 take two columns and marks over others none."""

from __future__ import annotations

from unicodedata import category, east_asian_width

_OF_NONE = ("Mn", "Me", "Cf")


def wide(text: str) -> int:
    """Return the columns of a line of text."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(letter: str) -> int:
    return 2 if east_asian_width(letter) in "WF" else 0 if category(letter) in _OF_NONE else 1


def fit(text: str, limit: int) -> str:
    """Return ``text`` in at most so many columns; of a longer one both ends, to tell names apart."""
    if wide(text) <= limit:
        return text
    head = begin(text, max(0, (limit - 1) * 2 // 5))
    return f"{head}…{_end(text, limit - 1 - wide(head))}"


def begin(text: str, limit: int) -> str:
    """Return the beginning of ``text`` in at most so many columns."""
    width = 0
    for index, letter in enumerate(text):
        width += _columns(letter)
        if width > limit:
            return text[:index]
    return text


def _end(text: str, limit: int) -> str:
    width = 0
    for index in range(len(text) - 1, -1, -1):
        width += _columns(text[index])
        if width > limit:
            return text[index + 1 :]
    return text


def left(text: str, columns: int) -> str:
    """Return ``text`` with spaces behind it, in so many columns."""
    return text + " " * (columns - wide(text))


def right(text: str, columns: int) -> str:
    """Return ``text`` with spaces before it, in so many columns."""
    return " " * (columns - wide(text)) + text
