"""`ChatTemplate`: the messages of a chat as one text, by the Jinja template of a model's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from foreshape.apps.generation.json_files import json_object
from foreshape.errors import DescriptionError, FeedError, FormatError

ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_FILE: Final = "chat_template.jinja"
_CONFIG: Final = "tokenizer_config.json"
_MOST: Final = 1 << 20
"""The most characters of a template."""


class ChatTemplate:
    """A template, rendered with the functions, filters and settings of transformers (5.24), in Jinja's sandbox.

    Args:
        source: of the template.
        words: the names of special words, such as ``eos_token``, with their texts.
        file: its file's name, for errors.

    Raises:
        FormatError: it is no template.
    """

    def __init__(self, source: str, words: Mapping[str, str], file: str = _FILE) -> None:
        environment = _environment()
        self._words, self._file, self.developers = dict(words), file, "developer" in source
        if len(source) > _MOST:
            raise FormatError(f"{file} may have {_MOST:,} characters; it has {len(source):,}")
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # of Jinja's own kinds, and of Python's for nesting
            raise FormatError(f"{file} is no template of Jinja: {str(error)[:200]}") from None

    def render(self, messages: Sequence[Mapping[str, str]], prompt: bool = True) -> str:
        """Return the text of messages.

        Args:
            messages: each with ``role`` and ``content``. The role "developer" is "system" where the template does not know it.
            prompt: the beginning of an answer is at the end (``add_generation_prompt``).

        Raises:
            FeedError: the template refuses the messages.
        """
        if not self.developers:
            messages = [{**message, "role": "system"} if message["role"] == "developer" else message for message in messages]
        try:
            return self._template.render(messages=messages, add_generation_prompt=prompt, tools=None, documents=None, **self._words)
        except Exception as error:  # of any kind, by the code of the template
            raise FeedError(f"the chat template refuses the messages: {str(error)[:300] or type(error).__name__}") from None


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """Return the template of a folder: of chat_template.jinja, else of tokenizer_config.json; None if there is none.

    Raises:
        FormatError: a file is damaged. DescriptionError: no package jinja2.
    """
    config = json_object(folder / _CONFIG) if (folder / _CONFIG).is_file() else {}
    file, source = folder / _FILE, config.get("chat_template")
    if file.is_file():
        try:
            return ChatTemplate(file.read_text("utf-8"), _special_words(folder, config))
        except UnicodeDecodeError as error:
            raise FormatError(f"{file}: {error}") from None
    if isinstance(source, list):
        entries = [cast("dict[str, Any]", entry) for entry in cast("list[Any]", source) if isinstance(entry, dict)]
        source = next((entry.get("template") for entry in entries if entry.get("name") == "default"), None)
    if source is None:
        return None
    if not isinstance(source, str):
        raise FormatError.must(f"{folder / _CONFIG}: chat_template", "a text", type(source).__name__)  # pyright: ignore[reportUnknownArgumentType]
    return ChatTemplate(source, _special_words(folder, config), f"the chat_template of {_CONFIG}")


def _special_words(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special words with their names, as ``eos_token``."""
    file = folder / "special_tokens_map.json"
    entries = {**(json_object(file) if file.is_file() else {}), **{name: value for name, value in config.items() if value is not None}}
    out: dict[str, str] = {}
    for role in ROLES:
        entry: Any = entries.get(f"{role}_token")
        content: Any = cast("dict[str, Any]", entry).get("content") if isinstance(entry, dict) else entry
        if isinstance(content, str):
            out[f"{role}_token"] = content
    return out


def _tojson(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)  # Jinja's own would write &lt; for <


def _environment() -> Any:
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise DescriptionError("chat templates are rendered by the package jinja2: pip install 'foreshape[serve]'") from None

    class Answers(Extension):
        """The tag ``generation`` around the answers of a chat, for masks in training: its text is rendered as it is."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_answer"), [], [], body).set_lineno(line)

        def _answer(self, caller: Any) -> str:
            return caller()

    def refuse(words: str) -> None:
        raise TemplateError(words)

    def now(form: str) -> str:
        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Answers, loopcontrols])
    environment.filters["tojson"] = _tojson
    functions: dict[str, Any] = {"raise_exception": refuse, "strftime_now": now}
    environment.globals.update(functions)
    return environment
