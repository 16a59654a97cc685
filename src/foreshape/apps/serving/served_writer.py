"""Language models as served models: texts of many clients are written side by side."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple

from foreshape.apps.generation import LanguageModel, TextWriter, WordChoice, Writing, language_model
from foreshape.apps.generation.packed_weights import Rows, Weights
from foreshape.apps.serving.protocol import InferRequest, TensorInfo
from foreshape.apps.serving.served_model import Opening, RoutedModel
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.trouble import client_words, log_trouble, server_error
from foreshape.apps.tokenization.chat_template import ChatTemplate
from foreshape.apps.tokenization.prompt_tokenizer import PromptTokenizer, chat_template_of, has_tokenizer
from foreshape.compiler.memory import byte_text
from foreshape.errors import FeedError, ForeshapeError, MemoryPlanError, SchemaError
from foreshape.interop.batch_queue import Batch
from foreshape.interop.gguf_file import is_gguf
from foreshape.runtime.report import report_page

_WEIGHTS: Final = (".safetensors", ".bin")
_PROMPT_ROWS: Final = 512
_USERS: Final = 16


class TextEvent(NamedTuple):
    """News of a text: its next words, and at its end the reason, or the error.

    Attributes:
        choices: of the words, if the job asks for ``logprobs``.
        prompt_choices: of the words of the prompt, with its first words, if the job asks for ``echo`` too.
        shared: the words of its prompt taken from the cache of another text.
    """

    words: list[int]
    reason: str | None = None
    error: RequestError | None = None
    choices: Sequence[WordChoice] = ()
    prompt_choices: Sequence[WordChoice] = ()
    shared: int = 0


class TextJob:
    """A client's text.

    Args:
        prompt: its first words.
        settings: as of `TextWriter.add`.
        until: the latest time of its first word, of `time.monotonic`.
        tell: is given the events, in the writer's thread.
    """

    def __init__(self, prompt: list[int], settings: Mapping[str, Any], until: float, tell: Callable[[TextEvent], None]) -> None:
        self.prompt, self.settings, self.until, self.tell = prompt, settings, until, tell
        self.given_up = False
        self.told = 0


class LanguageModels:
    """The kind of language models: folders as the transformers library saves them, and GGUF files.

    Args:
        users: the most texts at a time; fewer where the memory is short.
        context: the most words of a text; by default as `language_model`.
        threads: of the kernels.
        device: as for `Executor`.
        weights: "int8" or "int4"; by default as `language_model`.
        share_prefixes: as for `TextWriter`.
        rows: "fp32" or "int8", as for `language_model`.
    """

    def __init__(
        self,
        users: int = _USERS,
        context: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        weights: Weights | None = None,
        share_prefixes: bool | None = None,
        rows: Rows = "fp32",
    ) -> None:
        self._users, self._context, self._threads, self._device, self._share_prefixes = users, context, threads, device, share_prefixes
        self._weights: Weights | None = weights
        self._rows: Rows = rows

    def finds(self, path: str) -> bool:
        """Tell whether there is a folder of a language model, or a GGUF file."""
        if os.path.isfile(path):
            return is_gguf(path)
        return os.path.isfile(os.path.join(path, "config.json")) and any(n.endswith(_WEIGHTS) for n in os.listdir(path))

    def fills(self, folder: str) -> bool:
        """Tell whether a folder is one language model."""
        return self.finds(folder)

    def opened(self, path: str, opening: Opening) -> ServedWriter:
        """Open a language model for as many users as its memory allows, and run it once."""
        model = language_model(
            path, users=self._users, context=self._context, threads=self._threads, device=self._device, weights=self._weights, rows=self._rows
        )
        return ServedWriter(model, opening, Path(path), self._share_prefixes)


class ServedWriter(RoutedModel):
    """A language model with a thread that writes its texts; see `ServedModel`.

    Attributes:
        tokenizer: of its folder or file; None without one.
        template: of chats; None without one.
        created: the time of its opening, in seconds since 1970.

    Raises:
        MemoryPlanError: not even one user fits into its memory.
    """

    routes = "a language model writes texts: POST /v2/models/NAME/generate or generate_stream, or /v1/chat/completions"

    tokenizer: PromptTokenizer | None = None
    template: ChatTemplate | None = None

    def __init__(self, model: LanguageModel, opening: Opening, place: Path, share_prefixes: bool | None = None) -> None:
        self.platform, self.notes = "foreshape", list[str]()
        self.inputs, self.outputs = [TensorInfo("input_ids", "INT64", ["words"])], [TensorInfo("output_ids", "INT64", ["words"])]
        self.model, self._length, self._ran = model, opening.limits.queue, opening.ran
        self._read_texts(place)
        self.created = int(time.time())
        self._fit(opening.memory)
        self._writer = TextWriter(model, _PROMPT_ROWS, share_prefixes)
        if share_prefixes is None and model.prefix_obstacle is not None:
            self.notes.append(f"its texts share no cached rows of equal first words: {model.prefix_obstacle}")
        self._new: deque[TextJob] = deque()
        self._running: dict[TextJob, Writing] = {}
        self._changed = threading.Condition()
        self._ended = False
        model.run([[0]], [0], [0])
        model.clear_rows(0, 1)
        threading.Thread(target=self._serve, name="foreshape-writer", daemon=True).start()

    def _read_texts(self, place: Path) -> None:
        """Read the tokenizer and the template of chats; without them words are numbers, and the notes say why."""
        if not has_tokenizer(place):
            return
        try:
            self.tokenizer = PromptTokenizer(place)
            self.template = chat_template_of(place)
        except ForeshapeError as error:
            self.notes.append(f"it answers no {'chats' if self.tokenizer else 'texts'}: {error}")

    def _fit(self, memory: int) -> None:
        """Lower the number of users until the plan is within the memory."""
        model, plan = self.model, self.model.plan()
        while (needs := plan.peak(users=model.users, context=model.context, batch=model.users, rows=_PROMPT_ROWS + model.users)) > memory:
            if model.users == 1:
                raise MemoryPlanError(f"one text of {model.context} words needs {byte_text(needs)}, and this model may use {byte_text(memory)}")
            model.users = max(1, model.users // 2)
            self.notes.append(f"its memory of {byte_text(memory)} is enough for {model.users} texts at a time")

    # --- asked by the server

    def facts(self) -> dict[str, Any]:
        """Return the sizes of its cache."""
        model = self.model
        return {"users": model.users, "context": model.context, "vocabulary": model.vocabulary, "cache_bytes": model.users * model.context * model.word_bytes}

    def write(self, job: TextJob) -> None:
        """Put a text into the queue, and return at once. Raises `RequestError` if the server has no place for it, or is about to close it."""
        with self._changed:
            if self._ended:
                raise RequestError(503, "the model is closed", retry_after=1)
            if self.waiting() >= self._length:
                raise RequestError(503, f"{self.waiting()} texts wait, and no more may", retry_after=1)
            self._new.append(job)
            self._changed.notify()

    def give_up(self, job: TextJob) -> None:
        """End a text without a client: its place is free for the next one."""
        with self._changed:
            job.given_up = True
            self._changed.notify()

    def refusal(self, request: InferRequest, error: Exception) -> RequestError | None:
        return None

    def waiting(self) -> int:
        """Return the number of texts for which there is no place."""
        places, waiting = 0, 0
        for job in (*self._running, *self._new):
            places += job.settings.get("beams", self.model.settings.beams)
            waiting += places > self.model.users
        return waiting

    def page(self, title: str) -> str:
        return report_page(self.model.program, title)

    def close(self) -> None:
        """Take no more texts; the present ones are finished."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    # --- in the writer's thread

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._new or self._running or self._ended)
                if not self._new and not self._running:
                    return
                new = list(self._new)
                self._new.clear()
            for job in new:
                self._begin(job)
            self._drop_late()
            if self._running:
                self._step()

    def _begin(self, job: TextJob) -> None:
        try:
            self._running[job] = self._writer.add(job.prompt, **job.settings)
        except (FeedError, SchemaError) as error:
            job.tell(TextEvent([], error=RequestError(422, client_words(error), context=self.model.context)))
        except Exception as error:  # the thread must live on, for the others
            job.tell(TextEvent([], error=_failure(error)))

    def _drop_late(self) -> None:
        """End texts of gone clients, and late ones without a first word."""
        moment = monotonic()
        for job, writing in list(self._running.items()):
            late = not writing.words and moment > job.until
            if job.given_up or late:
                self._writer.drop(writing)
                del self._running[job]
                if late:
                    job.tell(TextEvent([], error=RequestError(504, "the first word was not there in time", retry_after=1)))

    def _step(self) -> None:
        began, side_by_side, ended = monotonic(), 0, 0
        computed, shared = self._writer.computed, self._writer.shared
        try:
            self._writer.step()
        except Exception as error:
            if all(writing.error is None for writing in self._running.values()):  # of no text: none can go on
                for writing in [*self._running.values()]:
                    self._writer.drop(writing)
                    writing.fail(error)
        for job, writing in list(self._running.items()):
            side_by_side += bool(writing.places) or writing.done
            sure = writing.sure
            if writing.error is not None:
                job.tell(TextEvent([], error=_failure(writing.error)))
            elif sure > job.told or writing.done:
                prompt = () if job.told else writing.prompt_choices
                job.tell(TextEvent(writing.words[job.told : sure], writing.reason, None, writing.choices[job.told : sure], prompt, writing.shared))
                job.told = sure
            if writing.done:
                ended += 1
                del self._running[job]
        self._ran(Batch(ended, side_by_side, monotonic() - began, self._writer.computed - computed, shared=self._writer.shared - shared))


def _failure(error: Exception) -> RequestError:
    """Return the answer for an error of the writer; the log has its words."""
    if isinstance(error, ForeshapeError):
        return RequestError(
            413 if isinstance(error, MemoryPlanError) else 500, client_words(error), trouble=log_trouble("texts could not be written on", error)
        )
    return server_error("texts could not be written on", error)
