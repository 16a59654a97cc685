"""`plan`: the memory of a program before it runs, as numbers for given sizes, and as a formula in its symbols.

Every run asks for a plan's peak, and few for its pictures, so these are imported late.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from foreshape.compiler.lowering import fuse, lower
from foreshape.compiler.memory.figures import Figures
from foreshape.compiler.memory.formula import peak_lines
from foreshape.compiler.memory.liveness import liveness
from foreshape.compiler.memory.records import Liveness, unknown_words
from foreshape.core.dims import Size, is_symbol
from foreshape.core.gc_pause import collector_waits
from foreshape.core.hints import did_you_mean
from foreshape.core.pictures.markup import cut
from foreshape.core.spec import TENSOR_KINDS
from foreshape.errors import MemoryPlanError, SchemaError, border
from foreshape.language.program import Block, Program, Variable
from foreshape.language.program.needed import needed_ops
from foreshape.language.program.unknown import unknown_types, with_inner
from foreshape.language.program.unknown import unknown_words as not_known
from foreshape.machine.targets import compiling_for, target_of

_WIDTH = 160
"""Characters of a line at a prompt."""


class Plan(Figures):
    """The memory of a program. Made by `plan`.

    Every method takes the values of the program's symbols by name, ``plan.peak(batch=64)``, and raises `MemoryPlanError` with the missing names. In files of
    other programs each input may have a symbol of its own, none called ``batch``. Then ``batch`` is the number of rows (of ragged inputs: of sequences) of
    all inputs without a value of their own.

    Args:
        program: left unchanged.
        fetch: variables or names.
        live: the lifetimes of values, if known already.
        frozen: the parameters do not change, as in inference.
        device: the name of the device that the step is made for, as "cuda"; without it the processor's plan is made.
        in_files: the names of parameters still in files: packed ones are in memory once.

    Attributes:
        target: the kind of device that the plan is for.
    """

    def __init__(
        self,
        program: Program,
        fetch: Iterable[Variable | str] = (),
        live: Liveness | None = None,
        frozen: bool = False,
        device: str | None = None,
        in_files: Collection[str] = (),
    ) -> None:
        self.program, self.target = program, target_of(device)
        self.fetch = tuple(_names(program, fetch))
        if live is None:
            with compiling_for(self.target):
                live = _live(program, self.fetch, frozen, in_files)
        super().__init__(live)

    # --- to look at

    def draw(self, path: str | os.PathLike[str], /, **symbols: int) -> None:
        """Draw the arena, offset against op, into an image file (PNG, SVG or PDF, by its ending). Needs matplotlib.

        Args:
            path: of the image file.
            symbols: sizes by name, as ``batch=64``.
        """
        from foreshape.compiler.memory.draw import draw

        draw(self, path, symbols)

    def write_page(self, path: str | os.PathLike[str], /, **symbols: int) -> None:
        """Write one self-contained HTML file with a tooltip for every box of the arena.

        Args:
            path: of the file.
            symbols: sizes by name, as ``batch=64``.
        """
        from foreshape.compiler.memory.page import write_page

        write_page(self, path, symbols)

    def __repr__(self) -> str:
        lines = peak_lines(self.peak_formula())
        left_out = unknown_words(self.unknown())
        if not self.target.is_processor:
            lines[0] = f"for {self.target.kind}: {lines[0]}"
        if len(lines) == 1:
            return f"Plan({cut(lines[0] + left_out, _WIDTH - 6)})"
        return "\n".join(cut(line, _WIDTH) for line in ["Plan(" + lines[0], *lines[1:-1], lines[-1] + left_out + ")"])

    def _repr_html_(self) -> str:

        from foreshape.compiler.memory.plan_card import plan_html

        return plan_html(self)


def plan(
    program: Program,
    fetch: Iterable[Variable | str] | Variable | str = (),
    lengths: Mapping[str, Sequence[int]] | None = None,
    device: str | None = None,
) -> Plan:
    """Return the memory plan of a program for these fetches (a saved network's own by default).

    Without fetches or updates, the results of its last ops are planned.

    Args:
        lengths: ragged input -> the lengths of its sequences. The memory of recurrent kernels is then exact for these lengths; otherwise it is a bound
            over all lengths. The plan's sizes must be those of these sequences.
        device: "cuda", "cuda:1" or "cuda:H100" for a step there: with the rewrites and kernels that run there, each value in blocks of its allocator; without
            cuBLAS's and cuDNN's workspaces and the allocator's segments, which `fs.forecast` has. No such device is needed. By default the processor.

    Raises:
        MemoryPlanError: unknown operators. DescriptionError: the program has mistakes. SchemaError: lengths of something other than a ragged input
            of one level.
    """
    from foreshape.machine.kernels.recurrent_memory import of_lengths

    fetches = (fetch,) if isinstance(fetch, (str, Variable)) else fetch
    with of_lengths({_rows_of(program, name): tuple(counts) for name, counts in (lengths or {}).items()}):
        return Plan(program, fetches, device=device)


def _rows_of(program: Program, name: str) -> Size:
    """Return the symbol for the rows of a ragged input."""
    variable = program.global_block.find(name)
    if variable is None or variable.spec.lod is None or len(variable.spec.lod.counts) != 1 or not is_symbol(variable.spec.known_dims[0]):
        raise SchemaError(f"lengths are of ragged inputs of one level with any number of rows; {name[:100]!r} is none")
    return variable.spec.known_dims[0]


@border("the memory cannot be planned", MemoryPlanError)
@collector_waits
def _live(program: Program, fetch: tuple[str, ...], frozen: bool, in_files: Collection[str]) -> Liveness:
    """Return the records of a step of a program, as the engine runs it."""
    program.refresh()
    unknown = unknown_types(with_inner(needed_ops(program.global_block, fetch)))
    if unknown:
        raise MemoryPlanError(f"the memory cannot be planned: {not_known(unknown)}")
    lowered = fuse(lower(program.global_block, fetch, frozen=frozen))
    live, lent = liveness(lowered), lowered.lent().intersection(in_files)
    live.held = [record for record in live.held if not record.names or not lent.issuperset(record.names)]
    return live


def _names(program: Program, fetch: Iterable[Variable | str]) -> list[str]:
    names: list[str] = []
    block = program.global_block
    for fetched in fetch:
        name = fetched.name if isinstance(fetched, Variable) else fetched
        if block.find(name) is None:
            raise SchemaError(f"there is no variable {name!r} in the program's global block{did_you_mean(name, block.vars)}")
        names.append(name)
    if not names:
        names = [n for op in block.ops if op.is_fetch for n in op.input_names()]
    if not names and not needed_ops(block, ()):
        names = list(dict.fromkeys(_last_results(block)))
    return names


def _last_results(block: Block) -> Iterator[str]:
    """Yield the results of ops without readers: their first results, as the others are by-products."""
    read: set[str] = set()
    for op in reversed(block.ops):
        if op.is_run and read.isdisjoint(op.all_writes()):
            slots = [r.name for r in op.operator.schema.results if r.name in op.outputs] if op.operator is not None else []
            for slot in slots[:1]:
                yield from (n for n in op.outputs[slot] if (variable := block.find(n)) is not None and variable.kind in TENSOR_KINDS)
        read |= op.all_reads()
