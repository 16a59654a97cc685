"""OpenAI's routes of texts, ``/v1/completions`` and ``/v1/chat/completions``: whole answers, and pieces of text as they are written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from foreshape.apps.generation import WordChoice
from foreshape.apps.serving.completion_logprobs import PlacedChoice, chat_logprobs, completion_logprobs
from foreshape.apps.serving.completion_request import CompletionRequest, read_chat, read_completion
from foreshape.apps.serving.generate_route import EventSender, TextEvents
from foreshape.apps.serving.infer_route import start
from foreshape.apps.serving.protocol import need_short
from foreshape.apps.serving.served_writer import ServedWriter, TextEvent, TextJob
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.service import ClientGone, Service
from foreshape.apps.serving.text_routes import openai_error, refuse_by_path
from foreshape.apps.serving.trouble import client_words, server_error
from foreshape.apps.tokenization.prompt_tokenizer import PromptTokenizer, StopSearch, TextPieces
from foreshape.errors import FeedError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

CHAT: Final = "/v1/chat/completions"
_PATHS: Final = ("/v1/completions", CHAT)
_GONE: Final = 499
_MOST: Final = 16
"""The words of a completion where nothing says how many, as of OpenAI."""
_CHARACTERS: Final = 64
"""The most characters of a prompt for each word of the context: a longer one would not fit, and takes memory to be cut into words."""
_MOST_CHARACTERS: Final = 1 << 20
_COST: Final = 8
"""To tokenize a byte takes so many times as long as to read one."""


class _Prompt(NamedTuple):
    """A prompt: its words, and its text for an echo."""

    words: list[int]
    text: str


class _Choice:
    """A text of an answer.

    Attributes:
        text: its pieces.
        count: its words.
        shared: the words of its prompt taken from a cache.
        chosen: the words of the shown pieces, of an echo too, with their probabilities, if they are asked for; taken out as they are sent.
        reason: its ``finish_reason``; None before its end.
        begun: a piece of it was sent.
    """

    def __init__(self, index: int, prompt: _Prompt, request: CompletionRequest, tokenizer: PromptTokenizer) -> None:
        self.index, self.text, self.count, self.begun = index, list[str](), 0, False
        self.shared, self.chosen = 0, list[PlacedChoice]()
        self._coming = list[PlacedChoice]()
        self.reason: str | None = None
        self._echo, self._decode = prompt.text, tokenizer.text
        self._length = self._shown = len(self._echo)
        self._pieces, self._search = TextPieces(tokenizer.text, prompt.words), StopSearch(request.stops)

    def take(self, event: TextEvent) -> str:
        """Return the next piece of its text, after words of it came."""
        last = event.reason is not None
        self.count += len(event.words)
        words = event.words[:-1] if event.reason == "end" else event.words
        self.chosen += self._echoed(event.prompt_choices)
        echo, self._echo = self._echo, ""
        self.shared = event.shared
        piece = self._search.add(self._placed(words, event.choices, last), last)
        self._shown += len(piece)
        piece = echo + piece
        self.reason = "stop" if self._search.ended else {None: None, "most": "length"}.get(event.reason, "stop")
        whole = last and not self._search.ended
        shown = [placed for placed in self._coming if whole or placed.begin < self._shown]
        self._coming = self._coming[len(shown) :]
        self.chosen += shown
        return piece

    def _echoed(self, choices: Sequence[WordChoice]) -> list[PlacedChoice]:
        """Return the words of the prompt with the places of their first letters in it."""
        pieces, out, length = TextPieces(self._decode), list[PlacedChoice](), 0
        for choice in choices:
            out.append(PlacedChoice(min(length, len(self._echo)), choice))
            length += len(pieces.add([choice.word]))
        return out

    def _placed(self, words: list[int], choices: Sequence[WordChoice], last: bool) -> str:
        """Return the text of further words, and note the places of their first letters."""
        if not choices:
            return self._pieces.add(words, last)
        pieces = list[str]()
        for word, choice in zip(words, choices, strict=False):  # the word at the end is none of the text
            self._coming.append(PlacedChoice(self._length, choice))
            pieces.append(self._pieces.add([word]))
            self._length += len(pieces[-1])
        return "".join(pieces) + self._pieces.add([], last)


class CompletionRoutes:
    """A layer around an application: it answers requests for texts in OpenAI's form, and hands on all others."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path not in _PATHS:
            await self._app(scope, receive, send)
            return
        scope["counted_as"] = path
        sender = EventSender(send)
        try:
            if scope["method"] != "POST":
                raise RequestError(405, f"{scope['method'][:20]}: texts are asked for with POST")
            await self._answer(path == CHAT, scope, receive, sender)
        except ClientGone:
            if not sender.started:
                await start(send, _GONE, [], b"")
        except Exception as error:
            refusal = error if isinstance(error, RequestError) else server_error(f"a request to {path}", error)
            refusal.status = 400 if refusal.status == 422 else refusal.status  # as of OpenAI
            if sender.started:
                await sender.event(openai_error(refusal))
                await _end(sender)
            else:
                await refuse_by_path(send, refusal, path)

    async def _answer(self, chat: bool, scope: Scope, receive: Receive, sender: EventSender) -> None:
        service = self._service
        until = monotonic() + service.limits.seconds
        with service.request_of(scope["headers"]) as reading:
            try:
                async with asyncio.timeout(service.limits.seconds):
                    body = bytes(await reading.body(receive))
            except TimeoutError:
                raise RequestError(408, f"the request was not there within {service.limits.seconds:g} seconds") from None
            need_short(len(body), service.limits)
            request = await service.aside(len(body), read_chat if chat else read_completion, body)
            name, served = self._model(scope, request, chat)
            prompts = await service.aside(len(body) * _COST, _prompts_of, served, request)
            while (now := self._model(scope, request, chat)[1]) is not served:  # another model took its place
                served, prompts = now, await service.aside(len(body) * _COST, _prompts_of, now, request)
            with TextEvents(served, receive) as texts:
                await _write(texts, served, name, request, prompts, until, sender)

    def _model(self, scope: Scope, request: CompletionRequest, chat: bool) -> tuple[str, ServedWriter]:
        """Return the named model, and count the request as its own; without a name the only language model."""
        repository, name = self._service.repository, request.model
        if name is None:
            names = [n for n in repository.names() if isinstance(repository.find(n)[0], ServedWriter)]
            if len(names) != 1:
                raise RequestError(400, f"model must name one of: {', '.join(names) or 'none, since no language model is served'}", field="model")
            (name,) = names
        try:
            served, _ = repository.find(name)
        except RequestError as error:
            error.field = "model"
            error.facts.update({"code": "model_not_found"} if error.status == 404 else {})
            raise
        scope["path_params"] = {"model": name}
        if not isinstance(served, ServedWriter):
            raise RequestError(400, f"{name[:100]} is no language model", field="model")
        if served.tokenizer is None:
            words = f"the model {name[:100]} has no tokenizer that can be read; send numbers of words to /v2/models/NAME/generate"
            raise RequestError(400, words, field="model", code="no_tokenizer")
        if chat and served.template is None:
            raise RequestError(
                400, f"the model {name[:100]} has no chat template that can be read; ask /v1/completions", field="model", code="no_chat_template"
            )
        return name, served


def _prompts_of(served: ServedWriter, request: CompletionRequest) -> list[_Prompt]:
    """Return the words of the prompts. Raises `RequestError` if one is too long, or the template refuses the messages."""
    field, context, out = "prompt" if request.messages is None else "messages", served.model.context, list[_Prompt]()
    assert served.tokenizer is not None
    longest = min(_MOST_CHARACTERS, _CHARACTERS * context)
    prompts: list[Any] = [*request.prompts]
    if request.messages is not None:
        assert served.template is not None
        if sum(len(message["content"]) for message in request.messages) > longest:
            raise _too_long(context, field, f"more than {longest:,} characters")
        try:
            prompts = [served.template.render(request.messages, request.begins)]
        except FeedError as error:
            raise RequestError(400, client_words(error), field=field) from None
    for prompt in prompts:
        if isinstance(prompt, str) and len(prompt) > longest:
            raise _too_long(context, field, f"more than {longest:,} characters")
        words = served.tokenizer.words(prompt, request.messages is None) if isinstance(prompt, str) else prompt
        if len(words) >= context:
            raise _too_long(context, field, f"{len(words):,} words")
        if not all(0 <= word < served.model.vocabulary for word in words):
            raise RequestError(400, f"the words of a prompt must be from 0 to {served.model.vocabulary - 1:,}; seen another", field=field)
        if not words:
            raise RequestError(400, "a prompt must have at least one word; the tokenizer gives none", field=field)
        if any(word >= served.model.vocabulary for word in request.settings.get("logit_bias", ())):
            raise RequestError(400, f"the words of logit_bias must be from 0 to {served.model.vocabulary - 1:,}; seen another", field="logit_bias")
        text = "" if not request.echo else prompt if isinstance(prompt, str) else served.tokenizer.text(words)
        out.append(_Prompt(words, text))
    return out


def _too_long(context: int, field: str, size: str) -> RequestError:
    words = f"the context has {context:,} words, and a prompt must leave one to be written; it has {size}"
    return RequestError(400, words, field=field, code="context_length_exceeded")


async def _write(
    texts: TextEvents, served: ServedWriter, name: str, request: CompletionRequest, prompts: list[_Prompt], until: float, sender: EventSender
) -> None:
    """Let all texts be written, and send them."""
    assert served.tokenizer is not None
    chat, own, settings = request.messages is not None, served.model.settings, request.settings
    if "most" not in settings and own.most is None and own.max_length is None:
        settings = {**settings, "most": served.model.context if chat else _MOST}
    choices: dict[TextJob, _Choice] = {}
    for prompt in prompts:
        for _ in range(request.choices):
            index = len(choices)
            seed = {} if request.seed is None else {"seed": (request.seed + index) % (1 << 64)}
            job = texts.write(prompt.words, {**settings, **seed, "logprobs": request.logprobs, "echo": request.echo}, until)
            choices[job] = _Choice(index, prompt, request, served.tokenizer)
    kind = "chat.completion" if chat else "text_completion"
    head: dict[str, Any] = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{token_hex(12)}", "object": kind, "created": int(time.time()), "model": name}
    if request.streams:
        head |= {**({"object": f"{kind}.chunk"} if chat else {}), **({"usage": None} if request.usage else {})}
    while any(choice.reason is None for choice in choices.values()):
        job, event = await texts.next()
        choice = choices[job]
        if choice.reason is not None:  # it has ended at a stop
            continue
        piece = choice.take(event)
        if choice.reason is not None and event.reason is None:
            texts.give_up(job)
        if not request.streams:
            choice.text.append(piece)
        elif piece or choice.reason is not None:
            for part in _chunks(choice, piece, chat, _logprobs(choice, request, served.tokenizer)):
                await sender.event({**head, "choices": [part]})
    usage = _usage(prompts, [*choices.values()], request.choices)
    if not request.streams:
        await sender.whole(
            {**head, "choices": [_whole(choice, chat, _logprobs(choice, request, served.tokenizer)) for choice in choices.values()], "usage": usage}
        )
        return
    if request.usage:
        await sender.event({**head, "choices": [], "usage": usage})
    await _end(sender)


async def _end(sender: EventSender) -> None:
    await sender.event("[DONE]")
    await sender.end()


def _logprobs(choice: _Choice, request: CompletionRequest, tokenizer: PromptTokenizer) -> dict[str, Any] | None:
    """Return the probabilities of a choice's words that were not sent yet; None if nobody asks for them."""
    if request.logprobs is None:
        return None
    chosen, choice.chosen = choice.chosen, []
    return (completion_logprobs if request.messages is None else chat_logprobs)(chosen, tokenizer)


def _chunks(choice: _Choice, piece: str, chat: bool, logprobs: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the next parts of a choice: a chat's role before the first one, and its reason after the last."""
    about = {"index": choice.index, "logprobs": None}
    if not chat:
        return [{**about, "logprobs": logprobs, "text": piece, "finish_reason": choice.reason}]
    deltas: list[dict[str, str]] = [] if choice.begun else [{"role": "assistant", "content": ""}]
    choice.begun = True
    out = [{**about, "delta": delta, "finish_reason": None} for delta in deltas]
    if piece or (logprobs is not None and logprobs["content"]):
        out.append({**about, "logprobs": logprobs, "delta": {"content": piece}, "finish_reason": None})
    return out if choice.reason is None else [*out, {**about, "delta": {}, "finish_reason": choice.reason}]


def _whole(choice: _Choice, chat: bool, logprobs: dict[str, Any] | None) -> dict[str, Any]:
    text = "".join(choice.text)
    content = {"message": {"role": "assistant", "content": text, "refusal": None}} if chat else {"text": text}
    return {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": choice.reason}


def _usage(prompts: list[_Prompt], choices: list[_Choice], each: int) -> dict[str, Any]:
    """Return the counts of words; a prompt counts once, whatever the ``each`` texts behind it."""
    given, written, shared = sum(len(prompt.words) for prompt in prompts), sum(c.count for c in choices), sum(c.shared for c in choices[::each])
    details = {"cached_tokens": shared}
    return {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written, "prompt_tokens_details": details}
