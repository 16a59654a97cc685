"""Training programs: copies of described programs with gradients and updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, ref

from foreshape.apps.training.program import has_updates, optimizer_made, persistables, rate_of, scalar_loss
from foreshape.core.hints import tells_arguments
from foreshape.core.pictures.figures import plural
from foreshape.core.pictures.markup import Markup, card, cut, folded, markup_table
from foreshape.errors import SchemaError
from foreshape.language.program import Program, Variable, startup_of
from foreshape.language.views.notebook import counts
from foreshape.optimizer import SGD, Optimizer
from foreshape.optimizer.ownership import Owner, claim, taken
from foreshape.runtime.engine import Scope
from foreshape.transforms.passes import accumulate as gather_gradients
from foreshape.transforms.passes import lower_precision, scale_loss
from foreshape.transforms.passes.accumulate import checked_batches
from foreshape.transforms.passes.accumulate_distributed import Ungathered
from foreshape.transforms.passes.precision import checked_precision


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, repr=False)
class TrainingProgram:
    """A program with gradients and updates, its startup program, and its loss.

    ``fs.Executor().run(made.startup)`` and then ``run(made.program, feed, [made.loss])`` for each batch is a training by hand.
    """

    program: Program
    """The program to run for each batch."""
    startup: Program
    """The program that makes the first values."""
    loss: Variable
    """One number, of `program`."""
    learning_rate: Variable | None
    """The learning rate of `program`; None if it has several that are not multiples of one another."""
    described: frozenset[str]
    """The persistable values of the described program; all others are the optimizer's."""
    owner: Owner
    """The owner of the state."""
    optimizer: Optimizer | None = None
    """The optimizer of the updates; None for a program with updates of its own."""
    ungathered: Ungathered | None = None
    """The same before its loss was scaled and its gradients were gathered over several batches; None if neither was done."""

    @property
    def state(self) -> list[str]:
        """Return the names of the optimizer's state: moments, counters."""
        written = {n for op in self.program.all_ops() for n in op.output_names()}
        return [v.name for v in persistables(self.program) if v.name not in self.described and v.name in written]

    @property
    def constants(self) -> list[str]:
        """Return the optimizer's numbers unchanged by steps, such as a constant learning rate."""
        state = set(self.state)
        return [v.name for v in persistables(self.program) if v.name not in self.described and v.name not in state]

    def _rows(self) -> list[tuple[str, str]]:
        """Return its facts, a line each."""
        numbers = [("loss", self.loss)] + ([("learning rate", self.learning_rate)] if self.learning_rate is not None else [])
        updates = [("optimizer", "the program's own" if self.optimizer is None else type(self.optimizer).__name__), ("state", plural(len(self.state), "value"))]
        gathered = [("updates", f"after every {self.ungathered.batches} batches")] if self.ungathered is not None and self.ungathered.batches > 1 else []
        return [("runs", counts(self.program)), *((name, repr(v)) for name, v in numbers), *updates, *gathered]

    def __repr__(self) -> str:
        return "\n".join(["TrainingProgram", *(cut(f"  {name}: {words}", _WIDTH) for name, words in self._rows())])

    def _repr_html_(self) -> str:
        layers = [folded("layers", Markup(self.program.summary()._repr_html_()))] if len(self.program.global_block.ops) <= _SUMMED else []  # pyright: ignore[reportPrivateUsage]
        return card("TrainingProgram", markup_table(("", ""), [(name, cut(words, 300)) for name, words in self._rows()]), *layers)


@dataclass(slots=True)
class _Known:
    """A training program made before, with its arguments. It does not keep the optimizer alive: the optimizer keeps it."""

    version: int
    startup: tuple[ReferenceType[Program], int]
    cost: str
    settings: dict[str, Any]
    options: tuple[object, ...]
    parts: tuple[Any, ...]
    names: frozenset[str]
    """The names of the optimizer's state."""
    made: Callable[[], TrainingProgram | None] = lambda: None

    def is_of(self, cost: Variable, startup: Program, settings: Mapping[str, Any], options: tuple[object, ...]) -> bool:
        """Tell whether the same would be made again, but for names."""
        equal = self.version == cost.block.program.version and self.cost == cost.name and self.startup[0]() is startup and self.startup[1] == startup.version
        return equal and self.options == options and _equal_settings(self.settings, settings)

    def given(self, optimizer: Optimizer) -> TrainingProgram:
        """Return the same training program for an optimizer."""
        training = self.made()
        if training is None:
            program, startup, loss, rate, described, ungathered = self.parts
            training = TrainingProgram(program, startup, loss, rate, described, _owner(optimizer), optimizer, ungathered)
            self.made = ref(training)
        return training


_MADE: WeakKeyDictionary[Owner, WeakKeyDictionary[Program, list[_Known]]] = WeakKeyDictionary()
"""By optimizer and described program: training again with the same optimizer compiles nothing again."""
_LAST: WeakKeyDictionary[Program, Optimizer] = WeakKeyDictionary()
"""By described program: the optimizer of its last training."""
_DEFAULTS: WeakSet[Optimizer] = WeakSet()
"""The optimizers taken since none was given."""
_OWNERS: WeakKeyDictionary[Program, Owner] = WeakKeyDictionary()
"""By program with updates of its own: the owner of the state added for it."""
_WIDTH, _SUMMED = 160, 5_000
"""Characters of a line at a prompt; of how many ops a notebook shows the layers."""
_REMEMBERED = 4
"""So many of the last training programs of a description and an optimizer are kept."""


@tells_arguments
def training_program(
    cost: Variable, optimizer: Optimizer | None = None, *, startup: Program | None = None, accumulate: int = 1, precision: str = "fp32",
    epochs: float | None = None, batches_per_epoch: float | None = None,
) -> TrainingProgram:  # fmt: skip
    """Return a copy of a cost's program with its gradients and updates; the program itself stays as it is.

    A program with updates (`Optimizer.minimize`) is taken as it is, and not copied. The same cost and the same
    optimizer give the same copy again, as long as neither has been changed.

    Args:
        cost: one number, or a variable to be minimised in the mean (``[batch, 1]``).
        optimizer: by default the optimizer of this program's last training, or ``SGD(0.01)``.
        startup: makes the parameters' first values; the default startup program if omitted. It is copied too.
        accumulate: the number of batches for one update (`foreshape.transforms.passes.accumulate`). A program with updates is copied for it.
        precision: "fp32"; "bf16" or "fp16" for products and convolutions (`foreshape.transforms.passes.lower_precision`), "fp16" with a scaled
            loss (`foreshape.transforms.passes.scale_loss`).
        epochs, batches_per_epoch: of the run, for schedules in epochs or over the whole run; None if unknown.

    Raises:
        SchemaError: the program has updates, and another optimizer or a precision is given; as `accumulate`, `precision` and
            `Optimizer.for_run`. ShapeError, SchemaError: as `foreshape.append_backward`.
    """
    return make(cost, optimizer, None, startup, accumulate, precision, epochs, batches_per_epoch)


def make(
    cost: Variable, optimizer: Optimizer | None, scope: Scope | None, startup: Program | None, accumulate: int, precision: str, epochs: float | None,
    batches_per_epoch: float | None,
) -> TrainingProgram:  # fmt: skip
    """Make a `training_program` for `train` over a scope, if given, and otherwise for the caller."""
    program = cost.block.program
    startup = startup if startup is not None else startup_of(program)
    checked_precision(precision)
    checked_batches(accumulate)
    if has_updates(program):
        if optimizer is not None and not optimizer_made(optimizer, program):
            raise SchemaError("the program has its updates already, from another optimizer; leave optimizer= out, or train a program without them")
        if precision != "fp32":
            raise SchemaError(f"precision={precision!r}: the program has its updates already; leave out minimize, which training does to a copy")
        return _gathering(program, scalar_loss(cost, startup).name, startup, accumulate)
    if optimizer is None:
        optimizer = _LAST.get(program)
    if optimizer is None:
        optimizer = SGD(0.01)
        _DEFAULTS.add(optimizer)
    _LAST[program] = optimizer
    owner = _owner(optimizer)
    entries = _MADE.setdefault(owner, WeakKeyDictionary()).setdefault(program, [])
    settings = {n: v for n, v in vars(optimizer).items() if not n.startswith("_")}
    updates = None if batches_per_epoch is None else batches_per_epoch / accumulate
    for_run = optimizer.for_run(epochs=epochs, steps_per_epoch=updates)
    options = (accumulate, precision, *((epochs, updates) if for_run is not optimizer else ()))
    entry, names = None, frozenset[str]()
    for exact in (False, True):
        names = taken(owner, program, startup, handed_out=scope is not None, exact=exact)
        names = names if scope is None else names.intersection(scope.names())
        entry = next((k for k in entries if k.is_of(cost, startup, settings, options) and k.names.isdisjoint(names)), None)
        if entry is not None:
            entries.remove(entry)
            break
    if entry is None:
        entry = _new_entry(cost, for_run, owner.reserve(names, startup), startup, accumulate, precision)
        entry.settings, entry.options = settings, options
    entries[:] = [*entries[1 - _REMEMBERED :], entry]
    claim(owner, entry.parts[0], startup, entry.names, handed_out=scope is None)
    return entry.given(optimizer)


def is_default(optimizer: Optimizer) -> bool:
    """Tell whether an optimizer was taken since none was given."""
    return optimizer in _DEFAULTS


def _new_entry(cost: Variable, optimizer: Optimizer, reserved: frozenset[str], startup: Program, accumulate: int, precision: str) -> _Known:
    source = cost.block.program
    described = frozenset(v.name for v in persistables(source))
    program, first = source.clone(), startup.clone()
    copied = program.blocks[cost.block.idx].vars[cost.name]
    loss = scalar_loss(copied, first).name
    program = lower_precision(program, precision)
    program.reserved |= reserved
    optimizer.minimize(program.var(loss), first)
    scaled = precision == "fp16"
    ungathered = Ungathered(program, first, accumulate, scaled) if scaled or accumulate > 1 else None
    if scaled:
        program, first = scale_loss(program, loss, first)
    program, first = gather_gradients(program, accumulate, first)
    names = frozenset(v.name for v in persistables(program)) - described
    parts = (program, first, program.var(loss), rate_of(program), described, ungathered)
    return _Known(source.version, (ref(startup), startup.version), cost.name, {}, (), parts, names)


def _gathering(source: Program, loss: str, startup: Program, accumulate: int) -> TrainingProgram:
    """Return a program with updates, as it is or with its gradients gathered over several batches."""
    described = frozenset(v.name for v in persistables(source))
    owner = _OWNERS.setdefault(source, Owner())
    if accumulate == 1:
        return TrainingProgram(source, startup, source.var(loss), rate_of(source), described, owner)
    program = source.clone()
    program.reserved |= owner.reserve(taken(owner, source, startup), startup)
    program, first = gather_gradients(program, accumulate, startup)
    claim(owner, source, startup, {v.name for v in persistables(program)} - described, handed_out=True)
    return TrainingProgram(program, first, program.var(loss), rate_of(program), described, owner, None, Ungathered(source, startup, accumulate))


def _owner(optimizer: Optimizer) -> Owner:
    return optimizer._owner  # pyright: ignore[reportPrivateUsage]


def _equal_settings(previous: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Tell whether an optimizer's settings are unchanged: identical objects, equal numbers and words."""
    return previous.keys() == settings.keys() and all(
        previous[n] is settings[n] or (isinstance(settings[n], (int, float, str)) and type(previous[n]) is type(settings[n]) and previous[n] == settings[n])
        for n in settings
    )
