"""Embedders and rerankers as served models: texts of many clients are computed together, without padding."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, cast

import numpy

from foreshape.apps.embedding.embedder import Embedder, TextRun
from foreshape.apps.embedding.encoder_kinds import KINDS
from foreshape.apps.embedding.text_batches import batches
from foreshape.apps.generation.json_files import json_object
from foreshape.apps.serving.protocol import InferRequest, TensorInfo
from foreshape.apps.serving.served_model import Opening, RoutedModel, ServedModel, Soon
from foreshape.apps.serving.served_network import Networks
from foreshape.apps.serving.server_limits import RequestError
from foreshape.apps.serving.trouble import client_words
from foreshape.apps.tokenization.text_tokenizer import Tokenized
from foreshape.apps.tokenization.vocabulary_files import TOKENIZER_FILES
from foreshape.errors import ExecutionError, FeedError, ForeshapeError, FormatError, MemoryPlanError, SchemaError
from foreshape.interop.batch_layout import Part
from foreshape.interop.batch_queue import BatchQueue, Expired, QueueFull
from foreshape.interop.compiled_head import TEXTS, is_compiled
from foreshape.interop.results import Results
from foreshape.runtime.report import report_page

_CHARACTERS: Final = 250
"""The most characters of a text for each of its tokens: a longer one is cut anyway, and would take time and memory before."""
_MOST_CHARACTERS: Final = 1 << 20
_PIECE: Final = 1 << 17
"""The characters tokenized together: the package keeps all cut words."""
_MOST_IDS: Final = 1 << 31


class Embedders:
    """The kind of embedders and rerankers: folders of sentence-transformers and transformers, and ``.onnx`` files with their tokenizer.

    Args:
        networks: opens an ``.onnx`` file without vectors of texts.
        threads: of the kernels.
        row_scales: of ``.onnx`` files, as for `Embedder`.
    """

    def __init__(self, networks: Networks, threads: int | None = None, row_scales: bool = False) -> None:
        self._networks, self._threads, self._row_scales = networks, threads, row_scales

    def finds(self, path: str) -> bool:
        """Tell whether there is a folder of an embedder or a reranker, or an ``.onnx`` or compiled file with a tokenizer."""
        if path.endswith(".onnx") or is_compiled(path, TEXTS):
            folder = Path(path).absolute().parent
            return os.path.isfile(path) and any((place / name).is_file() for place in (folder, folder.parent) for name in TOKENIZER_FILES)
        return os.path.isdir(path) and self.fills(path)

    def fills(self, folder: str) -> bool:
        """Tell whether a folder is one embedder or reranker."""
        place = Path(folder)
        if (place / "modules.json").is_file():
            return True
        try:
            config = json_object(place / "config.json") if (place / "config.json").is_file() else {}
        except FormatError:  # damaged: a kind that opens it says so
            return False
        names: Any = config.get("architectures")
        return config.get("model_type") in KINDS and isinstance(names, list) and not any(str(n).endswith("ForCausalLM") for n in cast("list[Any]", names))

    def opened(self, path: str, opening: Opening) -> ServedModel:
        """Open an embedder or a reranker, and run it; an ``.onnx`` file of another kind is served as a network."""
        try:
            embedder = Embedder(path, opening.memory, self._threads, self._row_scales and path.endswith(".onnx"))
            return ServedEmbedder(embedder, opening)
        except ForeshapeError as error:
            if not path.endswith(".onnx"):
                raise
            served = self._networks.opened(path, opening)
            served.notes.append(f"it is served as a network, and not as an embedder: {error}")
            return served


def _packed(ids: Any, types: Any) -> Tokenized:
    """Return tokens in the fewest bytes: they may wait for long."""
    return Tokenized(cast("Any", numpy.array(ids, "int32")), cast("Any", numpy.array(types, "int8")))


class TextJoining:
    """The joining of tokenized texts going the same way through a network; see `Joining`."""

    batch = "texts"
    growing = frozenset({"texts", "tokens"})

    def part(self, feed: Mapping[str, Any]) -> Part:
        lengths = [len(text.ids) for text in feed["texts"]]
        return Part({**feed}, {"texts": len(lengths), "tokens": sum(lengths), "longest": max(lengths)}, feed["run"].skipped)

    def together(self, sizes: Mapping[str, int], part_sizes: Mapping[str, int]) -> dict[str, int]:
        return {name: size + part_sizes[name] if name in self.growing else max(size, part_sizes[name]) for name, size in sizes.items()}

    def joined(self, parts: Sequence[Part]) -> dict[str, Any]:
        return {**parts[0].feed, "texts": [text for part in parts for text in part.feed["texts"]]}

    def split(self, results: Results, parts: Sequence[Part]) -> Iterator[Results]:
        begin = 0
        for part in parts:
            end = begin + part.sizes["texts"]
            yield Results({"rows": results["rows"][begin:end]}, {})
            begin = end


class _Runner:
    """The runner of feeds joined by `TextJoining`."""

    feeds = fetches = ()

    def run(self, feed: Any) -> Results:
        return Results({"rows": feed["run"].compute(feed["texts"])}, {})


class ServedEmbedder(RoutedModel):
    """An embedder or a reranker with its queue; see `ServedModel`.

    Attributes:
        labels: the scores of a pair; None of an embedder.
        width: the columns of a vector; None of a reranker.
        created: the time of its opening, in seconds since 1970.
    """

    routes = "a model of texts answers POST /v1/embeddings, /rerank and /tokenize"

    def __init__(self, embedder: Embedder, opening: Opening) -> None:
        self.platform, self.notes = "foreshape", list[str]()
        self._embedder, self.labels, self.created = embedder, embedder.labels, int(time.time())
        self._runs = {name: embedder.text_run(name) for name in (None, *embedder.prompts)}  # each may change the program, and so none comes later
        self.width = None if self.labels is not None else embedder.width
        name, columns = ("embedding", self.width) if self.width is not None else ("score", self.labels)
        self.inputs, self.outputs = [TensorInfo("text", "BYTES", ["texts"])], [TensorInfo(name, "FP32", ["texts", columns or 1])]
        limits = self._runs[None].limits
        self._queue = BatchQueue(
            _Runner(),
            TextJoining(),
            opening.limits.batch,
            fits=lambda sizes: limits(sizes["texts"], sizes["tokens"], sizes["longest"]),
            length=opening.limits.queue,
            ran=opening.ran,
        )
        self._queue.try_out({"run": self._runs[None], "texts": self.tokenized(["a"] if self.labels is None else [("a", "a")], None)})

    # --- texts

    def run_of(self, prompt_name: str | None) -> TextRun:
        """Return the computation with a prompt. Raises `RequestError` for an unknown one."""
        if prompt_name not in self._runs:
            raise RequestError(400, f"there is no prompt {str(prompt_name)[:100]!r}; there are {', '.join(self._embedder.prompts) or 'none'}")
        return self._runs[prompt_name]

    def tokenized(self, texts: Sequence[str] | Sequence[tuple[str, str]], prompt_name: str | None) -> list[Tokenized]:
        """Return the tokens of texts, or of pairs, cut at the longest length.

        Raises:
            RequestError: a text has half a surrogate pair, or far more characters than tokens may be.
        """
        prompt, out = self.run_of(prompt_name).prompt, list[Tokenized]()
        piece, size = list[Any](), 0
        for text in texts:
            self.need_short(*(text if isinstance(text, tuple) else (text,)))
            piece.append(text if isinstance(text, tuple) else prompt + text)
            size += len(text) if isinstance(text, str) else sum(map(len, text))
            if size >= _PIECE:
                out += self._cut(piece)
                piece, size = [], 0
        return out + self._cut(piece) if piece else out

    def _cut(self, texts: Sequence[Any]) -> list[Tokenized]:
        try:
            return [_packed(ids, types) for ids, types in self._embedder.tokenize(texts)]
        except FeedError as error:
            raise RequestError(400, client_words(error)) from None

    def need_short(self, *texts: str) -> None:
        """Raise `RequestError` where a text has more characters than its tokens may be."""
        longest = self._embedder.max_length
        limit = _MOST_CHARACTERS if longest is None else min(_MOST_CHARACTERS, _CHARACTERS * longest)
        for text in texts:
            if len(text) > limit:
                raise RequestError(413, f"a text may have {limit:,} characters, and this one has {len(text):,}; it is cut at {longest} tokens")

    def tokens(self, text: str, special: bool) -> list[dict[str, Any]]:
        """Return the tokens of a text, as text-embeddings-inference describes them."""
        self.need_short(text)
        try:
            self._embedder.tokenize([text])  # its errors name the wrong character
        except FeedError as error:
            raise RequestError(400, client_words(error)) from None
        return [token._asdict() for token in self._embedder.text_tokens(text, special)]

    def numbered(self, texts: Sequence[Sequence[int]]) -> list[Tokenized]:
        """Return texts sent as tokens. Raises `RequestError` for an empty or too long one, and for impossible numbers."""
        longest = self._embedder.max_length
        for ids in texts:
            if not ids or (longest is not None and len(ids) > longest):
                raise RequestError(400, f"a text may have 1 to {longest or _MOST_IDS} tokens; this one has {len(ids)}")
            if min(ids) < 0 or max(ids) >= _MOST_IDS:
                raise RequestError(400, "a token is a whole number of 0 or more, as /tokenize gives it")
        return [_packed(ids, [0] * len(ids)) for ids in texts]

    def parts_of(self, texts: Sequence[Tokenized], run: TextRun) -> list[list[int]]:
        """Return the numbers of texts in parts of bounded memory; a longer text is alone, and refused at its turn if it does not fit."""
        lengths = [len(text.ids) for text in texts]
        return [*batches(sorted(range(len(texts)), key=lambda i: lengths[i], reverse=True), lengths, run.limits)]

    def put(self, texts: Sequence[Tokenized], run: TextRun, until: float, soon: Soon) -> Future[Results]:
        """Put texts into the queue: their vectors, or their scores before the activation, are its result ``rows``. Raises `RequestError`, `QueueEnded`."""
        try:
            return self._queue.submit({"run": run, "texts": texts}, until, soon)
        except QueueFull as error:
            raise RequestError(503, str(error), retry_after=1) from error

    # --- asked by the server

    def facts(self) -> dict[str, Any]:
        """Return the longest text, and the prompts."""
        return {"max_length": self._embedder.max_length, "prompts": [*self._embedder.prompts], "similarity": self._embedder.similarity_name}

    def refusal(self, request: InferRequest | None, error: Exception) -> RequestError | None:
        """Return 504 for too late a request, 413 for too large a one, 400 for tokens unknown to the network, else None."""
        if isinstance(error, Expired):
            return RequestError(504, client_words(error), retry_after=1)
        if isinstance(error, MemoryPlanError):
            return RequestError(413, client_words(error))
        return RequestError(400, client_words(error)) if isinstance(error, (ExecutionError, FeedError, SchemaError)) else None

    def waiting(self) -> int:
        return len(self._queue)

    def page(self, title: str) -> str:
        return report_page(self._embedder.program, title)

    def close(self) -> None:
        self._queue.end()
