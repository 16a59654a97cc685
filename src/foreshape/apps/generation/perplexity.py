"""The perplexity of texts by a language model: the loss of each word behind the ones before, in windows as long as the context."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from foreshape import layer
from foreshape.apps.generation.cached_model import LanguageModel
from foreshape.apps.generation.prompt_scores import most_rows, network_of_all_rows
from foreshape.apps.generation.text_settings import seen, whole_between
from foreshape.compiler.memory import Plan
from foreshape.core.values.conversion import to_tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, FeedError, MemoryPlanError, SchemaError, whole
from foreshape.language.program import Program, program_guard
from foreshape.runtime.engine.prepared_run import repeated

_MOST_SCORES: Final = 1 << 25
"""The scores of a run, rows times words of the vocabulary; 128 MiB in fp32."""


class TextWindow(NamedTuple):
    """Words of a text looked at together.

    Attributes:
        words: the words.
        first: the place of the first predicted one; the ones before it are predicted in the window before, or begin the text.
    """

    words: list[int]
    first: int


class LossSums(NamedTuple):
    """The sum of losses, in nats, and the number of predicted words."""

    loss: float
    words: int


def windows_of(words: list[int], context: int, stride: int) -> Iterator[TextWindow]:
    """Yield the windows of a text: each begins ``stride`` words behind the one before, and they predict each word but the first once.

    Args:
        words: of the text.
        context: the most words of a window.
        stride: from 1 to ``context - 1``.
    """
    begin, end = 0, 0
    while True:
        last, end = max(end, 1), min(begin + context, len(words))
        yield TextWindow(words[begin:end], last - begin)
        if end == len(words):
            return
        begin += stride


class WordLosses:
    """A language model's network with the loss of each word in place of the scores of the last one.

    Args:
        model: is not changed; its cache is used, so no text may be written meanwhile.

    Raises:
        SchemaError: its scores are not those of a layer of the last row of each text.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        program, words, scores = network_of_all_rows(model)
        with program_guard(program, Program()):
            truth = layer.data(program.unique_name("next_words"), [words.spec.known_dims[0], 1], "int64")
            loss = layer.softmax_with_cross_entropy(scores, truth)
        self._program, self._loss = program, loss.name
        self._truth, self._rows = truth.name, most_rows(model, _MOST_SCORES)
        model.make_cache()
        self._run = repeated(model.new_executor(), program, [loss.name], model.scope)

    def plan(self) -> Plan:
        """Return the memory plan by the symbols of the network, as `LanguageModel.plan` does; with the losses of all rows."""
        return Plan(self._program, [self._loss], frozen=True)

    def sums(self, windows: Sequence[TextWindow]) -> LossSums:
        """Return the loss of all predicted words of some windows, at most as many as the model has users.

        Raises:
            ExecutionError: a loss that is not finite. MemoryPlanError: a single row for each window takes more than the model's memory.
        """
        model, total, count = self._model, 0.0, 0
        done = [0] * len(windows)
        last = [len(window.words) - 1 for window in windows]  # nobody asks for the scores behind the last word
        try:
            while running := [place for place, window_rows in enumerate(last) if done[place] < window_rows]:
                most = max(self._rows // len(running), 1)
                parts = [(place, windows[place], done[place], min(done[place] + most, last[place])) for place in running]
                try:
                    losses = self._losses(parts)
                except MemoryPlanError:  # the cache and its rows are as they were: fewer rows take less
                    if most == 1:
                        raise
                    self._rows //= 2
                    continue
                offset = 0
                for place, window, begin, end in parts:
                    predicted = losses[offset + min(max(window.first - 1 - begin, 0), end - begin) : offset + end - begin].double()
                    offset += end - begin
                    total += float(predicted.sum())
                    count += predicted.shape[0]
                    done[place] = end
        finally:
            for place, rows in enumerate(done):
                model.clear_rows(place, len(windows[place].words) if rows else 0)
        if not math.isfinite(total):
            raise ExecutionError(f"the loss of a word is not finite: the sum over {count} words is {total}")
        return LossSums(total, count)

    def _losses(self, parts: Sequence[tuple[int, TextWindow, int, int]]) -> Tensor:
        model = self._model
        rows = [window.words[begin:end] for _, window, begin, end in parts]
        truth = [word for _, window, begin, end in parts for word in window.words[begin + 1 : end + 1]]
        feed: dict[str, Any] = {
            **model.feed_of(rows, [place for place, *_ in parts], [begin for *_, begin, _ in parts]),
            self._truth: torch.tensor(truth, dtype=torch.int64).unsqueeze(1),
        }
        model.runs += 1
        return to_tensor(self._run(feed)[0]).reshape(-1)


def batches_of(model: LanguageModel, texts: Iterable[Sequence[int]], stride: int | None) -> Iterator[list[TextWindow]]:
    """Yield the windows of texts, as many together as the model has users.

    Raises:
        FeedError: an empty text, or a word out of range. SchemaError: a stride out of range.
    """
    if model.context < 2:
        raise SchemaError(f"a word is predicted from one before, so the context must have at least 2 words; seen {model.context}")
    step = max(model.context // 2, 1) if stride is None else whole_between("stride", stride, 1, model.context - 1)
    batch: list[TextWindow] = []
    for number, text in enumerate(texts):
        if isinstance(text, (str, bytes)) or not hasattr(text, "__iter__"):
            raise FeedError.must(f"text {number}", "a list of words, as numbers", seen(text))
        words = [whole(f"word {index} of text {number}", word, -(1 << 63), FeedError) for index, word in enumerate(text)]
        if not words:
            raise FeedError(f"text {number} has no words")
        if (wrong := next((w for w in words if not 0 <= w < model.vocabulary), None)) is not None:
            raise FeedError(f"the words of text {number} must be in [0, {model.vocabulary}); seen {seen(wrong)}")
        for window in windows_of(words, model.context, step):
            batch.append(window)
            if len(batch) == model.users:
                yield batch
                batch = []
    if batch:
        yield batch


def figures_of(sums: Iterable[LossSums]) -> dict[str, float]:
    """Return the perplexity, the mean loss in nats, and the number of predicted words. Raises `FeedError` if there are none."""
    parts = [*sums]
    count = sum(part.words for part in parts)
    if not count:
        raise FeedError("there is no word to predict: the first one of each text is given")
    loss = math.fsum(part.loss for part in parts) / count
    return {"perplexity": math.exp(loss) if loss < 700 else math.inf, "loss": loss, "words": count}
