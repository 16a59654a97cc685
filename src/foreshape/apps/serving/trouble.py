"""Troubles of the server: the log has the words, and clients get a number to ask its owner about."""

from __future__ import annotations

import logging
import re
from secrets import token_hex
from typing import Final

from foreshape.apps.serving.server_limits import RequestError

log: Final = logging.getLogger("foreshape.serving")
_LINE: Final = re.compile(r"\n    at [^\n]*")
_PATH: Final = re.compile(r"(?<![\w.:/])/(?:[^\s/'\"]+/)+")


def log_trouble(words: str, error: BaseException | None = None) -> str:
    """Write a trouble into the log, and return its number."""
    number = token_hex(4)
    log.error("trouble %s: %s", number, words, exc_info=error)
    return number


def server_error(words: str, error: BaseException) -> RequestError:
    """Return the answer for a mistake of the server, after its words went into the log."""
    return RequestError(500, f"the server failed: {type(error).__name__}", trouble=log_trouble(words, error))


def client_words(error: object) -> str:
    """Return the words of an error without the server's folders, and without lines of its files."""
    return _PATH.sub("", _LINE.sub("", str(error)))
