"""`Embedder`: vectors of texts, and scores of pairs, without padding and in bounded memory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from foreshape.apps.embedding.memory_bound import MemoryBound, TextMemoryError
from foreshape.apps.embedding.model_folder import ACTIVATIONS, ModelFolder, normalized, read_folder, sigmoid
from foreshape.apps.embedding.ray_texts import VECTOR, text_compute
from foreshape.apps.embedding.text_batches import Limits, batch_limits, batches, windows
from foreshape.apps.embedding.text_network import open_encoder, open_file
from foreshape.apps.tokenization.text_tokenizer import TextTokenizer, Token, Tokenized, cut_bytes, length_of
from foreshape.apps.tokenization.vocabulary_files import TOKENIZER_FILES
from foreshape.compiler.memory.byte_counts import bytes_of
from foreshape.errors import FeedError, ForeshapeWarning, SchemaError, border
from foreshape.interop.compiled_head import is_compiled
from foreshape.language.program import Program, Variable
from foreshape.runtime.feeding.ray_data import RayDataset, RaySettings, is_ray_dataset, mapped, require_columns

_SHARE = 32
"""Texts cut into words together take at most such a part of the memory."""
_REST_AFTER = 1024
"""After so many words together memory goes back to the system: it takes a thousandth of their time."""
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")


class TextRun(NamedTuple):
    """The computation of texts of several callers together.

    Attributes:
        prompt: the text before each text.
        skipped: the first rows left out of pooling; texts with the same number can be joined.
        limits: the bounds of a batch.
        compute: from tokens to vectors, or to scores before the activation, float32 ``[texts, columns]``. Never two at once.
        activation: of scores.
    """

    prompt: str
    skipped: int
    limits: Limits
    compute: Callable[[Sequence[Tokenized]], Any]
    activation: Callable[[Any], Any]


class Embedder:
    """A model for vectors of texts, or for scores of pairs of texts.

    Its folder is one of sentence-transformers or of the transformers library; or an ``.onnx`` file with its tokenizer beside it, or in the folder above.
    Texts are packed side by side without padding, so a text's vector does not depend on the texts beside it.

    Examples:
        >>> model = fs.Embedder("all-MiniLM-L6-v2", memory="512MiB")
        >>> vectors = model.encode(["a ship", "a boat"])          # float32 [2, 384]
        >>> model.similarity(vectors, vectors)                    # [2, 2]

    Args:
        path: the folder, or the ``.onnx`` file, or the file of `compile_model`.
        memory: the most bytes of the process beyond its bytes before the opening, as a number or as "512MiB": libraries and modules, tokenizer, weights,
            kernels and batches. Your texts, vectors and other models do not count. Without it, batches have about 1,024 words.
        threads: as for `Executor`.
        row_scales: of an ``.onnx`` file, as for `unpad`: each row of a ``DynamicQuantizeLinear`` gets a scale of its own.

    Attributes:
        max_length: the most words of a text; the words behind are cut. None without a limit.
        prompts: by name, the texts put before texts.
        labels: the number of scores of a pair; None for a model of vectors.

    Raises:
        FormatError: a file is missing or damaged. SchemaError: a network, module or setting without a form here. MemoryPlanError: too little ``memory`` for the
            model; or in `encode` and the others for a text, with its number.
    """

    @border("the model cannot be read", SchemaError)
    def __init__(self, path: str | os.PathLike[str], memory: int | str | None = None, threads: int | None = None, row_scales: bool = False) -> None:
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError.must("threads", "a whole number of at least 1", threads)
        place = Path(path)
        self._threads, self._row_scales = threads, row_scales
        self.bound = None if memory is None else MemoryBound(bytes_of(memory))
        """The bound of memory, or None."""
        with nullcontext() if self.bound is None else self.bound.opening():
            self._open(place, threads, row_scales)

    def _open(self, place: Path, threads: int | None, row_scales: bool) -> None:
        if row_scales and place.suffix != ".onnx":
            raise SchemaError.must("row_scales", "for an .onnx file", f"{str(place)[:300]!r}", "seen with")
        if place.suffix == ".onnx" or is_compiled(place):
            self._settings, self._network = _beside(place), open_file(place, threads, row_scales)
        else:
            self._settings = read_folder(place)
            self._network, _ = open_encoder(self._settings.network, self._settings.head, threads)
        settings = self._settings
        self._tokenize = TextTokenizer(settings.network, settings.max_length, self._network.positions, settings.lower)
        self.max_length, self.prompts = self._tokenize.max_length, dict(settings.prompts)
        if self.bound is not None:
            self._network.bind(self.bound)
            self.bound.require(0, "the tokenizer and the libraries")
        self.path = place
        self._limits: dict[tuple[str, bool], Limits] = {}
        result = self._network.result
        self.labels = int(cast("int", result.spec.known_dims[-1])) if settings.head == "score" and result is not None else None
        self._told = not settings.assumed

    @property
    def similarity_name(self) -> str:
        """Return the similarity of the folder: "cosine", "dot", "euclidean" or "manhattan"."""
        return self._settings.similarity

    # --- vectors

    def encode(
        self,
        sentences: str | Sequence[str] | RayDataset,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        normalize: bool = False,
        dims: int | None = None,
        progress: bool = False,
        on: RaySettings | None = None,
        column: str | None = None,
        keep: Sequence[str] | None = None,
    ) -> Any:
        """Return the vectors of texts, float32 ``[texts, width]``; of a single text ``[width]``.

        For a data set of Ray it is another one, computed when it is read, with a column ``vector``. Each worker opens the model's files, within ``memory``.

        Args:
            sentences: a text, or several; or a data set of Ray.
            prompt_name: the name of the prompt put before each text; by default the folder's.
            prompt: the prompt itself, also beside a name; "" for none.
            normalize: make each vector as long as 1, whether the model does so or not.
            dims: the first columns alone, for models trained so (Kusupati et al., "Matryoshka", 2022); they are cut before ``normalize``.
            progress: show a bar.
            on: the workers for a data set of Ray; by default as many as the cluster has room for, with a processor each.
            column: of the texts in a data set of Ray; "text" by default.
            keep: the columns of a data set of Ray that stand beside the vectors; all by default.

        Raises:
            SchemaError: no such prompt, or a model of scores. FeedError: a text is no text; no such column. ExecutionError: no room for a worker.
        """
        import numpy

        if is_ray_dataset(sentences):
            settings = {"prompt_name": prompt_name, "prompt": prompt, "normalize": normalize, "dims": dims}
            return self._on_ray(sentences, settings, column or "text", keep, on or RaySettings())
        if on is not None or column is not None or keep is not None:
            raise SchemaError("encode: on, column and keep are for a data set of Ray, and the texts are none")
        texts = _listed(sentences)
        with _bar(len(texts) if progress else None) as advance:
            rows: list[Any] = []
            for row in self._stream(texts, prompt_name, prompt, normalize, dims):
                rows.append(row)
                advance(1)
        if isinstance(sentences, str):
            return rows[0]
        return numpy.stack(rows) if rows else numpy.zeros((0, self.width if dims is None else dims), "float32")

    def _on_ray(self, dataset: RayDataset, settings: dict[str, Any], column: str, keep: Sequence[str] | None, workers: RaySettings) -> Any:
        self.encode("", **settings)  # wrong settings are told here
        require_columns(dataset, {column: "texts"}, True, keep, [VECTOR])
        memory = None if self.bound is None else self.bound.size
        opening = partial(Embedder, self.path.resolve(), memory, self._threads or max(int(workers.cpus), 1), self._row_scales)
        return mapped(dataset, partial(text_compute, opening, column, settings), workers, keep, memory=memory)

    def encode_query(self, sentences: str | Sequence[str] | RayDataset, **settings: Any) -> Any:
        """Return the vectors of questions: as `encode`, with the prompt "query" if the model has one.

        Args:
            sentences: a text, or several.
            settings: of `encode`.
        """
        return self.encode(sentences, **self._with_prompt(settings, ("query",)))

    def encode_document(self, sentences: str | Sequence[str] | RayDataset, **settings: Any) -> Any:
        """Return the vectors of documents: as `encode`, with the prompt "document", "passage" or "corpus" if the model has one.

        Args:
            sentences: a text, or several.
            settings: of `encode`.
        """
        return self.encode(sentences, **self._with_prompt(settings, _DOCUMENT_PROMPTS))

    def _with_prompt(self, settings: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        if settings.get("prompt") is None and settings.get("prompt_name") is None:
            return {**settings, "prompt_name": next((n for n in names if n in self.prompts), None)}
        return settings

    def encode_stream(
        self, sentences: Iterable[str], *, prompt_name: str | None = None, prompt: str | None = None, normalize: bool = False, dims: int | None = None
    ) -> Iterator[Any]:
        """Yield the vector of each text, in their order, float32 ``[width]``: for more texts than memory has room for.

        Args:
            sentences: texts; at most 256 are taken at a time.
            prompt_name, prompt, normalize, dims: as for `encode`.
        """
        return self._stream(_several("sentences", sentences, "texts"), prompt_name, prompt, normalize, dims)

    @property
    def width(self) -> int:
        """Return the columns of a vector."""
        if self._settings.sparse is not None and not self._settings.pooling:
            return int(cast("int", cast("Variable", self._network.result).spec.known_dims[-1]))
        import numpy

        variable = self._vector(False)
        return int(self._finished(numpy.zeros((1, int(cast("int", variable.spec.known_dims[-1]))), "float32")).shape[1])

    def _vector(self, skipping: bool) -> Variable:
        """Return the result with a row for each text."""
        if self.labels is not None:
            raise SchemaError(f"{self.path} scores pairs of texts: it has predict and rank, and no vectors")
        if self._network.rows is None:
            return cast("Variable", self._network.result)
        if not self._settings.pooling:
            raise SchemaError(f"{self.path} has no pooling: it has tokens, or sparse, and no vector of a text")
        if not self._told:
            self._told = True
            warnings.warn(f"{self.path} says nothing of pooling: a text's vector is the mean of its rows", ForeshapeWarning, stacklevel=4)
        return self._network.pooled(self._settings.pooling, skipping)

    def _finished(self, vectors: Any) -> Any:
        for step in self._settings.steps:
            vectors = step(vectors)
        return vectors

    def _stream(self, texts: Iterable[str], prompt_name: str | None, prompt: str | None, normalize: bool, dims: int | None) -> Iterator[Any]:
        prefix = self._prompt(prompt_name, prompt)
        skipped = self._tokenize.prompt_length(prefix) if prefix and not self._settings.include_prompt else 0
        variable = self._vector(bool(skipped))
        if dims is not None and (not isinstance(dims, int) or isinstance(dims, bool) or not 1 <= dims <= self.width):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError.must("dims", f"from 1 to the {self.width} columns of a vector", dims)

        def vectors(values: Any, lengths: Sequence[int]) -> Any:
            out = self._finished(values)[:, :dims]
            return normalized(out) if normalize else out

        first = 1
        for some in windows(texts):
            yield from self._rows(variable, self._words(_with(prefix, some), first), vectors, skipped, first)
            first += len(some)

    def _words(self, texts: Sequence[Any], first: int = 1) -> list[Tokenized]:
        """Return the words of each text.

        Args:
            texts: or pairs.
            first: the number of the first one, for words of errors.
        """
        if self.bound is None:
            return self._cut(texts)
        out: list[Tokenized] = []
        begin = 0
        while begin < len(texts):
            end, nbytes = begin + 1, cut_bytes(texts[begin])
            while end < len(texts) and nbytes + (added := cut_bytes(texts[end])) <= self.bound.size // _SHARE:
                nbytes, end = nbytes + added, end + 1
            if not self.bound.has_room(nbytes):
                end, nbytes = begin + 1, cut_bytes(texts[begin])
                if not self.bound.has_room(nbytes):
                    raise TextMemoryError(first + begin, f"has {length_of(texts[begin]):,} characters; cut into words they {self.bound.refusal(nbytes)}")
            out += self._cut(texts[begin:end])
            begin = end
        return out

    def _cut(self, texts: Sequence[Any]) -> list[Tokenized]:
        try:
            return self._tokenize(texts)
        except TypeError as error:  # of the package, whatever is wrong
            parts: list[Any] = [part for entry in texts for part in (cast("tuple[Any, ...]", entry) if isinstance(entry, tuple) else (entry,))]
            for text in parts:
                if not isinstance(text, str):
                    raise FeedError(f"a text must be a str; seen {type(text).__name__}") from None
                if any("\ud800" <= c <= "\udfff" for c in text):
                    raise FeedError(f"a text has half a pair of surrogates, which is no character: {text[:80]!a}") from None
            raise FeedError.must("each entry", "a text, or a pair of two", str(error)) from None

    def _rows(self, variable: Variable, words: Sequence[Tokenized], finish: Callable[[Any, Sequence[int]], Any], skipped: int = 0, first: int = 1) -> list[Any]:
        """Return the finished result of each text, in the order of ``words``."""
        import numpy

        out: list[Any] = [None] * len(words)
        limits = self._limit(variable, skipped)
        order = sorted((i for i, text in enumerate(words) if len(text.ids)), key=lambda i: len(words[i].ids), reverse=True)
        lengths = [len(text.ids) for text in words]
        for batch in self._with_room(batches(order, lengths, limits), lengths, variable, skipped, first):
            values = numpy.asarray(self._network.run(variable, [words[i].ids for i in batch], [words[i].types for i in batch], skipped))
            for i, row in zip(batch, finish(values, [len(words[i].ids) for i in batch]), strict=True):
                out[i] = row
        if sum(lengths) > _REST_AFTER:
            self._network.rest()
        if any(row is None for row in out):
            columns = int(cast("int", variable.spec.known_dims[-1]))
            nothing = finish(numpy.zeros((0 if variable.spec.lod is not None else 1, columns), "float32"), [0])[0]
            out = [nothing if row is None else row for row in out]
        return out

    def _with_room(self, parts: Iterable[list[int]], lengths: Sequence[int], variable: Variable, skipped: int, first: int) -> Iterator[list[int]]:
        """Yield batches once there is room for them: text by text, if there is none for all of a batch together."""
        for batch in parts:
            if self.bound is None:
                yield batch
                continue
            sizes = [lengths[i] for i in batch]
            nbytes = self._network.nbytes_of_run(variable, len(batch), sum(sizes), max(sizes), skipped)
            if self.bound.has_room(nbytes):
                yield batch
            elif len(batch) > 1:
                yield from self._with_room([[i] for i in batch], lengths, variable, skipped, first)
            else:
                raise TextMemoryError(first + batch[0], f"has {sizes[0]:,} words; they {self.bound.refusal(nbytes)}")

    def _limit(self, variable: Variable, skipped: int) -> Limits:
        key = variable.name, bool(skipped)
        if key not in self._limits:
            self._network.open(variable, skipped)
            self._limits[key] = batch_limits(self._network, variable, skipped)
        return self._limits[key]

    def _prompt(self, name: str | None, text: str | None) -> str:
        name = self._settings.default_prompt if name is None else name
        if name is not None and name not in [*self.prompts]:
            raise SchemaError.one_of("prompt_name", self.prompts, name) if self.prompts else SchemaError(f"the model has no prompts; seen prompt_name={name!r}")
        if text is not None:
            _need_texts([text])
            return text
        return "" if name is None else self.prompts[name]

    # --- for servers

    @property
    def program(self) -> Program:
        """Return the program of its network."""
        return self._network.program

    def text_run(self, prompt_name: str | None = None) -> TextRun:
        """Return the computation of vectors, or of the scores of pairs, whose texts come tokenized.

        Args:
            prompt_name: the name of the prompt; by default the folder's. Scores have none.

        Raises:
            SchemaError: no such prompt, or too little memory for the longest text.
        """
        import numpy

        scores = self.labels is not None
        before = "" if scores else self._prompt(prompt_name, None)
        skipped = self._tokenize.prompt_length(before) if before and not self._settings.include_prompt else 0
        variable = cast("Variable", self._network.result) if scores else self._vector(bool(skipped))

        def compute(words: Sequence[Tokenized]) -> Any:
            return numpy.stack(self._rows(variable, words, lambda values, lengths: values if scores else self._finished(values), skipped))

        return TextRun(before, skipped, self._limit(variable, skipped), compute, self._activation() if scores else ACTIVATIONS["Identity"])

    def tokenize(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[Tokenized]:
        """Return the numbers of the tokens of texts, or of pairs of texts, cut at the longest length. Raises `FeedError` if a text is no text."""
        return self._cut(list(_several("texts", texts, "texts, or of pairs")))  # while another thread may compute: no memory is given back here

    def text_tokens(self, text: str, special: bool = True) -> list[Token]:
        """Return the tokens of a text.

        Args:
            text: the text.
            special: with the special ones.

        Raises:
            FeedError: it is no text.
        """
        _need_texts([text])
        return self._tokenize.tokens(text, special)

    # --- similarity

    def similarity(self, a: Any, b: Any) -> Any:
        """Return the similarity of each vector of ``a`` to each of ``b``, float32 ``[a, b]``, as the folder says: cosine, dot, or a distance below 0.

        Args:
            a, b: vectors ``[n, width]``, or one ``[width]``.

        Raises:
            FeedError: other dims, or no numbers.
        """
        import numpy

        try:
            x, y = (numpy.atleast_2d(numpy.asarray(v, "float32")) for v in (a, b))
        except (TypeError, ValueError) as error:
            raise FeedError.must("a and b", "vectors of numbers", str(error)) from None
        if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
            raise FeedError.must("a and b", "vectors of one width, [n, width] or [width]", f"{[*numpy.shape(a)]} and {[*numpy.shape(b)]}")
        name = self._settings.similarity
        if name == "cosine":
            x, y = normalized(x), normalized(y)
        if name in ("cosine", "dot"):
            return x @ y.T
        distances = [numpy.abs(y - row).sum(1) if name == "manhattan" else numpy.sqrt(((y - row) ** 2).sum(1)) for row in x]
        return -numpy.reshape(numpy.asarray(distances, "float32"), (len(x), len(y)))

    # --- rows and words

    def tokens(self, sentences: str | Sequence[str], *, prompt_name: str | None = None, prompt: str | None = None, normalize: bool = False) -> Any:
        """Return the vectors of the words of texts (Khattab and Zaharia, "ColBERT", 2020): for each text float32 ``[words, width]``.

        Args:
            sentences: a text, for one array, or several, for a list.
            prompt_name, prompt: as for `encode`.
            normalize: make each row as long as 1.
        """
        import numpy

        if self._network.rows is None or self.labels is not None:
            raise SchemaError(f"{self.path} has no rows of words")
        prefix, steps = self._prompt(prompt_name, prompt), () if self._settings.pooling else self._settings.steps

        def split(values: Any, lengths: Sequence[int]) -> Any:
            for step in steps:
                values = step(values)
            return numpy.split(normalized(values) if normalize else values, numpy.cumsum(lengths)[:-1])

        rows = self._rows(self._network.rows, self._words(_with(prefix, _listed(sentences))), split)
        return rows[0] if isinstance(sentences, str) else rows

    def sparse(self, sentences: str | Sequence[str], *, prompt_name: str | None = None, prompt: str | None = None) -> Any:
        """Return the weights of words for texts (Formal et al., "SPLADE", 2021), as rows of SciPy, float32 CSR ``[texts, vocabulary]``.

        Args:
            sentences: a text, or several.
            prompt_name, prompt: as for `encode`.
        """
        from scipy import sparse as scipy_sparse

        if self._settings.sparse is None:
            raise SchemaError(f"{self.path} has no scores of words: a model with an output layer of masked words has them")
        variable, prefix = self._network.active_words(*self._settings.sparse), self._prompt(prompt_name, prompt)
        texts = _listed(sentences)

        sparse: Any = scipy_sparse

        def rows(values: Any, lengths: Sequence[int]) -> Any:
            return [sparse.csr_matrix(row) for row in values]

        columns = int(cast("int", variable.spec.known_dims[-1]))
        parts = self._rows(variable, self._words(_with(prefix, texts)), rows)
        return sparse.vstack(parts, "csr") if parts else sparse.csr_matrix((0, columns), dtype="float32")

    # --- scores

    def predict(self, pairs: Sequence[tuple[str, str]], *, raw: bool = False, progress: bool = False) -> Any:
        """Return the scores of pairs of texts, float32 ``[pairs]``, or ``[pairs, labels]`` of a model of several.

        Args:
            pairs: of a question and a document, or of any two texts.
            raw: leave out the activation: by default a single score goes through a sigmoid, unless the folder says otherwise.
            progress: show a bar.
        """
        import numpy

        if self.labels is None:
            raise SchemaError(f"{self.path} makes vectors of texts: a model with a head of scores has predict and rank")
        activation = self._activation()
        variable, texts = cast("Variable", self._network.result), [_pair(entry) for entry in _several("pairs", pairs, "pairs of texts")]
        out: list[Any] = []
        with _bar(len(texts) if progress else None) as advance:
            for some in windows(texts):
                first = len(out) + 1
                out += self._rows(variable, self._words(some, first), lambda values, lengths: values if raw else activation(values), 0, first)
                advance(len(some))
        scores = numpy.stack(out) if out else numpy.zeros((0, self.labels), "float32")
        return scores[:, 0] if self.labels == 1 else scores

    def rank(self, query: str, documents: Sequence[str], *, top: int | None = None) -> list[int]:
        """Return the numbers of the documents, the best for the question first.

        Args:
            query: the question.
            documents: the texts.
            top: the best alone; by default all.
        """
        import numpy

        scores = self.predict([(query, text) for text in _several("documents", documents, "texts")])
        if scores.ndim != 1:
            raise SchemaError(f"{self.path} has {self.labels} scores for a pair, and an order takes one")
        return [int(i) for i in numpy.argsort(-scores, kind="stable")[:top]]

    def _activation(self) -> Callable[[Any], Any]:
        name = self._settings.activation
        if name is None:
            return sigmoid if self.labels == 1 else ACTIVATIONS["Identity"]
        if name not in ACTIVATIONS:
            raise SchemaError.one_of("the activation of the scores", ACTIVATIONS, name)
        return ACTIVATIONS[name]

    def __repr__(self) -> str:
        kind = f"{self.labels} scores of a pair" if self.labels is not None else "vectors"
        return f"Embedder({str(self.path)!r}, {kind}, texts of up to {self.max_length} words)"


def _need_texts(texts: Sequence[Any]) -> None:
    """Raise `FeedError` for anything else than a text, such as a pair."""
    for text in texts:
        if not isinstance(text, str):
            raise FeedError(f"a text must be a str; seen {type(text).__name__}")


def _several(name: str, entries: Any, kind: str) -> Iterator[Any]:
    """Iterate over texts or pairs. Raises `FeedError` for a text alone, else each letter would be one, and for anything without entries."""
    try:
        if not isinstance(entries, str):
            return iter(entries)
    except TypeError:
        pass
    raise FeedError.must(name, f"an iterable of {kind}", f"{entries!r:.100}")


def _listed(sentences: Any) -> list[str]:
    return [sentences] if isinstance(sentences, str) else list(_several("sentences", sentences, "texts, or a text"))


def _pair(entry: Any) -> tuple[Any, Any]:
    pair = tuple(_several("a pair", entry, "two texts"))
    if len(pair) != 2:
        raise FeedError.must("a pair", "an iterable of two texts", f"{entry!r:.100}")
    return pair


def _with(prompt: str, texts: Sequence[str]) -> Sequence[str]:
    _need_texts(texts)
    return [prompt + text for text in texts] if prompt else texts


def _beside(file: Path) -> ModelFolder:
    """Return the settings beside a file of a network, or in the folder above."""
    folder = next((f for f in (file.parent, file.parent.parent) if any((f / n).is_file() for n in ("modules.json", *TOKENIZER_FILES))), file.parent)
    return read_folder(folder)


def text_progress(**settings: Any) -> Any:
    """Return a bar of rich with the texts of each second.

    Args:
        settings: of ``rich.progress.Progress``.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    class Speed(TextColumn):
        def render(self, task: Any) -> Any:
            return f"{task.finished_speed or task.speed or 0.0:,.1f} texts/s"

    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Speed(""), TimeRemainingColumn(), **settings)


class _bar:
    """A bar of texts, with their number each second; nothing for None."""

    def __init__(self, total: int | None) -> None:
        self._progress: Any = None
        if total is not None:
            self._progress = text_progress()
            self._task = self._progress.add_task("", total=total)

    def __enter__(self) -> Callable[[int], None]:
        if self._progress is None:
            return lambda count: None
        self._progress.start()
        return lambda count: self._progress.advance(self._task, count)

    def __exit__(self, *error: object) -> Literal[False]:
        if self._progress is not None:
            self._progress.stop()
        return False
