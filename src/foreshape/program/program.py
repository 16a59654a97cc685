"""`Program`: blocks, guards, names; what is described, printed, inferred, saved and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.errors import DescriptionError, SchemaError
from foreshape.program.block import Block
from foreshape.program.current import begin_with
from foreshape.program.elsewhere import elsewhere
from foreshape.program.guards import Guard, Guards
from foreshape.program.names import BlockNames
from foreshape.program.op import Op
from foreshape.program.scopes import current_scope, scoped_name
from foreshape.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.conditions.feeds import Feeds
    from foreshape.pictures import Picture
    from foreshape.pictures.tables import TableOfLayers
    from foreshape.program.inference_state import InferenceState


class Program:
    """A described network. Empty when made; `program_guard` makes it the one that layers append to."""

    __slots__ = ("__weakref__", "_feeds", "blocks", "counters", "format_version", "inference", "names", "op_versions", "parameter_settings",
                 "random_seed", "reserved", "role", "startup", "unknown_fields", "updated_by", "version")  # fmt: skip

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        """How often names were made of what, in `unique_name`, and in scopes as `foreshape.program.scopes` counts them."""
        self.reserved: frozenset[str] = frozenset()
        """Names that are not given, since they are of state that another optimizer has over the same values."""
        self.updated_by: object = None
        """Tells the optimizer whose updates it has from others; None where it has none, or came with them."""
        self.inference: InferenceState = elsewhere("infer.inference:Inference")(self)
        """The inference of its ops, with what it found open."""
        self._feeds: Feeds | None = None
        self.names: tuple[int, dict[int, BlockNames]] = (-1, {})
        """What blocks read and write, and the version for which that was gathered (`names_of`)."""
        self.version = 0
        """Counts changes; a compiled step belongs to one version."""
        self.role = 0
        """The ``op_role`` of ops that are appended without one."""
        self.startup: Program | None = None
        """The program that makes its parameters: the one with which it was described last, where it was."""
        self.random_seed = 0
        """Seeds the random operators whose own seed is 0; 0 leaves them to the executor's state."""
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
        return self.inference.guards

    @property
    def feeds(self) -> Feeds:
        """Which sizes the inputs take: in words, the smallest, and the nearest to given ones."""
        self.refresh_quietly()
        found = self._feeds
        if found is None or found.version != self.version:
            found = self._feeds = elsewhere("views.feeds:feeds_of")(self)
        assert found is not None
        return found

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
        self.inference.stale = True

    def refresh(self) -> None:
        """Infer what a file only declared, if that has not been done."""
        if self.inference.stale:
            self.infer()

    def forget(self) -> None:
        """Drop every spec that an op's rule gives; `infer` brings them back."""
        self.inference.forget()

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
        return self.inference.diagnose(stop_at)

    def explain(self, variable: Variable | str) -> str:
        """Where each dim of a variable comes from, op by op, as text."""
        self.refresh()
        return elsewhere("views.explain:explain")(self.var(variable) if isinstance(variable, str) else variable)

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
        self.refresh_quietly()
        return elsewhere("views.layer_lookup:outputs_of")(self, words)

    def summary(self, batch: int | None = None, *, depth: int | None = None, rows: int = 32, **sizes: int) -> TableOfLayers:
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
        return elsewhere("views.summary:Summary")(self, batch, depth, rows, sizes)

    def graph(self, depth: int | None = None, boxes: int = 80, part: str | None = None) -> Picture:
        """The network drawn: layers as boxes, groups around them, arrows along the values, what repeats once with a number of times.

        Args:
            depth: how many levels of groups are opened; as many as fit in so many ``boxes`` where it is left out.
            part: of a program that trains "forward", "backward" or "updates"; all, the latter two as a box each, where it is left out.
        """
        return elsewhere("views.graph:draw")(self, depth, boxes, part)

    def with_feed_shapes(self, shapes: Mapping[str, Sequence[Any]]) -> Program:
        """A copy in which the named inputs have these shapes, inferred afresh.

        Args:
            shapes: input -> sizes (ints, names of symbols, or -1); of ragged inputs the packed ones.

        Raises:
            SchemaError: a name that is no input. ShapeError: a shape that the network does not take.
        """
        return elsewhere("program.copying:with_feed_shapes")(self, shapes)

    # --- copies, text and bytes

    def clone(self) -> Program:
        """An equal program of its own."""
        out = Program()
        elsewhere("program.copying:fill")(out, self)
        return out

    __copy__ = clone

    def __deepcopy__(self, memo: object) -> Program:
        return self.clone()

    def to_bytes(self) -> bytes:
        """The program in the file format; equal programs give equal bytes."""
        return elsewhere("wire.encode:encode")(self)

    def save(self, path: Any) -> None:
        """Write the program to the file ``path``: to a temporary name, flushed, then renamed."""
        elsewhere("wire:save_program")(self, path)

    @staticmethod
    def from_bytes(data: bytes) -> Program:
        """The program in the bytes ``data``. Raises `FormatError` where they are none."""
        return elsewhere("wire:load_program")(data)

    @staticmethod
    def parse(text: str) -> Program:
        """The program that a text writes; the inverse of ``str(program)``. Raises `FormatError` with the line."""
        out = Program()
        elsewhere("text.reader:read")(out, text)
        return out

    def __str__(self) -> str:
        self.refresh_quietly()
        return elsewhere("text.writer:program_text")(self)

    def __repr__(self) -> str:
        return elsewhere("views.notebook:program_repr")(self)

    def _repr_html_(self) -> str:
        return elsewhere("views.notebook:program_html")(self)

    def html_of(self, variable: Variable) -> str:
        """What a notebook shows of a ``variable`` of it."""
        return elsewhere("views.notebook:variable_html")(variable)

    def refresh_quietly(self) -> None:
        """As `refresh`, for showing: a program with errors is shown as far as it is known."""
        if self.inference.stale:
            self.diagnose()

    def guard_list(self) -> list[Guard]:
        """The open guards, for showing: of a program with errors those of what is known."""
        self.refresh_quietly()
        return self.inference.guards.list()


begin_with(Program)
