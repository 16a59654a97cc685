"""Requests for texts in OpenAI's form: declared fields within bounds; a field without a form here is refused unless it changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import DecodeError, Raw, Struct, json

from foreshape.apps.generation.text_settings import TextSettings, seen
from foreshape.apps.serving.request_json import MAX_KEYS, MAX_VALUES, decoded, is_absent
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.text_routes import read_texts
from foreshape.errors import SchemaError

MAX_CHOICES: Final = 8
"""The most texts behind one prompt."""
MAX_WRITTEN: Final = 64
"""The most texts of a request."""
MAX_MESSAGES: Final = 2048
"""The most messages of a chat, and the most parts of them together."""
MOST_LOGPROBS: Final = 20
"""The most words with their logarithmic probabilities beside each written one."""
MOST_BIASES: Final = 1024
"""The most words with a bias; each is added at every step."""
_BIAS: Final = 100
"""The largest bias of a word, as of OpenAI."""
_STOPS: Final = 4
_STOP_CHARACTERS: Final = 256
_ROLES: Final = ("system", "developer", "user", "assistant")
_SHORT: Final = 100
_SEEDS: Final = 1 << 64

F = TypeVar("F", bound="_Fields")


class _StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: Raw = Raw()


class _ContentPart(Struct):
    type: str
    text: str | None = None


class _Message(Struct, forbid_unknown_fields=True):
    role: str
    content: str | list[_ContentPart] | None = None
    name: str | None = None
    refusal: Raw = Raw()
    audio: Raw = Raw()
    annotations: Raw = Raw()
    tool_calls: Raw = Raw()
    function_call: Raw = Raw()


class _Fields(Struct, forbid_unknown_fields=True):
    """The fields of both routes: read ones, fields with one possible value, and fields without an effect on the answer."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Raw = Raw()
    min_tokens: int | None = None

    user: Raw = Raw()
    metadata: Raw = Raw()
    store: Raw = Raw()
    service_tier: Raw = Raw()
    safety_identifier: Raw = Raw()
    prompt_cache_key: Raw = Raw()
    prompt_cache_retention: Raw = Raw()


class _Completion(_Fields, forbid_unknown_fields=True):
    prompt: Raw = Raw()
    echo: bool | None = None
    logprobs: int | bool | None = None
    suffix: Raw = Raw()
    best_of: int | None = None


class _Chat(_Fields, forbid_unknown_fields=True):
    messages: list[_Message] | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    response_format: Raw = Raw()
    modalities: Raw = Raw()
    tools: Raw = Raw()
    tool_choice: Raw = Raw()
    parallel_tool_calls: Raw = Raw()
    functions: Raw = Raw()
    function_call: Raw = Raw()


_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "refusal": (),
    "audio": (),
    "annotations": ([],),
    "tool_calls": ([],),
}
"""Fields without a form here, with their values of no effect beside null."""
_SAME: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_SETTINGS: Final = {"max_tokens": "most", "min_tokens": "min_new_tokens", **{name: name for name in _SAME}}
"""Fields with the names in `TextWriter.add`."""
_completions: Final = json.Decoder(_Completion)
_chats: Final = json.Decoder(_Chat)
_biases: Final = json.Decoder(dict[int, float])
_anything: Final[json.Decoder[Any]] = json.Decoder()


class CompletionRequest(NamedTuple):
    """A request for texts.

    Attributes:
        model: its name, if one is given.
        prompts: texts, or lists of words; none of a chat.
        messages: of a chat, each with ``role`` and ``content``; None of a completion.
        begins: a chat's answer is begun by the template.
        choices: the texts behind each prompt.
        settings: of `TextWriter.add`, without the seed and the logprobs.
        seed: of the first text; the next ones have the next seeds.
        stops: the texts at the end of an answer, not in it.
        streams, usage: pieces are sent as they come, and the numbers of words behind them.
        echo: prompts are in the answers.
        logprobs: the number of best words told beside each written one, and each one of an echo; None tells no probabilities.
    """

    model: str | None
    prompts: list[str] | list[list[int]]
    messages: list[dict[str, str]] | None
    begins: bool
    choices: int
    settings: dict[str, Any]
    seed: int | None
    stops: list[str]
    streams: bool
    usage: bool
    echo: bool
    logprobs: int | None


def read_completion(body: bytes) -> CompletionRequest:
    """Return the request of a body for ``/v1/completions``. Raises `RequestError` if it is none."""
    fields = _read(_completions, body)
    if fields.best_of is not None and fields.best_of != (fields.n or 1):
        raise RequestError(400, "best_of is not supported: it may be n, or be left out", field="best_of", code="unsupported_parameter")
    if bytes(fields.prompt)[:1] == b"[" and bytes(fields.prompt).count(b",") >= MAX_VALUES:
        raise RequestError(400, f"a list of prompts may have {MAX_VALUES:,} words, or commas in its texts; it has more", field="prompt")
    try:
        prompts = read_texts("prompt", fields.prompt, ids=True)
    except RequestError as error:
        error.field = "prompt"
        raise
    if len(prompts) * (fields.n or 1) > MAX_WRITTEN:
        raise RequestError(400, f"a request may ask for {MAX_WRITTEN} texts, prompts times n; this one for {len(prompts) * (fields.n or 1)}", field="prompt")
    logprobs = None if fields.logprobs is False else fields.logprobs
    if logprobs is True or (logprobs is not None and not 0 <= logprobs <= MOST_LOGPROBS):
        raise RequestError(400, f"logprobs must be from 0 to {MOST_LOGPROBS}; seen {seen(logprobs)}", field="logprobs")
    return _request(fields, prompts, None, True, bool(fields.echo), logprobs)


def read_chat(body: bytes) -> CompletionRequest:
    """Return the request of a body for ``/v1/chat/completions``. Raises `RequestError` if it is none."""
    fields = _read(_chats, body)
    if fields.max_tokens is not None and fields.max_completion_tokens not in (None, fields.max_tokens):
        raise RequestError(400, "max_tokens and max_completion_tokens are the same limit, and differ", field="max_tokens")
    if not fields.messages or len(fields.messages) > MAX_MESSAGES:
        raise RequestError(400, f"messages must be a list of 1 to {MAX_MESSAGES:,} messages; seen {len(fields.messages or ())}", field="messages")
    if sum(len(m.content) for m in fields.messages if isinstance(m.content, list)) > MAX_MESSAGES:
        raise RequestError(400, f"messages may have {MAX_MESSAGES:,} parts together; they have more", field="messages")
    messages = [_message(f"messages[{index}]", message) for index, message in enumerate(fields.messages)]
    if fields.max_completion_tokens is not None:
        fields.max_tokens = _bounded("most", fields.max_completion_tokens, "max_completion_tokens")
    if fields.top_logprobs is not None and not 0 <= fields.top_logprobs <= MOST_LOGPROBS:
        raise RequestError(400, f"top_logprobs must be from 0 to {MOST_LOGPROBS}; seen {seen(fields.top_logprobs)}", field="top_logprobs")
    if fields.top_logprobs and not fields.logprobs:
        raise RequestError(400, "top_logprobs may be given with logprobs true alone", field="top_logprobs")
    return _request(fields, [], messages, fields.add_generation_prompt is not False, False, (fields.top_logprobs or 0) if fields.logprobs else None)


def _read(decoder: json.Decoder[F], body: bytes) -> F:
    if body.count(b"{") > MAX_KEYS:  # each object takes many times its bytes
        raise RequestError(400, f"a request may have {MAX_KEYS:,} opening braces, in texts too; it has more")
    fields = decoded("the request", decoder, body)
    _need_neutral(fields, "")
    if fields.n is not None and not 1 <= fields.n <= MAX_CHOICES:
        raise RequestError(400, f"n must be from 1 to {MAX_CHOICES}; seen {seen(fields.n)}", field="n")
    if fields.stream_options is not None and not fields.stream:
        raise RequestError(400, "stream_options may be given with stream alone", field="stream_options")
    return fields


def _need_neutral(fields: Struct, place: str) -> None:
    """Raise `RequestError` where a field without a form here has a value of an effect."""
    for name, values in _NEUTRAL.items():
        raw: Raw = getattr(fields, name, Raw())
        if is_absent(raw):
            continue
        try:
            value = _anything.decode(raw) if len(memoryview(raw)) <= _SHORT else raw
        except (DecodeError, UnicodeDecodeError, RecursionError):
            value = raw
        if not any(type(value) is type(neutral) and value == neutral for neutral in values):
            allowed = " or ".join(json.encode(neutral).decode() for neutral in (None, *values) if type(neutral) is not float)
            raise RequestError(400, f"{place}{name} is not supported: it may be {allowed}", field=place + name, code="unsupported_parameter")


def _message(place: str, message: _Message) -> dict[str, str]:
    """Return a message as the template takes it."""
    _need_neutral(message, place + ".")
    if message.role not in _ROLES:
        raise RequestError(400, f"{place}.role must be one of {', '.join(_ROLES)}; seen {message.role[:40]!r}", field=f"{place}.role")
    content = message.content
    if isinstance(content, list):
        if wrong := next((part for part in content if part.type != "text" or part.text is None), None):
            raise RequestError(400, f"{place}.content may have parts of the type text alone; seen {wrong.type[:40]!r}", field=f"{place}.content")
        content = "\n".join(part.text or "" for part in content)
    if content is None:
        raise RequestError(400, f"{place}.content must be a text, or a list of parts of the type text", field=f"{place}.content")
    return {"role": message.role, "content": content, **({} if message.name is None else {"name": message.name})}


def _request(
    fields: _Fields, prompts: list[str] | list[list[int]], messages: list[dict[str, str]] | None, begins: bool, echo: bool, logprobs: int | None
) -> CompletionRequest:
    values = {name: getattr(fields, name) for name in _SETTINGS}
    settings: dict[str, Any] = {"beams": 1} | {_SETTINGS[name]: _bounded(_SETTINGS[name], value, name) for name, value in values.items() if value is not None}
    if fields.seed is not None and not -_SEEDS // 2 <= fields.seed < _SEEDS:
        raise RequestError(400, f"seed must be a whole number of 64 bits; seen {seen(fields.seed)}", field="seed")
    if biases := _word_biases(fields.logit_bias):
        settings["logit_bias"] = biases
    usage = bool(fields.stream_options is not None and fields.stream_options.include_usage)
    return CompletionRequest(
        fields.model, prompts, messages, begins, fields.n or 1, settings, fields.seed, _stops(fields.stop), bool(fields.stream), usage, echo, logprobs
    )


def _word_biases(raw: Raw) -> dict[int, float]:
    """Return the biases of words. Raises `RequestError` for too many, or numbers out of their bounds."""
    if is_absent(raw):
        return {}
    if bytes(raw).count(b":") > MOST_BIASES:
        raise RequestError(400, f"logit_bias may have {MOST_BIASES:,} words; it has more", field="logit_bias")
    try:
        biases = decoded("logit_bias", _biases, raw)
    except RequestError as error:
        raise RequestError(400, f"logit_bias must have a number for each of some numbers of words: {error}", field="logit_bias") from None
    if (wrong := next((pair for pair in biases.items() if pair[0] < 0 or not -_BIAS <= pair[1] <= _BIAS), None)) is not None:
        words = f"logit_bias must have numbers of words with numbers from -{_BIAS} to {_BIAS}; seen {wrong[0]}: {seen(wrong[1])}"
        raise RequestError(400, words, field="logit_bias")
    return biases


def _bounded(field: str, value: Any, name: str) -> Any:
    try:
        return TextSettings.bounded(field, value, name)
    except SchemaError as error:
        raise RequestError(400, str(error), field=name) from None


def _stops(stop: str | list[str] | None) -> list[str]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > _STOPS or not all(0 < len(text) <= _STOP_CHARACTERS for text in stops):
        raise RequestError(400, f"stop must be a text of 1 to {_STOP_CHARACTERS} characters, or up to {_STOPS} of them", field="stop")
    return stops
