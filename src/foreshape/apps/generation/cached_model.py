"""`LanguageModel`: a network for the scores of the next word, with its weights and the cache of the words before."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from foreshape.apps.generation.decoder_source import DecoderOrigin
from foreshape.apps.generation.gguf_saving import save_gguf
from foreshape.apps.generation.packed_weights import PackedValues, Rows, Weights, packed_network
from foreshape.apps.generation.prefix_proof import prefix_obstacle
from foreshape.apps.generation.text_settings import TextSettings, whole_between
from foreshape.apps.generation.word_step import MOST_ROWS, NoWordStep, WordStep
from foreshape.compiler.memory import Plan
from foreshape.core.values.conversion import on_device, to_tensor
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError, SchemaError, ShapeError
from foreshape.language.program import Variable
from foreshape.layer.cached_rows import AttentionCache
from foreshape.machine.kernels.word_sampling import Sampling, sampled_words
from foreshape.machine.process.threads import threads_here
from foreshape.machine.targets import target_of
from foreshape.runtime.engine import Executor, Scope, default_scope
from foreshape.runtime.engine.prepared_run import repeated


class LanguageModel:
    """A network from the new words of some texts to the scores of each text's next word.

    Its weights must not be changed by others while it is used: they are packed for the kernels, as in a `Predictor`.

    Args:
        words: the input, int64, ragged ``[rows]``: the new words of each text.
        scores: the result, ``[batch, vocabulary]``: of each text, behind its last new word.
        cache: the cache of the network's attention.
        scope: holds the weights; the default scope if left out.
        users: the most texts at a time.
        context: the most words of a text, given and written together.
        end: the numbers of words at the end of a text.
        settings: of texts, where a call says nothing else; ``end`` is a part of them.
        threads, memory_limit, device: as for `Executor`. The weights and the cache move to the device; words are chosen on the host.

    Attributes:
        runs: the number of runs so far: rows that a writer has kept are its own while nobody else has run the network.

    Raises:
        SchemaError: the network has no cache, or its inputs are others. ShapeError: other dims than these.
    """

    def __init__(
        self,
        words: Variable,
        scores: Variable,
        cache: AttentionCache,
        scope: Scope | None = None,
        *,
        users: int = 8,
        context: int = 1024,
        end: int | Sequence[int] | None = None,
        settings: TextSettings | None = None,
        threads: int | None = None,
        memory_limit: int | str | None = None,
        device: str = "cpu",
    ) -> None:
        if not cache.kept:
            raise SchemaError("the cache is not used: say cache=cache in the attention of the network")
        if scores.spec.rank != 2 or scores.spec.lod is not None or not isinstance(scores.spec.known_dims[-1], int):
            raise ShapeError.must(
                f"the scores {scores.name}", "[batch, vocabulary] of each text's last word, as of layer.sequence_last_step", scores.spec.text()
            )
        users, context = whole_between("users", users, 1), whole_between("context", context, 1)
        for size, number, field in ((cache.users, users, "users"), (cache.context, context, "context")):
            if isinstance(size, int) and size != number:
                raise SchemaError(f"the cache was described for {field} {size}; seen {number}")
        self.program = scores.block.program
        self.words, self.scores, self.cache = words, scores, cache
        self.scope = default_scope() if scope is None else scope
        self.users, self.context = users, context
        self.vocabulary = columns_of(scores)
        self.settings = (TextSettings() if settings is None else settings).but({"ends": end})
        if (wrong := next((w for w in self.settings.named_words if not 0 <= w < self.vocabulary), None)) is not None:
            raise SchemaError(f"the settings of texts name the word {wrong}, and the words are in [0, {self.vocabulary})")
        self.origin: DecoderOrigin | None = None
        self._threads, self._memory_limit, self._device = threads, memory_limit, device
        self.executor = self.new_executor()
        self.runs = 0
        self._kept: list[Tensor] = []
        self._step: WordStep | None = None
        self._step_version = -1
        self._step_lock = threading.Lock()
        self._run = repeated(self.executor, self.program, [scores.name], self.scope)

    def quantized(self, weights: Weights = "int8", group: int = 64, exclude: str | Sequence[str] = (), rows: Rows = "fp32") -> LanguageModel:
        """Return the model with its constant matrices in 8 or 4 bits, and a table of words in 8; norms, attention and the cache stay in fp32.

        Values left in fp32 are shared with this model, which stays as it is.

        Args:
            weights: "int8" or "int4".
            group: the most rows of a weight with one scale; fewer where it does not divide them.
            exclude: patterns of layers to leave in fp32, by the names of their results or weights: ``"head*"``.
            rows: "fp32", or "int8": in products with packed weights each group of a row is rounded to 8 bits, with a scale found in the run. A row's
                numbers do not depend on others in the run.

        Raises:
            SchemaError: other weights or rows, no layer to pack, or numbers that are not finite.
        """
        patterns = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        packed = packed_network(self.words, self.scores, self.cache, self.scope.tensor, weights, group, patterns, rows=rows)
        scope = Scope()
        for name, value in packed.values.items():
            scope.set(name, value)
        cached = {v.name for v in packed.cache.kept}
        for name, variable in packed.scores.block.program.global_block.vars.items():
            if variable.persistable and name not in packed.values and name not in cached and name in self.scope:
                scope.defer(name, partial(self.scope.tensor, name))
        model = LanguageModel(
            packed.words,
            packed.scores,
            packed.cache,
            scope,
            users=self.users,
            context=self.context,
            settings=self.settings,
            threads=self._threads,
            memory_limit=self._memory_limit,
            device=self._device,
        )
        model.origin = self.origin
        return model

    def save_gguf(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a GGUF file, for `fs.language_model`, llama.cpp and others, with the tokenizer and the chat template of its folder or file.

        Packed weights keep their numbers: of 8 bits in groups of a multiple of 32 as ``Q8_0``, of 4 bits as ``Q4_0``, with offsets as ``Q4_1``. Scales have
        16 bits there, and a warning tells the largest change. All others are written in the smallest of ``F16``, ``BF16`` and ``F32`` with their numbers.

        Args:
            path: of the file; replaced when all is written.

        Raises:
            FormatError: the place cannot be written to, or the disk is full. SchemaError: the model is not of `language_model`; its kind, a setting or its
                tokenizer has no form in GGUF files.
        """
        if self.origin is None:
            raise SchemaError("a GGUF file has one of the known kinds of networks: the model must be one of fs.language_model")
        save_gguf(path, self.origin, PackedValues(self.program, self.scope).value, self.settings)

    @property
    def end(self) -> frozenset[int]:
        """Return the words at the end of a text."""
        return frozenset(self.settings.ends)

    @property
    def word_bytes(self) -> int:
        """Return the bytes of one word in the cache."""
        return sum(columns_of(v) * v.spec.known_dtype.itemsize for v in self.cache.kept)

    def plan(self) -> Plan:
        """Return the memory plan by the symbols of the network: of the cache's users and context, of texts and new rows in a run."""
        return Plan(self.program, [self.scores.name], frozen=True)

    def run(self, rows: Sequence[Sequence[int]], slots: Sequence[int], held: Sequence[int]) -> Tensor:
        """Return the scores ``[texts, vocabulary]`` behind new words.

        Args:
            rows, slots, held: as for `next_words`.

        Raises:
            ExecutionError: a place out of range, or a text too long. MemoryPlanError: as for `Executor`.
        """
        return self.next_words(rows, slots, held, ())[0]

    def next_words(
        self, rows: Sequence[Sequence[int]], slots: Sequence[int], held: Sequence[int], samplings: Sequence[Sampling | None]
    ) -> tuple[Tensor, list[int]]:
        """Return the scores ``[texts, vocabulary]`` behind new words, and the next word of each text, chosen in the same call where the step is machine code.

        Args:
            rows: the new words of each text.
            slots: the place of each text in the cache.
            held: the number of words of each text there already.
            samplings: how the next word of each text is chosen; none at all choose none. A word is -1 where its choice is None, or is left to torch: the
                scores tell no word, or two so close to each other that sums of another order could take the other one.

        Raises:
            ExecutionError: a place out of range, or a text too long. MemoryPlanError: as for `Executor`.
        """
        self.make_cache()
        self.runs += 1
        if len(rows) <= MOST_ROWS and all(len(row) == 1 for row in rows) and rows:
            step = self._word_step()
            results = None if step is None else step.run([row[0] for row in rows], slots, held, samplings)
            if results is not None:
                return results
        scores = to_tensor(self._run(self.feed_of(rows, slots, held))[0])
        return scores, sampled_words(scores, samplings, self._threads or threads_here())

    def feed_of(self, rows: Sequence[Sequence[int]], slots: Sequence[int], held: Sequence[int]) -> dict[str, Any]:
        """Return the network's inputs for new words.

        Args:
            rows, slots, held: as for `next_words`.
        """
        flat = torch.tensor([word for row in rows for word in row], dtype=torch.int64)
        return {
            self.words.name: LoDTensor.of_lengths(flat, [[len(row) for row in rows]]),
            self.cache.slots.name: torch.tensor(slots, dtype=torch.int64),
            self.cache.held.name: torch.tensor(held, dtype=torch.int64),
        }

    def _word_step(self) -> WordStep | None:
        """Return the step of one word for each text in machine code, made at its first use and for new tensors; None if the network has none."""
        with self._step_lock:
            if self.scope.version != self._step_version:
                self._step = self._new_step()
                self._step_version = self.scope.version  # deferred values have come in
            return self._step

    def _new_step(self) -> WordStep | None:
        names = self.words.name, self.cache.slots.name, self.cache.held.name, self.scores.name
        persistables = [v.name for v in self.program.global_block.vars.values() if v.persistable and v.name in self.scope]
        try:
            if not target_of(self.executor.device).is_processor:
                raise NoWordStep("the device is no processor")
            values = {name: self.scope.tensor(name) for name in persistables}
            return WordStep(self.program, names, values, self.users, self.context, self._threads or threads_here())
        except NoWordStep:
            return None

    @cached_property
    def prefix_obstacle(self) -> str | None:
        """Return the reason why texts cannot share the cached rows of equal first words; None if they can.

        It is proven from the network: keys and values follow from the words up to their own, and there is no other state.
        """
        return prefix_obstacle(self.words, self.cache)

    def clear_rows(self, place: int, count: int, first: int = 0) -> None:
        """Set words of a place to zero: a NaN in hidden rows would reach the next text there.

        Args:
            place: its number, in ``[0, users)``.
            count: the number of words.
            first: the words at the beginning to be left.
        """
        with torch.inference_mode():
            for tensor in self._kept:
                tensor[place, first:count].zero_()

    def copy_rows(self, origin: int, to: int, count: int, first: int = 0) -> None:
        """Copy words of a text from one place of the cache to another.

        Args:
            origin: the number of the place to copy from, in ``[0, users)``.
            to: the number of the place to copy to.
            count: the number of words.
            first: the words at the beginning to be left as they are.
        """
        with torch.inference_mode():
            for tensor in self._kept:
                tensor[to, first:count].copy_(tensor[origin, first:count])

    def swap_rows(self, first: int, second: int, count: int) -> None:
        """Exchange the first words of two places of the cache.

        Args:
            first, second: their numbers, in ``[0, users)``.
            count: the number of words.
        """
        with torch.inference_mode():
            for tensor in self._kept:
                former = tensor[first, :count].clone()
                tensor[first, :count].copy_(tensor[second, :count])
                tensor[second, :count].copy_(former)

    def reorder(self, places: Sequence[int], origins: Sequence[int], count: int) -> None:
        """Give places of the cache the first words of others, all as they were before.

        Args:
            places: the numbers of the places to be filled, in ``[0, users)``.
            origins: for each of them the number of the place with its words; one can serve several.
            count: the number of words, the same for all.
        """
        moves = [(target, origin) for target, origin in zip(places, origins, strict=True) if target != origin]
        if moves:
            target, origin = (on_device(torch.tensor(column), self._kept[0].device) for column in zip(*moves, strict=True))
            with torch.inference_mode():
                for tensor in self._kept:
                    tensor[target, :count] = tensor[origin, :count]

    def new_executor(self) -> Executor:
        """Return another executor like the model's own, for another program with its weights."""
        return Executor(self._device, threads=self._threads, memory_limit=self._memory_limit, frozen=True)

    def make_cache(self) -> None:
        """Make the values of the cache, if there are none: zeros, since hidden rows are multiplied by weights of zero.

        Raises:
            ExecutionError: there is no memory for it.
        """
        if self._kept:
            return
        size = self.users * self.context * self.word_bytes
        try:
            with torch.inference_mode():
                for v in self.cache.kept:
                    dims = self.users, self.context, columns_of(v)
                    self.scope.store(v.name, torch.zeros(dims, dtype=torch_dtype(v.spec.known_dtype), device=self.executor.device))
        except RuntimeError as error:
            raise ExecutionError(f"there is no memory for the cache of {self.users} texts of {self.context} words, {size:,} bytes") from error
        self._kept = [self.scope.tensor(v.name) for v in self.cache.kept]

    def __repr__(self) -> str:
        return f"LanguageModel({self.vocabulary} words, {self.users} texts of up to {self.context}, {self.word_bytes:,} bytes of cache a word)"


def columns_of(variable: Variable) -> int:
    """Return the last size of a variable, a number."""
    size = variable.spec.known_dims[-1]
    if not isinstance(size, int):
        raise ShapeError.must(f"the columns of {variable.name}", "a number", variable.spec.text())
    return size
