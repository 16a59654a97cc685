"""The proof that a cached row follows from the words up to its own alone, so that texts with one beginning can share its rows."""

from __future__ import annotations

from foreshape.language.infer.example_flow import ExampleFlow
from foreshape.language.infer.example_states import Mixed, PerExample, State
from foreshape.language.ops.sequence.cached_attention import CachedAttention, CachedPositions
from foreshape.language.program import Op, Variable
from foreshape.language.program.names import blocks_of
from foreshape.layer.cached_rows import AttentionCache


class _RowFlow(ExampleFlow):
    """The rows of a run on their way through a decoder: apart, but for attention to earlier rows by the cache."""

    def _of_op(self, op: Op) -> dict[str, State]:
        operator = op.operator
        if isinstance(operator, (CachedPositions, CachedAttention)):
            slots = ("X",) if isinstance(operator, CachedPositions) else ("Q", "K", "V")
            names = [name for slot in slots for name in op.inputs[slot]]
            mixed = self.mixture(names)
            return dict.fromkeys(op.output_names(), mixed or self.state(names[0]))
        if operator is not None and operator.kernel_offsets:  # it looks at the other rows of a sequence
            return dict.fromkeys(op.output_names(), Mixed(op, "computes over the rows of a sequence", True))
        return super()._of_op(op)


def prefix_obstacle(words: Variable, cache: AttentionCache) -> str | None:
    """Return the reason why the cached rows of a decoder may follow from more than the words up to their own; None if they cannot.

    By induction over the layers: a key or value follows from rows of its own place, and attention by the cache from earlier rows.

    Args:
        words: the input of the decoder.
        cache: the cache of its attention.
    """
    program = words.block.program
    caches = {v.name for v in cache.kept}
    flow = _RowFlow(program, [words.name])
    for op in program.global_block.ops:
        attends = isinstance(op.operator, CachedAttention)
        if blocks_of(op):
            return f"{op.type} runs a block of its own"
        if op.operator is None or op.operator.acts() or op.operator.draws():
            return f"{op.type} does more than to compute a value"
        state = next((n for n in op.output_names() if (v := op.block.find(n)) is not None and v.persistable and not (attends and n in caches)), None)
        if state is not None:
            return f"{op.type} changes {state}, a state of its own"
        if not attends:
            continue
        if [*op.inputs["Slots"], *op.inputs["Held"]] != [cache.slots.name, cache.held.name]:
            return f"{op.type} has places of its own"
        for name in (*op.inputs["Q"], *op.inputs["K"], *op.inputs["V"]):
            state_of_rows = flow.state(name)
            if not isinstance(state_of_rows, PerExample) or state_of_rows.axis:
                return f"{name}: {state_of_rows}" if isinstance(state_of_rows, Mixed) else f"the rows of {name} are not those of the words"
    return None
