"""`FusedKernel`: one kernel call for several ops of a step as a record, its effects on memory, and its kind and size for the cost.

Each file beside this one makes its kernels from the specs of their operands. Rewrites in `foreshape.compiler.lowering.fusion` find their places. The engine
writes their calls, `foreshape.compiler.memory` asks their effects, `foreshape.compiler.cost` their kind and size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from foreshape.core.data_class import data_class, field
from foreshape.core.dims import Size
from foreshape.machine.kernels.call_record import Part

if TYPE_CHECKING:
    from foreshape.machine.kernels.instructions import Instruction

Order: TypeAlias = tuple[int, ...]
"""The axes of a tensor, outermost first, as they lie in memory."""
Sizes: TypeAlias = Sequence["tuple[float, ...] | None"]
"""The dims of operands or of results as numbers; None for an absent one, or unknown dims."""


class Work(NamedTuple):
    """The work of a kernel call.

    Attributes:
        at: coordinates of its time, which grows with each.
        multiplications: multiply-adds.
        kind: words behind the name of the kernel, for a form with a time of its own.
    """

    at: tuple[float, ...]
    multiplications: float
    kind: str = ""


@data_class(frozen=True)
class Effects:
    """The effects of a kernel call on memory, by the numbers of its operands and results: of a fused kernel, or of an operator as it declares them.

    Attributes:
        views: result -> the operand in whose memory it lies.
        in_place: result -> the operand that is changed in place and returned.
        takes_over: (result, operand) if the kernel can write the result into the memory of the operand, once nothing else needs it.
        contiguous: operands copied unless they are contiguous.
        axis_order: operands copied unless their axes, or the innermost of them, lie in this order; empty for any known order.
        gap_bytes: the bytes of the copies of such operands with gaps between their rows; without an entry they are copied whole.
        result_order: result -> the order of its axes in memory, if not their own; None for an unknown one.
        layouts: result -> its layout, of an operator; a result without one is contiguous.
        turned: of a transposed view, the axis of its operand for each of its axes.
        cut: of a view that is a part of its operand, the cut axes, with gaps between its rows. A part along the outermost axis has no gaps.
        dropped: the axes of its operand that such a view has not.
        may_sum: a view of another number of elements than its operand's is none, but a sum: a gradient.
        outlives: its result outlives the step, since it is the same in each.
        rows_of: the operand with the distinct values of the resulting sparse rows, of which each has one.
        rows_hold: the operands among ids and these values that the rows hold themselves; of the others they have copies.
        merges_rows: sparse operands are merged first, into a workspace.
        elements: result that is an array and keeps its elements -> the operand added to them; None if one is taken out.
    """

    views: Mapping[int, int] = field(default_factory=dict[int, int])
    in_place: Mapping[int, int] = field(default_factory=dict[int, int])
    takes_over: tuple[int, int] | None = None
    contiguous: tuple[int, ...] = ()
    axis_order: Mapping[int, Order] = field(default_factory=dict[int, Order])
    gap_bytes: Mapping[int, Size] = field(default_factory=dict[int, Size])
    result_order: Mapping[int, Order | None] = field(default_factory=dict[int, "Order | None"])
    layouts: Mapping[int, str] = field(default_factory=dict[int, str])
    turned: Order | None = None
    cut: tuple[int, ...] | None = None
    dropped: tuple[int, ...] = ()
    may_sum: bool = False
    outlives: bool = False
    rows_of: int | None = None
    rows_hold: tuple[int, ...] = ()
    merges_rows: bool = True
    elements: Mapping[int, int | None] = field(default_factory=dict[int, "int | None"])


NO_EFFECTS = Effects()


@data_class(frozen=True)
class FusedKernel:
    """One kernel call for one or more ops.

    Attributes:
        kind: its name in tables of times; ``{op}`` stands for the type of the op that it replaces.
        call: its record.
        in_place: the record of the call for the result in the operand of ``effects.takes_over``.
        effects: on memory.
        workspace: a rule for the bytes of its workspace.
        innermost: of a convolution, this rule where the channels of its images or filters, the first operands, lie innermost, and so those of its results.
        work: from the sizes of operands and results to its work; None if its time follows from its bytes.
        packed: the name of its constant function, made of persistables when the step is bound.
        alone: this function is no stage of a series.
        small: from the sizes of operands and results to its instructions in a small step; None of these where they are none of theirs.
    """

    kind: str
    call: Part
    in_place: Part = None
    effects: Effects = NO_EFFECTS
    workspace: Callable[[], Size] | None = None
    innermost: Callable[[], Size] | None = None
    work: Callable[[Sizes, Sizes], Work | None] | None = None
    packed: str = ""
    alone: bool = False
    small: Callable[[Sizes, Sizes], Sequence[Instruction] | None] | None = None


NO_KERNEL = FusedKernel("", None)


def work_of_product(operands: Sizes, results: Sizes) -> Work | None:
    """Return the work of a product: rows, the width of the sum or the first one, and the last width."""
    first, result = operands[0], results[0]
    if not first or not result:
        return None
    coordinates = (prod(first[:-1]), first[-1], result[-1])
    return Work(coordinates, prod(coordinates))
