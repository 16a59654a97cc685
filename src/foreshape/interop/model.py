"""`InferenceModel`: an opened network with its parameters, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from foreshape.core.hints import did_you_mean
from foreshape.errors import FeedError, SchemaError, TypeMismatchError
from foreshape.interop.results import Results, feed_of
from foreshape.language.operator.computations import Identity, Scaling
from foreshape.language.program import Program, Variable, program_guard
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.engine.prepared_run import repeated

if TYPE_CHECKING:
    from foreshape.transforms.passes.for_training import Frozen, Statistics

Augment: TypeAlias = Callable[[Variable], Variable]
COPIES: Final = "save_infer_model/scale_"
"""The first part of the names of copies in a saved model."""


class InferenceModel(tuple[Program, list[str], list[Variable]]):
    """A network with its parameters. It unpacks into ``program, feeds, fetches``.

    Attributes:
        program: the network; inputs fixed by `with_feed_shapes` are fixed there.
        feeds: the names of its inputs, in order.
        fetches: its results, variables of the program, in order.
        scope: holds the parameters.
    """

    scope: Scope
    executor: Executor | None
    _open: Program
    _fixed: dict[str, Sequence[Any]]
    _saved_names: dict[str, str]
    _run: tuple[Executor, list[str], Callable[[Any], list[Any]]] | None
    """The executor, the names of the results, and its prepared run."""

    @classmethod
    def of(cls, program: Program, feeds: list[str], fetches: list[Variable], scope: Scope, executor: Executor | None = None) -> InferenceModel:
        """Make a model of its parts.

        Args:
            program: the program to run.
            feeds, fetches: the names of its inputs, and its results.
            scope: holds its values.
            executor: runs it; by default one of its own.
        """
        out = cls((program, feeds, fetches))
        out.scope, out.executor, out._open, out._fixed, out._run = scope, executor, program, {}, None
        out._saved_names = {saved_name: v.name for v in fetches if (saved_name := copied_from(v)) is not None}
        return out

    @property
    def program(self) -> Program:
        return self[0]

    @property
    def feeds(self) -> list[str]:
        return self[1]

    @property
    def fetches(self) -> list[Variable]:
        return self[2]

    @property
    def open_program(self) -> Program:
        """Return the network with its inputs as they were, before `with_feed_shapes`."""
        return self._open

    @property
    def asked(self) -> Mapping[str, str]:
        """Return name at the saving -> name in the model, of results with two."""
        return self._saved_names

    def run(self, feed: Mapping[str, Any] | Any, *more: Any) -> Results:
        """Compute the results of the model.

        Args:
            feed: input -> array, or a table; or the arrays themselves, in the order of ``feeds``, one by one or as a tuple.
            more: the arrays after the first.

        Returns:
            The results, by variable's name, place, or name at the saving (`Results`): arrays, `LoDTensor` if ragged.

        Raises:
            FeedError, GuardError: invalid feeds.
        """
        arrays = feed if feed.__class__ is dict and not more else feed_of(self.feeds, (feed, *more))
        for name, dims in self._fixed.items():
            shape = tuple(getattr(arrays[name], "shape", ())) if name in arrays else ()
            if len(shape) == len(dims) and any(isinstance(d, int) and d >= 0 and d != n for d, n in zip(dims, shape, strict=True)):
                raise FeedError(f"{name} was fixed to {list(dims)}, and an array of {list(shape)} is fed")
        if self.executor is None:
            self.executor = Executor()
        if self._run is None or self._run[0] is not self.executor:
            names = [v.name for v in self.fetches]
            self._run = self.executor, names, repeated(self.executor, self._open, names, self.scope)
        _, names, run = self._run
        return Results(zip(names, run(arrays), strict=True), self._saved_names)

    def with_feed_shapes(self, shapes: Mapping[str, Sequence[Any]]) -> InferenceModel:
        """Return the model with inputs of these shapes; see `Program.with_feed_shapes`. It shares the parameters and the compiled programs."""
        program = self.program.with_feed_shapes(shapes)
        out = InferenceModel.of(program, self.feeds, [program.global_block.var(v.name) for v in self.fetches], self.scope, self.executor)
        out._open, out._fixed = self._open, {**self._fixed, **shapes}
        if self.executor is None:
            self.executor = out.executor = Executor()
        return out

    def for_training(
        self,
        ends: Variable | str | Sequence[Variable | str] | None = None,
        *,
        frozen: Frozen = False,
        statistics: Statistics = "fixed",
        augment: Augment | Mapping[str, Augment] | None = None,
    ) -> InferenceModel:
        """Return the model for training, up to a cut: its tensors are parameters of its program, and layers can be added.

        This model stays as it is. The other one has a scope of its own, with copies of the trained values; frozen ones are shared.

        Args:
            ends: its results: words for layers (see `Program.outputs_of`), such as "last pool", or variables; by default the results of this
                model. Ops needed only by the rest are left out.
            frozen, statistics: as for `foreshape.transforms.passes.for_training`.
            augment: changes the input before the network, such as ``lambda image: layer.random_flip(image)``; for several inputs, name ->
                function.

        Raises:
            SchemaError: words for no layer, or for several; an unknown operator; as `for_training`. ShapeError,
            TypeMismatchError: a result of ``augment`` does not fit the network.
        """
        end_list = self.fetches if ends is None else [ends] if isinstance(ends, (Variable, str)) else list(ends)
        results = [v for end in end_list for v in ([end] if isinstance(end, Variable) else self.program.outputs_of(end))]
        from foreshape.transforms.passes.for_training import for_training  # not awaited by answers

        program = for_training(self.program, self.feeds, results, frozen=frozen, statistics=statistics)
        block = program.global_block
        read = {n for op in program.all_ops() for n in op.input_names()}
        feeds = [n for n in self.feeds if n in read]
        if augment is not None:
            if callable(augment) and len(feeds) != 1:
                raise SchemaError(f"the network has the inputs {', '.join(feeds)}: give augment a dict, input -> function")
            augments = {feeds[0]: augment} if callable(augment) else augment
            for name, function in augments.items():
                if name not in feeds:
                    raise SchemaError(f"augment: the network has no input {name!r}; they are: {', '.join(feeds)}{did_you_mean(name, feeds)}")
                _put_before(program, name, function)
        written = {n for op in program.all_ops() for n in op.output_names()}
        scope = Scope()
        for name, variable in block.vars.items():
            if variable.persistable and name in self.scope:
                if (variable.trainable and variable.is_parameter) or name in written:
                    scope.set(name, self.scope.tensor(name))
                else:
                    scope.defer(name, partial(self.scope.tensor, name))
        return InferenceModel.of(program, feeds, [block.var(v.name) for v in results], scope)

    @property
    def elements(self) -> dict[str, str]:
        """Input -> numpy's name of its elements."""
        return {n: self.program.global_block.var(n).spec.known_dtype.numpy_name for n in self.feeds}

    def __repr__(self) -> str:
        specs = [str(self.program.global_block.var(n)) for n in self.feeds]
        results = [f"{result_name(v)}: {v.spec.text()}" for v in self.fetches]
        return f"InferenceModel({', '.join(specs)} -> {', '.join(results)})"


def _put_before(program: Program, name: str, function: Augment) -> None:
    """Let the ops of a program read a function's result in place of its input."""
    block = program.global_block
    variable, count = block.var(name), len(block.ops)
    with program_guard(program):
        result = function(variable)
    if not isinstance(result, Variable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SchemaError(f"augment must give a variable; of {name} it gives {result!r}")
    if result.dtype is not variable.dtype:
        raise TypeMismatchError(f"augment must keep the element type; of {variable} it makes {result}")
    new = block.ops[count:]
    block.ops = block.ops[:count]
    from foreshape.transforms.backward.append import rename_reads

    rename_reads(block, name, result.name)
    block.ops = [*new, *block.ops]
    program.infer()


def result_name(variable: Variable) -> str:
    """Return the user's name of a result: of the original, for a copy under a saved model's own name."""
    return (copied_from(variable) if variable.name.startswith(COPIES) else None) or variable.name


def copied_from(variable: Variable) -> str | None:
    """Return the name of the original of a result copied under another name in a saved model, None without a copy."""
    op = variable.op
    if op is None:
        return None
    scaling = op.computes(Scaling)
    copies = scaling.by == 1.0 if scaling is not None else variable.name.startswith(COPIES) and op.computes(Identity) is not None
    return op.operand(0) or None if copies else None
