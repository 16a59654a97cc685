"""`Program`: blocks, guards, names; what is described, printed, inferred, saved and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.errors import DescriptionError, SchemaError
from foreshape.infer.guards import Guard, Guards
from foreshape.program.arrays import forget_elements
from foreshape.program.block import Block
from foreshape.program.collector import collector_waits
from foreshape.program.current import begin_with
from foreshape.program.names import BlockNames
from foreshape.program.op import Op
from foreshape.program.scopes import current_scope, scoped_name
from foreshape.program.unknown import is_unknown
from foreshape.program.variable import Variable
from foreshape.program.walk import Walk, infer_in_doubt, mark_unknown

if TYPE_CHECKING:
    from foreshape.pictures import Picture
    from foreshape.program.feeds import Feeds
    from foreshape.program.summary import Summary
    from foreshape.spec import Spec

_codec: dict[str, Callable[..., Any]] = {}
"""How a program becomes bytes and back; the wire room sets it."""


class Program:
    """A described network. Empty when made; `program_guard` makes it the one that layers append to."""

    __slots__ = ("__weakref__", "_feeds", "_guards", "_stale", "blocks", "counters", "doubtful", "entry_specs", "format_version", "names", "op_versions",
                 "parameter_settings", "random_seed", "reserved", "role", "startup", "uncertain", "unknown_fields", "updated_by", "version",
                 "walk")  # fmt: skip

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        """How often names were made of what, in `unique_name`, and in scopes as `foreshape.program.scopes` counts them."""
        self.reserved: frozenset[str] = frozenset()
        """Names that are not given, since they are of state that another optimizer has over the same values."""
        self.updated_by: object = None
        """Tells the optimizer whose updates it has from others; None where it has none, or came with them."""
        self._guards = Guards()
        self._feeds: Feeds | None = None
        self._stale = False
        self.names: tuple[int, dict[int, BlockNames]] = (-1, {})
        """What blocks read and write, and the version for which that was gathered (`names_of`)."""
        self.walk: Walk | None = None
        """While the blocks of an op are inferred: what is shared by the blocks within them."""
        self.uncertain = False
        """Whether something may not be known, for an operator that is not known or an error: what depends on that is marked so."""
        self.doubtful: set[Variable] | None = None
        """While the blocks of an op are inferred in such a program: what they write outside of them that is not known."""
        self.version = 0
        """Counts changes; a compiled step belongs to one version."""
        self.role = 0
        """The ``op_role`` of ops that are appended without one."""
        self.startup: Program | None = None
        """The program that makes its parameters: the one with which it was described last, where it was."""
        self.random_seed = 0
        """Seeds the random operators whose own seed is 0; 0 leaves them to the executor's state."""
        self.entry_specs: dict[Variable, Spec] = {}
        """Fed variable -> what it is when it is fed, where an op writes it again and it is something else then."""
        self.format_version = 0
        self.op_versions: Any = None
        self.parameter_settings: dict[str, Any] = {}
        """Parameter -> what its layer said of its learning rate and decay, for optimizers."""
        self.unknown_fields = b""
        self.blocks: list[Block] = [Block(self, 0, -1)]

    # --- structure

    @property
    def global_block(self) -> Block:
        """The outermost block, the one that a run begins with."""
        return self.blocks[0]

    @property
    def guards(self) -> Guards:
        """The conditions that depend on the fed values; each prints as a line."""
        self.refresh()
        return self._guards

    @property
    def feeds(self) -> Feeds:
        """Which sizes the inputs take: in words, the smallest, and the nearest to given ones."""
        from foreshape.program.feeds import Feeds

        self.refresh_quietly()
        if self._feeds is None or self._feeds.version != self.version:
            self._feeds = Feeds(self)
        return self._feeds

    def touch(self) -> None:
        """Say that the program has changed."""
        self.version += 1

    def create_block(self, parent: Block | None = None) -> Block:
        """Append a block, whose parent is the global one unless said otherwise."""
        made = Block(self, len(self.blocks), parent.idx if parent is not None else 0)
        self.blocks.append(made)
        self.touch()
        return made

    def unique_name(self, key: str) -> str:
        """``key_0``, ``key_1``, ...: a name made of ``key`` that this program has not given yet."""
        counters = self.counters
        count = counters.get(key, 0)
        counters[key] = count + 1
        name = f"{key}_{count}"
        for block in self.blocks:
            if name in block.vars:
                return self.unique_name(key)
        return self.unique_name(key) if name in self.reserved else name

    def layer_name(self, key: str, given: str | None = None) -> str:
        """What the names of a layer's variables begin with: the name that it was ``given``, or a new one after ``key``; in a `name_scope` within that."""
        if current_scope():
            return scoped_name(self, given or key)
        return given or self.unique_name(key)

    def var(self, name: str) -> Variable:
        """The variable of this name in the global block, else in any block. Raises `SchemaError` where there is none."""
        for block in self.blocks:
            records = block.records
            if records is not None and name in records.forms:
                return records.variable(name)
            if records is None and name in block.vars:
                return block.vars[name]
        raise SchemaError(f"the program has no variable {name!r}")

    def all_ops(self) -> Iterator[Op]:
        """The ops of all blocks, block by block."""
        return (op for block in self.blocks for op in block.ops)

    def all_variables(self) -> Iterator[Variable]:
        """The variables of all blocks, block by block."""
        return (variable for block in self.blocks for variable in block.vars.values())

    def parameters(self) -> list[Variable]:
        """The trainable and other parameters, in the order in which they were made."""
        return [v for v in self.global_block.vars.values() if v.is_parameter]

    # --- inference

    def mark_loaded(self) -> None:
        """Say that specs are what a file says, and are to be inferred before they are built on."""
        self._stale = True

    def refresh(self) -> None:
        """Infer what a file only declared, if that has not been done."""
        if self._stale:
            self.infer()

    def forget(self) -> None:
        """Drop every spec that an op's rule gives; `infer` brings them back."""
        for op in self.all_ops():
            if op.operator is None or op.operator.described_results:
                continue
            for name in op.output_names():
                variable = op.block.find(name)
                if variable is not None and not variable.persistable and variable.op is op:
                    variable.forget()
        self._guards = Guards()
        self._stale = True
        self.touch()

    def infer(self) -> list[Op]:
        """Infer the specs of all results again, op by op.

        Returns:
            The ops whose operator is not known here, those of inner blocks too; what depends on them is marked unknown.

        Raises:
            DescriptionError: the first op that its operator refuses, with the user's lines.
        """
        unknown, errors = self.diagnose(stop_at=1)
        if errors:
            raise errors[0]
        return unknown

    def diagnose(self, stop_at: int = 100) -> tuple[list[Op], list[DescriptionError]]:
        """Infer as `infer` does, and collect the errors, ``stop_at`` at most, instead of raising: (ops not known, errors)."""
        self._stale = False
        self.names = (-1, {})
        unknown, errors = self._infer_all(stop_at)
        self.names = (-1, {})  # variables that were nowhere described are now
        self._stale = bool(errors)  # whoever builds on it or runs it is told again
        return unknown, errors

    @collector_waits
    def _infer_all(self, stop_at: int) -> tuple[list[Op], list[DescriptionError]]:
        self._guards = Guards()
        for variable, spec in self.entry_specs.items():
            variable._spec = spec  # pyright: ignore[reportPrivateUsage]
        self.entry_specs.clear()
        records = self.blocks[0].records
        if records is not None and len(self.blocks) == 1:
            self.uncertain = False
            if records.infer(self._guards):
                return [], []
            self._guards = Guards()
        forget_elements(self)
        unknown = [op for op in self.all_ops() if is_unknown(op)]
        errors: list[DescriptionError] = []
        self.uncertain = bool(unknown)
        inner = {i for op in self.all_ops() if op.operator is not None for i in op.sub_block_indices()}
        for block in self.blocks:
            for op in block.ops if block.idx not in inner else ():  # the others are inferred with the op that runs them
                if self.uncertain and is_unknown(op):
                    mark_unknown(op)
                    continue
                if self.uncertain and any(not v.known for v in op.input_variables()):
                    mark_unknown(op)
                    continue
                try:
                    infer_in_doubt(op)
                except DescriptionError as error:
                    errors.append(error)
                    self.uncertain = True
                    if len(errors) >= stop_at:
                        return unknown, errors
                    mark_unknown(op)
        return unknown, errors

    def explain(self, variable: Variable | str) -> str:
        """Where each dim of a variable comes from, op by op, as text."""
        from foreshape.program.explain import explain

        self.refresh()
        return explain(self.var(variable) if isinstance(variable, str) else variable)

    def outputs_of(self, words: str) -> list[Variable]:
        """What a layer gives that words select: one variable, several of an op that gives a list.

        Args:
            words: "last pool", "first conv", "second last batch_norm", "linear_1", or a variable's name. The word is one of its op's type
                or of its name, or several in a row ("depthwise_conv"), without what is 2d or v2; ops whose results carry one name, as a
                product and its bias, are one layer. "before last linear" is what goes into it. ``foreshape show FILE --tail`` prints the
                last layers with such words.

        Raises:
            SchemaError: no layer answers to them, or several; the message lists what there is.
        """
        from foreshape.program.tail import outputs_of

        self.refresh_quietly()
        return outputs_of(self, words)

    def summary(self, batch: int | None = None, *, depth: int | None = None, rows: int = 32, **sizes: int) -> Summary:
        """The layers as a table of one screen: what each gives, its parameters, the bytes that it makes and its multiply-adds, with shares.

        Layers are grouped by name scopes, by the dotted names of parameters, and where nothing is named by what a residual connection goes
        around. What repeats is one line with a number of times, whose figures are of all of them.

        Args:
            batch: the number of rows of the inputs; 1 where it is left out.
            depth: how many levels of groups are opened; as many as fit in ``rows`` lines where it is left out.
            rows: how many layers are one screen.
            sizes: values of other open sizes; those that are left out are the smallest that the network takes. Sizes that are given, the batch
                too, stand in the dims in place of their symbols.

        Raises:
            SchemaError: a size that no input has, or that is none.
        """
        from foreshape.program.summary import Summary

        return Summary(self, batch, depth, rows, sizes)

    def graph(self, depth: int | None = None, boxes: int = 80, part: str | None = None) -> Picture:
        """The network drawn: layers as boxes, groups around them, arrows along the values, what repeats once with a number of times.

        Args:
            depth: how many levels of groups are opened; as many as fit in so many ``boxes`` where it is left out.
            part: of a program that trains "forward", "backward" or "updates"; all, the latter two as a box each, where it is left out.
        """
        from foreshape.program.graph import draw

        return draw(self, depth, boxes, part)

    def with_feed_shapes(self, shapes: Mapping[str, Sequence[Any]]) -> Program:
        """A copy in which the named inputs have these shapes, inferred afresh.

        Args:
            shapes: input -> sizes (ints, names of symbols, or -1); of ragged inputs the packed ones.

        Raises:
            SchemaError: a name that is no input. ShapeError: a shape that the network does not take.
        """
        from foreshape.program.copying import with_feed_shapes

        return with_feed_shapes(self, shapes)

    # --- copies, text and bytes

    def clone(self) -> Program:
        """An equal program of its own."""
        from foreshape.program.copying import fill

        out = Program()
        fill(out, self)
        return out

    __copy__ = clone

    def __deepcopy__(self, memo: object) -> Program:
        return self.clone()

    def to_bytes(self) -> bytes:
        """The program in the file format; equal programs give equal bytes."""
        return _codec["encode"](self)

    def save(self, path: Any) -> None:
        """Write the program to the file ``path``: to a temporary name, flushed, then renamed."""
        _codec["save"](self, path)

    @staticmethod
    def from_bytes(data: bytes) -> Program:
        """The program in the bytes ``data``. Raises `FormatError` where they are none."""
        return _codec["decode"](data)

    @staticmethod
    def parse(text: str) -> Program:
        """The program that a text writes; the inverse of ``str(program)``. Raises `FormatError` with the line."""
        from foreshape.program.reader import read

        out = Program()
        read(out, text)
        return out

    def __str__(self) -> str:
        from foreshape.program.text import program_text

        self.refresh_quietly()
        return program_text(self)

    def __repr__(self) -> str:
        from foreshape.program.notebook import program_repr

        return program_repr(self)

    def _repr_html_(self) -> str:
        from foreshape.program.notebook import program_html

        return program_html(self)

    def html_of(self, variable: Variable) -> str:
        """What a notebook shows of a ``variable`` of it."""
        from foreshape.program.notebook import variable_html

        return variable_html(variable)

    def refresh_quietly(self) -> None:
        """As `refresh`, for showing: a program with errors is shown as far as it is known."""
        if self._stale:
            self.diagnose()

    def guard_list(self) -> list[Guard]:
        """The open guards, for showing: of a program with errors those of what is known."""
        self.refresh_quietly()
        return self._guards.list()


def register_codec(**functions: Callable[..., Any]) -> None:
    """Let the wire room say how programs become bytes and back."""
    _codec.update(functions)


begin_with(Program)
