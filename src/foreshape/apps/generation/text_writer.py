"""`generate` and `TextWriter`: many texts written side by side, new ones joining while others run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from foreshape.apps.generation.beams import Beams
from foreshape.apps.generation.cache_places import CachePlace, CachePlaces
from foreshape.apps.generation.cached_model import LanguageModel
from foreshape.apps.generation.choice import WordChoice
from foreshape.apps.generation.prompt_scores import PromptScores
from foreshape.apps.generation.text_settings import MOST, TextChoices, TextSettings, seen, whole_between, words_of
from foreshape.apps.generation.writing import Writing
from foreshape.core.values.offsets import as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, FeedError, SchemaError, whole
from foreshape.machine.kernels.sampling_loop import UNDECIDED
from foreshape.machine.kernels.word_sampling import Sampling

_Text = TypeVar("_Text", bound=Writing)


class TextWriter:
    """A queue of texts to be written by one language model. Each step runs the network once for all texts with a place in its cache.

    A text takes a place as soon as one is free, and its prompt is computed beside the next words of the others, as ragged rows without padding.

    A prompt that begins with at least 16 words of another text takes their keys and values from its place. Texts at their ends stay in
    free places for that, without further memory. The least recently used one goes as its place is needed.

    Args:
        model: the network. It can serve one writer at a time.
        prompt_rows: the most words of prompts in a step: longer ones are computed in parts, so the others don't wait.
        share_prefixes: texts share the rows of equal first words. By default where the network is proven to allow it
            (`LanguageModel.prefix_obstacle`).

    Attributes:
        computed: the words that the network has computed, of prompts and texts.
        shared: the words of prompts taken from other texts in place of computing them.

    Raises:
        SchemaError: ``share_prefixes=True`` for a network without the proof.
    """

    def __init__(self, model: LanguageModel, prompt_rows: int = 512, share_prefixes: bool | None = None) -> None:
        self.model, self._prompt_rows = model, whole_between("prompt_rows", prompt_rows, 1)
        self.computed = self.shared = 0
        self._waiting: deque[Writing] = deque()
        self._running: list[Writing] = []
        obstacle = None if share_prefixes is False else model.prefix_obstacle
        if share_prefixes and obstacle is not None:
            raise SchemaError(f"share_prefixes needs cached rows that follow from the words up to their own alone, and {obstacle}")
        self._prompt_scores: PromptScores | None = None
        self._places = CachePlaces(model, share_prefixes is not False and obstacle is None)

    def add(
        self,
        prompt: Sequence[int],
        *,
        most: int | None = None,
        stop: Iterable[Sequence[int]] = (),
        seed: int | None = None,
        on_word: Callable[[int], None] | None = None,
        logprobs: int | None = None,
        echo: bool = False,
        **choices: Unpack[TextChoices],
    ) -> Writing:
        """Let a text be written behind ``prompt``: it waits until places in the cache are free.

        Args:
            prompt: the numbers of its first words, each in ``[0, vocabulary)``; fewer than the context has.
            most: the most words to be written, by default as the model's settings say, or 64. The end of the context ends a text, too.
            stop: sequences of words at the end of the text, not in the result.
            seed: of draws: they are the same whatever texts run beside it. With None they differ from run to run.
            on_word: is called with each new word, as soon as it is known to be in the text.
            logprobs: as for `generate`; they are in ``choices`` of the text.
            echo: with ``logprobs`` the words of the prompt are in ``prompt_choices`` of the text. They take no rows of other texts.
            choices: as for `generate`. Each of ``beams`` takes a place in the cache. They exclude ``temperature``, ``stop``, ``on_word`` and ``logprobs``.

        Returns:
            The text. Its ``words`` grow with each `step`.

        Raises:
            FeedError: no prompt, a word out of range, or more words than the context. SchemaError: settings out of range.
        """
        model = self.model
        words = [whole(f"word {index} of a prompt", w, -(1 << 63), FeedError) for index, w in enumerate(prompt)]
        if not words:
            raise FeedError("a prompt must have at least one word; seen none")
        if (wrong := next((w for w in words if not 0 <= w < model.vocabulary), None)) is not None:
            raise FeedError(f"the words of a prompt must be in [0, {model.vocabulary}); seen {seen(wrong)}")
        if len(words) >= model.context:
            raise FeedError(f"the context has {model.context} words, and the prompt must leave one to be written; it has {len(words)}")
        settings = model.settings.but({"most": most, "seed": seed, **choices})
        if settings.beams > model.users:
            raise SchemaError.must("beams", f"from 1 to the users of the cache, {model.users}", settings.beams)
        if settings.most is None and settings.max_length is not None and len(words) >= settings.max_length:
            raise FeedError(f"the model's settings have max_length={settings.max_length}, and the prompt has {len(words)} words: give the most to be written")
        if (wrong := next((w for w, _ in settings.logit_bias if w >= model.vocabulary), None)) is not None:
            raise SchemaError(f"the words of logit_bias must be in [0, {model.vocabulary}); seen {wrong}")
        count = None if logprobs is None else whole_between("logprobs", logprobs, 0, model.vocabulary)
        limit = settings.most or (MOST if settings.max_length is None else settings.max_length - len(words))
        limit = min(limit, model.context - len(words))
        stops = [list(words_of("stop", s)) for s in stop]
        if not all(stops):
            raise SchemaError("a sequence of words that stops a text must have at least one")
        if settings.beams == 1:
            writing = Writing(words, limit, settings, stops, on_word, count, echo)
        elif settings.temperature or stops or on_word is not None or count is not None:
            raise SchemaError(
                "beams take the best words, and a text is known at its end: without temperature (0 where the model's settings have one), stop, on_word and "
                "logprobs"
            )
        else:
            writing = Beams(words, limit, settings, model.vocabulary)
        self._waiting.append(writing)
        return writing

    @property
    def busy(self) -> bool:
        """Tell whether a text is not at its end."""
        return bool(self._waiting or self._running)

    def step(self) -> None:
        """Run the network once, and let each text go on by a word.

        Raises:
            ForeshapeError, or any other error at the end of a text: its ``text.error``. The others have gone on, and can go on.
        """
        for writing in self._advance():
            if writing.error is not None:
                raise writing.error

    def run(self) -> None:
        """Run until all texts are at their ends."""
        while self.busy:
            self.step()

    def stream(self, writing: Writing) -> Iterator[int]:
        """Yield the words of one text, ``writing`` from `add`, as they come; the others go on too. Raises the error of this text."""
        count = 0
        while True:
            yield from writing.words[count : writing.sure]
            count = max(count, writing.sure)
            if writing.error is not None:
                raise writing.error
            if writing.done:
                return
            self._advance()

    def drop(self, writing: Writing) -> None:
        """End a text as it is, ``writing`` from `add`, and free its places."""
        if writing in self._waiting:
            self._waiting.remove(writing)
        if writing in self._running:
            self._running.remove(writing)
            for place in sorted(writing.places, key=lambda p: -p.number):
                self._places.leave(place)
        writing.end("dropped")

    def forget(self) -> None:
        """Clear the rows of former texts, kept for prompts with the same beginning."""
        self._places.forget()

    def __repr__(self) -> str:
        return f"TextWriter(waiting: {len(self._waiting)}, running: {len(self._running)}, places: {len(self._places)} of {self.model.users})"

    # --- a step

    def _advance(self) -> list[Writing]:
        """Run the network once, let each text go on by a word, and return the texts at their ends. An error of a text ends it alone."""
        if self._places.disturbed:
            for writing in self._running:
                writing.fail(ExecutionError("the network was run for somebody else while this text was written: its rows in the cache may be others' now"))
            return self._leave_ended()
        self._admit()
        if not self._running:
            return []
        budget = self._prompt_rows
        rows: list[list[int]] = []
        places: list[CachePlace] = []
        for place in self._places.running:
            if not self._places.begin(place):
                continue
            if place.of.noted is not None and len(place.waiting) > 1:
                _attempt(place.of, lambda text, place=place, most=budget: self._note_prompt(text, place, most))
                continue
            row = place.waiting if len(place.waiting) == 1 else place.waiting[:budget]
            if len(place.waiting) > 1:
                budget -= len(row)
            if row:
                rows.append(row)
                places.append(place)
        if not rows:
            return self._leave_ended()
        with torch.inference_mode():
            last = [not place.beam and len(row) == len(place.waiting) for place, row in zip(places, rows, strict=True)]
            samplings = [place.of.sampling(self.model.vocabulary) if is_last else None for place, is_last in zip(places, last, strict=True)]
            scores, words = self._scores(places, rows, samplings)
            best = None
            if any(is_last and word < 0 for is_last, word in zip(last, words, strict=True)):
                best = [*zip(*(as_list(numbers) for numbers in scores.max(-1)), strict=True)]
            for index, place in enumerate(places):
                if last[index]:
                    chosen = words[index] if words[index] >= 0 else None
                    _attempt(place.of, lambda text, index=index, chosen=chosen: text.go_on(scores[index], chosen, None if best is None else best[index]))
            for writing in [w for w in self._running if isinstance(w, Beams)]:
                lines = [places.index(place) for place in writing.places if not place.waiting and place in places]
                if lines:
                    _attempt(writing, lambda text, lines=lines: self._go_on(text, scores[lines]))
        return self._leave_ended()

    def _leave_ended(self) -> list[Writing]:
        """Free the places of texts at their ends, and return them."""
        ended = [w for w in self._running if w.done]
        if ended:
            self._running = [w for w in self._running if not w.done]
            for place in sorted((p for w in ended for p in w.places), key=lambda p: -p.number):  # from the last on: they need not move
                self._places.leave(place)
        return ended

    def _note_prompt(self, text: Writing, place: CachePlace, most: int) -> None:
        """Note the probabilities of the next words of a prompt, at most so many; the last one is left for a step."""
        if self._prompt_scores is None:
            self._prompt_scores = PromptScores(self.model)
        count = min(len(place.waiting) - 1, most, self._prompt_scores.most)
        with torch.inference_mode():
            text.prompt_choices += self._prompt_scores.choices(place.waiting[: count + 1], place.number, place.length, text.noted or 0)
        self._places.ran()
        place.took(count)
        self.computed += count

    def _scores(self, places: Sequence[CachePlace], rows: Sequence[list[int]], samplings: Sequence[Sampling | None]) -> tuple[Tensor, list[int]]:
        """Return the scores behind new rows, and the words as of `LanguageModel.next_words`.

        If they cannot be computed side by side, each place's are alone, and its error is of its text alone.
        """
        try:
            scores, words = self.model.next_words(rows, [p.number for p in places], [p.length for p in places], samplings)
            self._places.ran()
        except Exception as error:
            self._places.ran()
            if len(places) > 1:
                alone = [self._scores([place], [row], [sampling]) for place, row, sampling in zip(places, rows, samplings, strict=True)]
                return torch.cat([scores for scores, _ in alone]), [word for _, words in alone for word in words]
            places[0].of.fail(error)
            scores, words = torch.full((1, self.model.vocabulary), torch.nan), [UNDECIDED]
        for place, row in zip(places, rows, strict=True):
            if not place.of.words and place.length == place.of.shared:
                self.shared += place.of.shared
            place.took(len(row))
            self.computed += len(row)
        return scores, words

    # --- places

    def _admit(self) -> None:
        reserved = sum(w.width for w in self._running)
        new: list[Writing] = []
        while self._waiting and reserved + self._waiting[0].width <= self.model.users:
            writing = self._waiting.popleft()
            reserved += writing.width
            new.append(writing)
        self._running += new
        for writing in sorted(new, key=lambda w: len(w.prompt)):  # texts of about the same length are looked at together
            self._places.take(writing, writing.prompt)

    def _go_on(self, writing: Beams, scores: Any) -> None:
        """Let beams go on: each one's words before are in the place of its parent."""
        chosen = writing.chosen(scores)
        if writing.done:
            return
        places = writing.places
        length = places[0].length
        origins = [places[parent].number for parent, _ in chosen]
        while len(places) < len(chosen):
            self._places.take(writing, (), length)
        self.model.reorder([p.number for p in places[: len(chosen)]], origins, length)
        for place in places[len(chosen) :]:
            self._places.leave(place)
        for place, (_, word) in zip(places, chosen, strict=True):
            place.waiting = [word]


def _attempt(text: _Text, go_on: Callable[[_Text], None]) -> None:
    """Let a text go on, unless it is at its end; an error is its end."""
    if not text.done:
        try:
            go_on(text)
        except Exception as error:
            text.fail(error)


@overload
def generate(
    model: LanguageModel,
    prompts: Iterable[Sequence[int]],
    most: int | None = None,
    *,
    stop: Iterable[Sequence[int]] = (),
    seed: int | None = None,
    on_word: Callable[[int, int], None] | None = None,
    prompt_rows: int = 4096,
    logprobs: None = None,
    echo: bool = False,
    share_prefixes: bool | None = None,
    **choices: Unpack[TextChoices],
) -> list[list[int]]: ...
@overload
def generate(
    model: LanguageModel,
    prompts: Iterable[Sequence[int]],
    most: int | None = None,
    *,
    stop: Iterable[Sequence[int]] = (),
    seed: int | None = None,
    on_word: Callable[[int, int], None] | None = None,
    prompt_rows: int = 4096,
    logprobs: int,
    echo: bool = False,
    share_prefixes: bool | None = None,
    **choices: Unpack[TextChoices],
) -> list[list[WordChoice]]: ...
def generate(
    model: LanguageModel,
    prompts: Iterable[Sequence[int]],
    most: int | None = None,
    *,
    stop: Iterable[Sequence[int]] = (),
    seed: int | None = None,
    on_word: Callable[[int, int], None] | None = None,
    prompt_rows: int = 4096,
    logprobs: int | None = None,
    echo: bool = False,
    share_prefixes: bool | None = None,
    **choices: Unpack[TextChoices],
) -> list[list[int]] | list[list[WordChoice]]:
    """Write a text behind each prompt.

    Prompts of different lengths run side by side, as ragged rows without padding, as many as the cache has places. As one ends the next one begins.

    Examples:
        >>> model = fs.language_model("folder")                                     # a GPT-2 or a Llama, as transformers saves one
        >>> texts = fs.generate(model, [[464, 2068], [40, 716, 257]], most=20)      # lists of the new words' numbers

    Args:
        model: from `language_model`, or a `LanguageModel` of a network of yours.
        prompts: of each text the numbers of its first words.
        most: the most words to be written, by default as the model's settings say, or 64.
        stop: sequences of words at the end of a text, not in the result. The model's own words for an end are in it.
        seed: of draws. Text i is drawn with ``seed + i``, whatever runs beside it.
        on_word: is called with the number of the prompt and each new word, as soon as it is known to be in the text.
        prompt_rows: as for `TextWriter`; more by default, since all texts begin at once.
        logprobs: a number of words: the result has each written word with its logarithmic probability, and so many of the best beside it.
        echo: the words of the prompts are in the results, too; the first one has no probability, but NaN.
        share_prefixes: as for `TextWriter`.
        choices: how words are chosen; by default as the model's settings say (of ``generation_config.json``), or the best word at each step.

            - ``temperature``: 0 takes the best word; otherwise scores are divided by it, and a word is drawn from their softmax.
            - ``top_k``: draw among so many of the best words; 0 for all.
            - ``top_p``: draw among the best words whose probabilities sum up to this; 1 for all.
            - ``min_p``: draw among words with at least this share of the best one's probability.
            - ``typical_p``: draw among the words with the most usual information whose probabilities sum up to this; 1 for all.
            - ``beams``: texts kept side by side for each prompt; the result is the best one, by the sum of its words' logarithmic
              probabilities divided by its length to the power of ``length_penalty``. ``early_stopping`` ends the search at as many ended texts.
            - ``repetition_penalty``: above 1 it lowers the scores of words in the text.
            - ``frequency_penalty``, ``presence_penalty``: are taken from the score of each word written before: the first one once for each time it
              was, the second one once. The words of the prompt do not count.
            - ``logit_bias``: word -> a number added to its score.
            - ``score_processor``: is called with the words so far and the scores, ``[vocabulary]`` in fp32, behind all other changes and before the
              temperature. Returns the scores to choose by; -inf forbids a word. It may change the array in place.
            - ``no_repeat_ngram_size``: no sequence of so many words comes twice.
            - ``min_new_tokens``: the fewest words before an end.

    Returns:
        The new words of each text; with ``logprobs`` a `WordChoice` for each.

    Raises:
        FeedError: a prompt without words, with one out of range, or too long. SchemaError: settings out of range. ExecutionError: scores without a best word,
        such as NaN, or a score_processor's result of
        other dims or without a word to choose; the number of the prompt is in its notes.
    """
    number = None if seed is None else TextSettings.bounded("seed", seed, "seed")
    writer = TextWriter(model, prompt_rows, share_prefixes)
    writings: list[Writing] = []
    for index, prompt in enumerate(prompts):
        text_seed = None if number is None else (number + index) % (1 << 64)
        hears = None if on_word is None else partial(on_word, index)
        writings.append(writer.add(prompt, most=most, stop=stop, seed=text_seed, on_word=hears, logprobs=logprobs, echo=echo, **choices))
    try:
        writer.run()
    except Exception as error:
        error.add_note(f"in the text of prompt {next((index for index, w in enumerate(writings) if w.error is error), 0)}")
        raise
    finally:
        writer.forget()
    if logprobs is None:
        return [[*w.prompt, *w.words] if echo else w.words for w in writings]
    return [w.prompt_choices + w.choices for w in writings]
