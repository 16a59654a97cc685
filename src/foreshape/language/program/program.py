"""`Program`: blocks, guards, names; described, printed, inferred, saved and run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.core.hints import did_you_mean
from foreshape.core.pictures import Picture
from foreshape.core.pictures.tables import TableOfLayers
from foreshape.errors import DescriptionError, SchemaError
from foreshape.language.program.block import Block
from foreshape.language.program.elsewhere import elsewhere
from foreshape.language.program.guards import Guard, Guards
from foreshape.language.program.inference_state import InferenceState
from foreshape.language.program.names import BlockNames
from foreshape.language.program.op import Op
from foreshape.language.program.scopes import current_scope, scoped_name
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.language.conditions.feeds import Feeds


class Program:
    """A described network. Empty when made; `program_guard` makes it the current one."""

    __slots__ = ("__weakref__", "_feeds", "blocks", "counters", "format_version", "inference", "names", "op_versions", "parameter_settings",
                 "random_seed", "reserved", "role", "startup", "unknown_fields", "updated_by", "version")  # fmt: skip

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        """The counts of made names, by key, for `unique_name`, and in scopes as counted by `foreshape.language.program.scopes`."""
        self.reserved: frozenset[str] = frozenset()
        """Names not to be given: names of another optimizer's state over the same values."""
        self.updated_by: object = None
        """Tells the optimizer whose updates it has from others; None if it has none, or came with them."""
        self.inference: InferenceState = elsewhere("language.infer.inference:Inference")(self)
        """The inference of its ops, with its open conditions."""
        self._feeds: Feeds | None = None
        self.names: tuple[int, dict[int, BlockNames]] = (-1, {})
        """The reads and writes of blocks, and the version they were gathered for (`names_of`)."""
        self.version = 0
        """Counts changes; a compiled step belongs to one version."""
        self.role = 0
        """The ``op_role`` of ops appended without one."""
        self.startup: Program | None = None
        """The program of its parameters' first values: the startup program of its last description, if any."""
        self.random_seed = 0
        """Seeds the random operators whose own seed is 0; 0 leaves them to the executor's state."""
        self.format_version = 0
        self.op_versions: Any = None
        self.parameter_settings: dict[str, Any] = {}
        """Parameter -> its layer's settings of learning rate and decay, for optimizers."""
        self.unknown_fields = b""
        self.blocks: list[Block] = [Block(self, 0, -1)]

    # --- structure

    @property
    def global_block(self) -> Block:
        """Return the outermost block, in which a run begins."""
        return self.blocks[0]

    @property
    def guards(self) -> Guards:
        """Return the conditions on the fed values; each prints as a line."""
        self.refresh()
        return self.inference.guards

    @property
    def feeds(self) -> Feeds:
        """Return the accepted sizes of the inputs: in words, the smallest, and the nearest to given ones."""
        self.refresh_quietly()
        feeds = self._feeds
        if feeds is None or feeds.version != self.version:
            feeds = self._feeds = elsewhere("language.views.feeds:feeds_of")(self)
        assert feeds is not None
        return feeds

    def touch(self) -> None:
        """Mark the program as changed."""
        self.version += 1

    def create_block(self, parent: Block | None = None) -> Block:
        """Append a block, whose parent is the global one unless said otherwise."""
        block = Block(self, len(self.blocks), parent.idx if parent is not None else 0)
        self.blocks.append(block)
        self.touch()
        return block

    def unique_name(self, key: str) -> str:
        """Return ``key_0``, ``key_1``, ...: a new name made of ``key``."""
        counters = self.counters
        count = counters.get(key, 0)
        counters[key] = count + 1
        name = f"{key}_{count}"
        for block in self.blocks:
            if name in block.vars:
                return self.unique_name(key)
        return self.unique_name(key) if name in self.reserved else name

    def layer_name(self, key: str, given: str | None = None) -> str:
        """Return the prefix of a layer's names: the ``given`` name, or a new one after ``key``; within the current `name_scope`."""
        if current_scope():
            return scoped_name(self, given or key)
        return given or self.unique_name(key)

    def var(self, name: str) -> Variable:
        """Return the variable of this name in the global block, else in any block. Raises `SchemaError` if there is none."""
        for block in self.blocks:
            records = block.records
            if records is not None and name in records.forms:
                return records.variable(name)
            if records is None and name in block.vars:
                return block.vars[name]
        raise SchemaError(f"the program has no variable {name!r}{did_you_mean(name, (n for block in self.blocks for n in block.vars))}")

    def all_ops(self) -> Iterator[Op]:
        """Yield the ops of all blocks, block by block."""
        return (op for block in self.blocks for op in block.ops)

    def all_variables(self) -> Iterator[Variable]:
        """Yield the variables of all blocks, block by block."""
        return (variable for block in self.blocks for variable in block.vars.values())

    def parameters(self) -> list[Variable]:
        """Return the parameters, trainable and others, in the order of their making."""
        return [v for v in self.global_block.vars.values() if v.is_parameter]

    # --- inference

    def mark_loaded(self) -> None:
        """Mark specs as declared by a file, to be inferred before use."""
        self.inference.stale = True

    def refresh(self) -> None:
        """Infer specs only declared by a file, unless done before."""
        if self.inference.stale:
            self.infer()

    def forget(self) -> None:
        """Drop every spec from an op's rule; `infer` brings them back."""
        self.inference.forget()

    def infer(self) -> list[Op]:
        """Infer the specs of all results again, op by op.

        Returns:
            The ops with unknown operators, also in inner blocks; variables behind them are marked unknown.

        Raises:
            DescriptionError: the first op refused by its operator, with the user's lines.
        """
        unknown, errors = self.diagnose(stop_at=1)
        if errors:
            raise errors[0]
        return unknown

    def diagnose(self, stop_at: int = 100) -> tuple[list[Op], list[DescriptionError]]:
        """Infer as `infer` does, and collect the errors, ``stop_at`` at most, instead of raising: (ops not known, errors)."""
        return self.inference.diagnose(stop_at)

    def explain(self, variable: Variable | str) -> str:
        """Explain the origin of each dim of a variable, op by op, as text."""
        self.refresh()
        return elsewhere("language.views.explain:explain")(self.var(variable) if isinstance(variable, str) else variable)

    def outputs_of(self, words: str) -> list[Variable]:
        """Return the results of a layer selected by words: one variable, or several of an op with a list.

        Args:
            words: "last pool", "first conv", "second last batch_norm", "linear_1", or a variable's name. The word is one part of its op's type or name,
                or several in a row ("depthwise_conv"), without suffixes such as 2d. Ops whose results share one name, as a product and its bias, are
                one layer. "before last linear" is its input. ``foreshape show FILE --tail`` prints the last layers with such words.

        Raises:
            SchemaError: words for no layer, or for several; the message lists the layers.
        """
        self.refresh_quietly()
        return elsewhere("language.views.layer_lookup:outputs_of")(self, words)

    def summary(self, batch: int | None = None, *, depth: int | None = None, rows: int = 32, **sizes: int) -> TableOfLayers:
        """Return the layers as a table of one screen: results, parameters, bytes and multiply-adds, with shares.

        Layers are grouped by name scopes, by the dotted names of parameters, and without names by residual connections.
        Repeated layers are one line with their number, and its figures are of all of them.

        Args:
            batch: the number of rows of the inputs; by default 1.
            depth: the levels of groups to open; by default as many as fit in ``rows`` lines.
            rows: the number of lines of one screen.
            sizes: values of other open sizes; by default the smallest accepted by the network. Given sizes, including the batch,
                replace their symbols in the dims.

        Raises:
            SchemaError: a size of no input, or an invalid one.
        """
        return elsewhere("language.views.summary:Summary")(self, batch, depth, rows, sizes)

    def graph(self, depth: int | None = None, boxes: int = 80, part: str | None = None) -> Picture:
        """Return the drawing of the network: layers as boxes, groups around them, arrows along the values, repeated parts once with their number.

        Args:
            depth: the levels of groups to open; by default as many as fit in so many ``boxes``.
            part: of a training program "forward", "backward" or "updates"; by default all, the latter two as a box each.
        """
        return elsewhere("language.views.graph:draw")(self, depth, boxes, part)

    def with_feed_shapes(self, shapes: Mapping[str, Sequence[Any]]) -> Program:
        """Return a copy with these shapes of the named inputs, inferred afresh.

        Args:
            shapes: input -> sizes (ints, names of symbols, or -1); of ragged inputs the packed ones.

        Raises:
            SchemaError: a name of no input. ShapeError: a shape not accepted by the network.
        """
        return elsewhere("language.program.copying:with_feed_shapes")(self, shapes)

    # --- copies, text and bytes

    def clone(self) -> Program:
        """Return an equal program of its own."""
        out = Program()
        elsewhere("language.program.copying:fill")(out, self)
        return out

    __copy__ = clone

    def __deepcopy__(self, memo: object) -> Program:
        return self.clone()

    def to_bytes(self) -> bytes:
        """Return the program in the file format; equal programs give equal bytes."""
        return elsewhere("language.wire.encode:encode")(self)

    def save(self, path: Any) -> None:
        """Write the program to the file ``path``: to a temporary name, flushed, then renamed."""
        elsewhere("language.wire:save_program")(self, path)

    @staticmethod
    def from_bytes(data: bytes) -> Program:
        """Return the program in the bytes ``data``. Raises `FormatError` if they are none."""
        return elsewhere("language.wire:load_program")(data)

    @staticmethod
    def parse(text: str) -> Program:
        """Return the program of a text; the inverse of ``str(program)``. Raises `FormatError` with the line."""
        out = Program()
        elsewhere("language.text.reader:read")(out, text)
        return out

    def __str__(self) -> str:
        self.refresh_quietly()
        return elsewhere("language.text.writer:program_text")(self)

    def __repr__(self) -> str:
        return elsewhere("language.views.notebook:program_repr")(self)

    def _repr_html_(self) -> str:
        return elsewhere("language.views.notebook:program_html")(self)

    def html_of(self, variable: Variable) -> str:
        """Return the HTML of its ``variable`` for a notebook."""
        return elsewhere("language.views.notebook:variable_html")(variable)

    def refresh_quietly(self) -> None:
        """Infer as `refresh`, for display: a program with errors is shown as far as known."""
        if self.inference.stale:
            self.diagnose()

    def guard_list(self) -> list[Guard]:
        """Return the open guards, for display; of a program with errors only the known ones."""
        self.refresh_quietly()
        return self.inference.guards.list()
