"""Programs that train: copies of what a user described, with gradients and updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

from foreshape.engine import Scope
from foreshape.errors import SchemaError
from foreshape.hints import tells_arguments
from foreshape.optimizer import SGD, Optimizer
from foreshape.optimizer.ownership import Owner, claim, taken
from foreshape.passes import accumulate as gather_gradients
from foreshape.passes import lower_precision, scale_loss
from foreshape.passes.accumulate import checked_batches
from foreshape.passes.gathered_over_ranks import Ungathered
from foreshape.passes.precision import checked_precision
from foreshape.pictures.figures import plural
from foreshape.pictures.markup import Markup, card, cut, folded, markup_table
from foreshape.program import Program, Variable, startup_of
from foreshape.training.program import has_updates, optimizer_made, persistables, rate_of, scalar_loss
from foreshape.views.notebook import counts


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class TrainingProgram:
    """A program with gradients and updates, what makes its first values, and the loss that it makes smaller.

    ``fs.Executor().run(made.startup)`` and then ``run(made.program, feed, [made.loss])`` for each batch is a training by hand.
    """

    program: Program
    """What runs for each batch."""
    startup: Program
    """What makes the first values."""
    loss: Variable
    """One number, of `program`."""
    learning_rate: Variable | None
    """Of `program`; None where the updates have several that are not one another's multiples."""
    described: frozenset[str]
    """The persistable values of the program that was described; all others are the optimizer's."""
    owner: Owner
    """Whose these are."""
    optimizer: Optimizer | None = None
    """None where the program had its updates already."""
    ungathered: Ungathered | None = None
    """The same before its loss was scaled and its gradients were gathered over several batches; None where neither was done."""

    @property
    def state(self) -> list[str]:
        """What the optimizer keeps from step to step: moments, counters."""
        written = {n for op in self.program.all_ops() for n in op.output_names()}
        return [v.name for v in persistables(self.program) if v.name not in self.described and v.name in written]

    @property
    def constants(self) -> list[str]:
        """The optimizer's numbers that no step changes, such as a learning rate that is one."""
        state = set(self.state)
        return [v.name for v in persistables(self.program) if v.name not in self.described and v.name not in state]


    def _rows(self) -> list[tuple[str, str]]:
        """What it is, in a line each."""
        numbers = [("loss", self.loss)] + ([("learning rate", self.learning_rate)] if self.learning_rate is not None else [])
        made = [("optimizer", "the program's own" if self.optimizer is None else type(self.optimizer).__name__), ("state", plural(len(self.state), "value"))]
        gathered = [("updates", f"after every {self.ungathered.batches} batches")] if self.ungathered is not None and self.ungathered.batches > 1 else []
        return [("runs", counts(self.program)), *((name, repr(v)) for name, v in numbers), *made, *gathered]

    def __repr__(self) -> str:
        return "\n".join(["TrainingProgram", *(cut(f"  {name}: {words}", _WIDTH) for name, words in self._rows())])

    def _repr_html_(self) -> str:
        layers = [folded("layers", Markup(self.program.summary()._repr_html_()))] if len(self.program.global_block.ops) <= _SUMMED else []  # pyright: ignore[reportPrivateUsage]
        return card("TrainingProgram", markup_table(("", ""), [(name, cut(words, 300)) for name, words in self._rows()]), *layers)


@dataclass(slots=True)
class _Known:
    """A training program that was made before, and of what. It does not keep the optimizer, by which it is kept."""

    version: int
    startup: tuple[ReferenceType[Program], int]
    cost: str
    settings: dict[str, Any]
    options: tuple[object, ...]
    parts: tuple[Any, ...]
    names: frozenset[str]
    """Of the optimizer's state."""
    made: Callable[[], TrainingProgram | None] = lambda: None

    def is_of(self, cost: Variable, startup: Program, settings: Mapping[str, Any], options: tuple[object, ...]) -> bool:
        """Whether the same would be made again, but for names."""
        same = self.version == cost.block.program.version and self.cost == cost.name and self.startup[0]() is startup and self.startup[1] == startup.version
        return same and self.options == options and _same(self.settings, settings)

    def given(self, optimizer: Optimizer) -> TrainingProgram:
        """The same again."""
        found = self.made()
        if found is None:
            program, startup, loss, rate, described, before = self.parts
            found = TrainingProgram(program, startup, loss, rate, described, _owner(optimizer), optimizer, before)
            self.made = ref(found)
        return found


_MADE: WeakKeyDictionary[Owner, WeakKeyDictionary[Program, list[_Known]]] = WeakKeyDictionary()
"""By optimizer and by what was described, so that training again with the same optimizer compiles nothing again."""
_LAST: WeakKeyDictionary[Program, Optimizer] = WeakKeyDictionary()
"""By what was described: the optimizer that it was trained with last."""
_OWNERS: WeakKeyDictionary[Program, Owner] = WeakKeyDictionary()
"""By program with updates of its own: whose the state is that is added for it."""
_WIDTH, _SUMMED = 160, 5_000
"""Characters of a line at a prompt; of how many ops a notebook shows the layers."""
_REMEMBERED = 4
"""So many of the last training programs of a description and an optimizer are kept."""


@tells_arguments
def training_program(
    cost: Variable, optimizer: Optimizer | None = None, *, startup: Program | None = None, accumulate: int = 1, precision: str = "fp32",
    epochs: float | None = None, batches_per_epoch: float | None = None,
) -> TrainingProgram:  # fmt: skip
    """A copy of a cost's program with its gradients and updates; the program itself stays as it is.

    A program that has its updates already (`Optimizer.minimize`) is taken as it is, and not copied. The same cost and the same
    optimizer give the same copy again, as long as neither has been changed.

    Args:
        cost: one number, or anything whose mean is to be minimised (``[batch, 1]``).
        optimizer: where it is left out, the one that this program was trained with before, and otherwise ``SGD(0.01)``.
        startup: makes the parameters' first values; the default startup program where it is left out. It is copied too.
        accumulate: how many batches make one update (`foreshape.passes.accumulate`). A program with updates is copied for it.
        precision: "fp32"; "bf16" or "fp16" for products and convolutions in that (`foreshape.passes.lower_precision`), "fp16" with a scaled
            loss (`foreshape.passes.scale_loss`).
        epochs, batches_per_epoch: of the run, for schedules that are in epochs or over the whole run; None where they are not known.

    Raises:
        SchemaError: the program has updates, and another optimizer or a precision is given; what `accumulate` and `precision` refuse, and
            `Optimizer.for_run`. ShapeError, SchemaError: as `foreshape.append_backward`.
    """
    return make(cost, optimizer, None, startup, accumulate, precision, epochs, batches_per_epoch)


def make(
    cost: Variable, optimizer: Optimizer | None, scope: Scope | None, startup: Program | None, accumulate: int, precision: str, epochs: float | None,
    batches_per_epoch: float | None,
) -> TrainingProgram:  # fmt: skip
    """`training_program`, to be trained by `train` over a scope where that is given, and otherwise by whoever asks."""
    of = cost.block.program
    startup = startup if startup is not None else startup_of(of)
    checked_precision(precision)
    checked_batches(accumulate)
    if has_updates(of):
        if optimizer is not None and not optimizer_made(optimizer, of):
            raise SchemaError("the program has its updates already, from another optimizer; leave optimizer= out, or train a program without them")
        if precision != "fp32":
            raise SchemaError(f"precision={precision!r}: the program has its updates already; leave out minimize, which training does to a copy")
        return _gathering(of, scalar_loss(cost, startup).name, startup, accumulate)
    if optimizer is None:
        optimizer = _LAST.get(of)
    _LAST[of] = optimizer = optimizer if optimizer is not None else SGD(0.01)
    owner = _owner(optimizer)
    known = _MADE.setdefault(owner, WeakKeyDictionary()).setdefault(of, [])
    settings = {n: v for n, v in vars(optimizer).items() if not n.startswith("_")}
    updates = None if batches_per_epoch is None else batches_per_epoch / accumulate
    for_run = optimizer.for_run(epochs=epochs, steps_per_epoch=updates)
    options = (accumulate, precision, *((epochs, updates) if for_run is not optimizer else ()))
    one, others = None, frozenset[str]()
    for exact in (False, True):
        others = taken(owner, of, startup, handed_out=scope is not None, exact=exact)
        others = others if scope is None else others.intersection(scope.names())
        one = next((k for k in known if k.is_of(cost, startup, settings, options) and k.names.isdisjoint(others)), None)
        if one is not None:
            known.remove(one)
            break
    if one is None:
        one = _made(cost, for_run, owner.reserve(others, startup), startup, accumulate, precision)
        one.settings, one.options = settings, options
    known[:] = [*known[1 - _REMEMBERED :], one]
    claim(owner, one.parts[0], startup, one.names, handed_out=scope is None)
    return one.given(optimizer)


def _made(cost: Variable, optimizer: Optimizer, others: frozenset[str], startup: Program, accumulate: int, precision: str) -> _Known:
    of = cost.block.program
    described = frozenset(v.name for v in persistables(of))
    program, first = of.clone(), startup.clone()
    copied = program.blocks[cost.block.idx].vars[cost.name]
    loss = scalar_loss(copied, first).name
    program = lower_precision(program, precision)
    program.reserved |= others
    optimizer.minimize(program.var(loss), first)
    scaled = precision == "fp16"
    before = Ungathered(program, first, accumulate, scaled) if scaled or accumulate > 1 else None
    if scaled:
        program, first = scale_loss(program, loss, first)
    program, first = gather_gradients(program, accumulate, first)
    names = frozenset(v.name for v in persistables(program)) - described
    parts = (program, first, program.var(loss), rate_of(program), described, before)
    return _Known(of.version, (ref(startup), startup.version), cost.name, {}, (), parts, names)


def _gathering(of: Program, loss: str, startup: Program, accumulate: int) -> TrainingProgram:
    """A program with updates, as it is or with its gradients gathered over several batches."""
    described = frozenset(v.name for v in persistables(of))
    owner = _OWNERS.setdefault(of, Owner())
    if accumulate == 1:
        return TrainingProgram(of, startup, of.var(loss), rate_of(of), described, owner)
    program = of.clone()
    program.reserved |= owner.reserve(taken(owner, of, startup), startup)
    program, first = gather_gradients(program, accumulate, startup)
    claim(owner, of, startup, {v.name for v in persistables(program)} - described, handed_out=True)
    return TrainingProgram(program, first, program.var(loss), rate_of(program), described, owner, None, Ungathered(of, startup, accumulate))


def _owner(optimizer: Optimizer) -> Owner:
    return optimizer._owner  # pyright: ignore[reportPrivateUsage]


def _same(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether an optimizer's settings are what they were: objects the same ones, numbers and words equal."""
    return before.keys() == now.keys() and all(
        before[n] is now[n] or (isinstance(now[n], (int, float, str)) and type(before[n]) is type(now[n]) and before[n] == now[n]) for n in now
    )
