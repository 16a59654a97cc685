"""`generate` and `TextWriter`: many texts written side by side, new ones joining while others run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from foreshape.errors import FeedError, SchemaError
from foreshape.generation.beams import Beams
from foreshape.generation.cached_model import LanguageModel
from foreshape.generation.choice import WordChoice
from foreshape.generation.writing import CachePlace, Writing
from foreshape.values.offsets import as_list
from foreshape.values.torch_proxy import torch


class TextWriter:
    """A queue of texts to be written by one language model. Each step runs the network once for all texts with a place in its cache.

    A text takes a place as soon as one is free, and its prompt is computed beside the next words of the others, as ragged rows without padding.

    Args:
        model: the network. It can serve one writer at a time.
        prompt_rows: the most words of prompts in a step: longer ones are computed in parts, so the others don't wait.
    """

    def __init__(self, model: LanguageModel, prompt_rows: int = 512) -> None:
        if prompt_rows < 1:
            raise SchemaError.must("prompt_rows", "at least 1", prompt_rows)
        self.model, self._prompt_rows = model, prompt_rows
        self._waiting: deque[Writing] = deque()
        self._running: list[Writing] = []
        self._places: list[CachePlace] = []
        """The places in use, by their number."""

    def add(
        self,
        prompt: Sequence[int],
        *,
        most: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        beams: int = 1,
        length_penalty: float = 1.0,
        stop: Iterable[Sequence[int]] = (),
        seed: int | None = None,
        on_word: Callable[[int], None] | None = None,
    ) -> Writing:
        """Let a text be written behind ``prompt``: it waits until places in the cache are free.

        Args:
            prompt: the numbers of its first words, each in ``[0, vocabulary)``; fewer than the context has.
            most: the most words to be written. The end of the context ends a text, too.
            temperature, top_k, top_p: of the choice of words, as for `generate`.
            beams: texts kept side by side, as for `generate`. Each takes a place in the cache. They exclude ``temperature``, ``stop`` and ``on_word``.
            length_penalty: of beams, as for `generate`.
            stop: sequences of words at the end of the text, not in the result.
            seed: of draws: they are the same whatever texts run beside it. With None they differ from run to run.
            on_word: is called with each new word, as soon as it is known to be in the text.

        Returns:
            The text. Its ``words`` grow with each `step`.

        Raises:
            FeedError: no prompt, a word out of range, or more words than the context. SchemaError: settings out of range.
        """
        model = self.model
        words = [int(w) for w in prompt]
        if not words:
            raise FeedError("a prompt must have at least one word; seen none")
        if (wrong := next((w for w in words if not 0 <= w < model.vocabulary), None)) is not None:
            raise FeedError(f"the words of a prompt must be in [0, {model.vocabulary}); seen {wrong}")
        if most < 1:
            raise SchemaError.must("most", "at least 1", most)
        if len(words) >= model.context:
            raise FeedError(f"the context has {model.context} words, and the prompt must leave one to be written; it has {len(words)}")
        if not 1 <= beams <= model.users:
            raise SchemaError.must("beams", f"from 1 to the users of the cache, {model.users}", beams)
        most = min(most, model.context - len(words))
        stops = [list(map(int, s)) for s in stop]
        if not all(stops):
            raise SchemaError("a sequence of words that stops a text must have at least one")
        choice = WordChoice(temperature, top_k, top_p)
        if beams == 1:
            made = Writing(words, most, model.end, stops, choice, seed, on_word)
        elif temperature or stops or on_word is not None:
            raise SchemaError("beams take the best words, and a text is known at its end: without temperature, stop and on_word")
        else:
            made = Beams(words, most, model.end, beams, length_penalty, model.vocabulary)
        self._waiting.append(made)
        return made

    @property
    def busy(self) -> bool:
        """Tell whether a text is not at its end."""
        return bool(self._waiting or self._running)

    def step(self) -> None:
        """Run the network once, and let each text go on by a word. Raises as `LanguageModel.run`; the texts can go on afterwards."""
        self._admit()
        if not self._running:
            return
        budget = self._prompt_rows
        rows: list[list[int]] = []
        asked: list[CachePlace] = []
        for place in self._places:
            row = place.waiting if len(place.waiting) == 1 else place.waiting[:budget]
            if len(place.waiting) > 1:
                budget -= len(row)
            if row:
                rows.append(row)
                asked.append(place)
        scores = self.model.run(rows, [p.number for p in asked], [p.held for p in asked])
        for place, row in zip(asked, rows, strict=True):
            place.took(len(row))
        with torch.inference_mode():
            best: list[int] | None = None
            for at, place in enumerate(asked):
                if not place.waiting and not place.beam:
                    if place.of.choice.temperature == 0.0 and best is None:
                        best = as_list(scores.argmax(-1))
                    place.of.go_on(scores[at], None if best is None else best[at])
            for writing in [w for w in self._running if isinstance(w, Beams)]:
                lines = [asked.index(place) for place in writing.places if not place.waiting and place in asked]
                if lines:
                    self._go_on(writing, scores[lines])
        if ended := [w for w in self._running if w.done]:
            self._running = [w for w in self._running if not w.done]
            for place in sorted((p for w in ended for p in w.places), key=lambda p: -p.number):  # from the last on: they need not move
                self._leave(place)

    def run(self) -> None:
        """Run until all texts are at their ends."""
        while self.busy:
            self.step()

    def stream(self, writing: Writing) -> Iterator[int]:
        """Yield the words of one text, ``writing`` from `add`, as they come; the others go on too. Raises as `step`."""
        given = 0
        while True:
            yield from writing.words[given : writing.sure]
            given = max(given, writing.sure)
            if writing.done:
                return
            self.step()

    def drop(self, writing: Writing) -> None:
        """End a text as it is, ``writing`` from `add`, and free its places."""
        if writing in self._waiting:
            self._waiting.remove(writing)
        if writing in self._running:
            self._running.remove(writing)
            for place in [*writing.places]:
                self._leave(place)
        writing.end("dropped")

    def __repr__(self) -> str:
        return f"TextWriter(waiting: {len(self._waiting)}, running: {len(self._running)}, places: {len(self._places)} of {self.model.users})"

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
            self._take(writing, writing.prompt)

    def _take(self, writing: Writing, waiting: Sequence[int], held: int = 0) -> CachePlace:
        place = CachePlace(writing, len(self._places), list(waiting), held)
        self._places.append(place)
        writing.places.append(place)
        return place

    def _leave(self, place: CachePlace) -> None:
        """Free a place; the last one in use moves there, so they stay side by side."""
        place.of.places.remove(place)
        last = self._places.pop()
        if last is not place:
            self.model.copy_rows(last.number, place.number, last.held)
            self._places[place.number] = last
            last.number = place.number

    def _go_on(self, writing: Beams, scores: Any) -> None:
        """Let beams go on: each one's words before are in the place of its parent."""
        chosen = writing.chosen(scores)
        if writing.done:
            return
        places = writing.places
        held = places[0].held
        origins = [places[parent].number for parent, _ in chosen]
        while len(places) < len(chosen):
            self._take(writing, (), held)
        self.model.reorder([p.number for p in places[: len(chosen)]], origins, held)
        for place in places[len(chosen) :]:
            self._leave(place)
        for place, (_, word) in zip(places, chosen, strict=True):
            place.waiting = [word]


def generate(
    model: LanguageModel,
    prompts: Iterable[Sequence[int]],
    most: int = 64,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    beams: int = 1,
    length_penalty: float = 1.0,
    stop: Iterable[Sequence[int]] = (),
    seed: int | None = None,
    on_word: Callable[[int, int], None] | None = None,
    prompt_rows: int = 4096,
) -> list[list[int]]:
    """Write a text behind each prompt.

    Prompts of different lengths run side by side, as ragged rows without padding, as many as the cache has places. As one ends the next one begins.

    Examples:
        >>> model = fs.language_model("folder")                                     # a GPT-2 or a Llama, as transformers saves one
        >>> texts = fs.generate(model, [[464, 2068], [40, 716, 257]], most=20)      # lists of the new words' numbers

    Args:
        model: from `language_model`, or a `LanguageModel` of a network of yours.
        prompts: of each text the numbers of its first words.
        most: the most words to be written.
        temperature: 0 takes the best word at each step; otherwise scores are divided by it, and a word is drawn from their softmax.
        top_k: draw among so many of the best words; 0 for all.
        top_p: draw among the best words whose probabilities sum up to this; 1 for all.
        beams: texts kept side by side for each prompt; the result is the best one, by the sum of its words' logarithmic probabilities divided
            by its length to the power of ``length_penalty``.
        length_penalty: of beams.
        stop: sequences of words at the end of a text, not in the result. The model's own words for an end are in it.
        seed: of draws. Text i is drawn with ``seed + i``, whatever runs beside it.
        on_word: is called with the number of the prompt and each new word, as soon as it is known to be in the text.
        prompt_rows: as for `TextWriter`; more by default, since all texts begin at once.

    Returns:
        The new words of each text.

    Raises:
        FeedError: a prompt without words, with one out of range, or too long. SchemaError: settings out of range.
    """
    writer = TextWriter(model, prompt_rows)
    made: list[Writing] = []
    for at, prompt in enumerate(prompts):
        made.append(
            writer.add(
                prompt,
                most=most,
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                beams=beams,
                length_penalty=length_penalty,
                stop=stop,
                seed=None if seed is None else seed + at,
                on_word=None if on_word is None else partial(on_word, at),
            )
        )
    writer.run()
    return [w.words for w in made]
