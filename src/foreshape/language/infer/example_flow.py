"""The examples of a batch on their way through a program: whether each one's results are the same beside other examples.

`example_states` has the answers for a value: shared by all batches, following from sizes alone, examples behind one another along an axis, mixed.
Each op's results follow from what its operator declares: `Operator.examples`, `Operator.sharding_rule` and its computation. A silent operator leaves the
question open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from foreshape.core.dims import Size, equal, floordiv, product, substitute, symbols_of
from foreshape.core.spec import LOD_TENSOR_ARRAY, Spec
from foreshape.language.infer.example_numbers import ExampleNumbers
from foreshape.language.infer.example_states import SHARED, Mixed, Numbered, OfSizes, PerExample, State
from foreshape.language.operator.computations import Constant, Expansion, Identity, Reshape, Selection
from foreshape.language.operator.traits import WHOLE, ShardingRule
from foreshape.language.program.block import Block
from foreshape.language.program.names import blocks_of
from foreshape.language.program.op import Op, is_empty_name
from foreshape.language.program.program import Program

_MOST_ROUNDS = 8
"""The rounds of a loop followed before its results are left open."""
_OPEN: Final = "does not tell whether examples are apart"


class ExampleFlow:
    """The states of a program's values, by name, for inputs with examples along their first axis.

    Attributes:
        states: of the values of all blocks.
        scattered: reshapes whose result has the axis of the examples by its size, and another order of their elements.
    """

    def __init__(self, program: Program, inputs: Iterable[str], growing: Iterable[str] = ()) -> None:
        """Follow the examples.

        Args:
            inputs: the fed variables with examples along dim 0; rows of sequences, if ragged.
            growing: further symbols growing with the examples.
        """
        self._known: Mapping[str, Size] = program.guards.known
        self.states: dict[str, State] = {}
        self.scattered: list[Op] = []
        block = self._whole = program.global_block
        symbols = set(growing)
        for name in inputs:
            spec = block.var(name).spec
            dims = self._dims(spec)
            if dims:
                symbols.update(() if isinstance(dims[0], int) else symbols_of(dims[0]))
                self.states[name] = PerExample(0, 1, dims[0])
            for count in () if spec.lod is None else spec.lod.counts:
                symbols.update(() if isinstance(count, int) else symbols_of(count))
        self.growing = frozenset(symbols)
        self._counts = list(dict.fromkeys(state.count for state in self.states.values() if isinstance(state, PerExample)))
        self._numbers = ExampleNumbers(self.states, self._result_dims, self._grows)
        self._follow(block)

    def state(self, name: str) -> State:
        """Return the state of a value; weights, never written, are shared."""
        return self.states.get(name, SHARED)

    def mixture(self, names: Iterable[str]) -> Mixed | None:
        """Return the first mixture among values, a proven one if there is any."""
        mixtures = [s for n in names if isinstance(s := self.state(n), Mixed)]
        return next((s for s in mixtures if s.proven), mixtures[0] if mixtures else None)

    def _dims(self, spec: Spec) -> tuple[Size, ...] | None:
        if spec.dims is None or not self._known:
            return spec.dims
        return tuple([d if isinstance(d, int) else substitute(d, self._known) for d in spec.dims])

    def _grows(self, size: Size) -> bool:
        return not isinstance(size, int) and not self.growing.isdisjoint(symbols_of(size))

    # --- blocks

    def _follow(self, block: Block) -> None:
        for op in block.ops:
            if not op.is_run:
                for name in op.output_names():
                    self.states.setdefault(name, SHARED)
                continue
            inner = blocks_of(op)
            if inner or block is not self._whole:
                self._numbers.forget()
            states = self._of_blocks(op, inner) if inner else self._of_op(op)
            for name, state in states.items():
                self.states[name] = state

    def _of_blocks(self, op: Op, blocks: list[Block]) -> dict[str, State]:
        """Return the states of the results of a loop or a branch, if its condition is shared."""
        written = [n for n in op.output_names() if not is_empty_name(n)]
        region = "" if op.operator is None else op.operator.region
        condition = self.mixture(op.all_reads())
        if condition is None and all(self.state(n) is SHARED for n in op.all_reads()):
            return dict.fromkeys(written, SHARED)
        if condition is not None or region not in ("while", "conditional"):
            return dict.fromkeys(written, condition or Mixed(op, _OPEN, False))
        asks = op.inputs.get("Condition" if region == "while" else "Cond", ())
        previous = {n: self.state(n) for n in written}
        for _ in range(_MOST_ROUNDS):
            if any(self.state(n) is not SHARED for n in asks):
                return dict.fromkeys(written, Mixed(op, "runs as the numbers of the batch decide", True))
            entered = dict(self.states)
            for block in blocks:
                self._follow(block)
            for name in previous:
                self.states[name] = self._either(op, previous[name], self.state(name), name)
            if self.states == entered:
                return {n: self.state(n) for n in written}
            previous = {n: self.state(n) for n in written}
        return dict.fromkeys(written, Mixed(op, _OPEN, False))

    def _either(self, op: Op, first: State, second: State, name: str) -> State:
        """Return the state of a value with one of two states."""
        if first == second or (first is SHARED and name not in self.states):
            return second
        if isinstance(first, Mixed) or isinstance(second, Mixed):
            return first if isinstance(first, Mixed) else second
        if isinstance(first, OfSizes) and isinstance(second, OfSizes):
            return OfSizes(first.symbols | second.symbols)
        variable = op.block.find(name)
        if variable is not None and variable.kind is LOD_TENSOR_ARRAY and first is SHARED:  # an array without elements
            return second
        return Mixed(op, f"gives {name} with examples along an axis in some rounds alone", False)

    # --- one op

    def _of_op(self, op: Op) -> dict[str, State]:
        names = [n for n in op.input_names() if not is_empty_name(n)]
        results = [n for n in op.output_names() if not is_empty_name(n)]
        operator = op.operator
        self._numbers.note(op)
        mixed = self.mixture(names)
        if mixed is not None:
            return dict.fromkeys(results, mixed)
        states = {n: self.state(n) for n in names}
        if operator is None:
            alike = all(s is SHARED for s in states.values())
            return dict.fromkeys(results, SHARED if alike else Mixed(op, "is not known", False))
        if operator.draws():
            return dict.fromkeys(results, Mixed(op, "draws random numbers", True))
        if all(s is SHARED for s in states.values()) and not any(self._grows(d) for n in results for d in self._result_dims(op, n) or ()):
            return dict.fromkeys(results, SHARED)
        counted = self._numbers.counted(op) or self._by_numbers(op, results)
        if counted is not None:
            return counted
        return self._by_declaration(op, names, results)

    def _by_numbers(self, op: Op, results: list[str]) -> dict[str, State] | None:
        """Follow an operator that reads numbers of the examples."""
        if not any(isinstance(self.state(n), Numbered) for n in op.input_names()):
            return None

        def follow(states: dict[str, State]) -> State:
            previous = {n: self.states[n] for n in states}
            self.states.update(states)
            try:
                return self._by_declaration(op, [n for n in op.input_names() if not is_empty_name(n)], results)[op.result()]
            finally:
                self.states.update(previous)

        state = self._numbers.after(op, follow)
        return None if state is None else {n: state if n == op.result() else SHARED for n in results}

    def _by_declaration(self, op: Op, names: list[str], results: list[str]) -> dict[str, State]:
        """Follow an operator by its declarations."""
        operator = op.operator
        assert operator is not None
        states = {n: self.state(n) for n in names}
        computed = operator.computes()
        reads = {n for slot in operator.reads_dims for n in op.inputs.get(slot, ())}
        if isinstance(computed, Constant) or not any(isinstance(s, PerExample) for n, s in states.items() if n not in reads):
            expands = isinstance(computed, Expansion) and self.state(op.operand(0)) is SHARED
            repeats = "" if isinstance(computed, Constant) else op.operand(0) if expands else None
            return {n: self._of_sizes(op, n, names, repeats) for n in results}
        if isinstance(computed, Selection):
            return self._selected(op, results)
        if operator.examples:
            return self._by_examples(op, operator.examples, results)
        if isinstance(computed, Identity) or (results and operator.schema.results[0].layout == "reshaped") or isinstance(computed, Reshape):
            return self._reshaped(op, results)
        specs = self._specs(op)
        have_dims = all(v.spec.dims is not None for n in names if (v := op.block.find(n)) is not None)
        rule = operator.sharding_rule(*specs) if have_dims else None
        if rule is None:
            return dict.fromkeys(results, Mixed(op, _OPEN, False))
        return self._by_rule(op, rule, results)

    def _result_dims(self, op: Op, name: str) -> tuple[Size, ...] | None:
        spec = op.made.get(name)
        if spec is None:
            variable = op.block.find(name)
            spec = None if variable is None else variable.spec
        return None if spec is None else self._dims(spec)

    def _specs(self, op: Op) -> list[Any]:
        specs = list[Any]()
        for operand in op.operator.schema.operands if op.operator is not None else ():
            slot_specs = [v.spec for n in op.inputs.get(operand.name, ()) if not is_empty_name(n) and (v := op.block.find(n)) is not None]
            specs.append(tuple(slot_specs) if operand.many else slot_specs[0] if slot_specs else None)
        return specs

    def _of_sizes(self, op: Op, name: str, names: Iterable[str], repeats: str | None) -> State:
        """Return the state of a result made of sizes; ``repeats``: a value repeated as a whole along axes that grow with the examples, empty for a number."""
        dims = self._result_dims(op, name) or ()
        grown = [axis for axis, d in enumerate(dims) if self._grows(d)]
        if grown and repeats is not None:
            return self._repeated(op, grown[0], dims, repeats) if len(grown) == 1 else Mixed(op, "has several axes that grow with the examples", True)
        spec = op.made.get(name) or op.block.var(name).spec
        symbols = set[str]()
        if spec.value is not None:
            symbols.update(s for v in spec.value if not isinstance(v, (int, float)) for s in symbols_of(v))
        else:
            for operand in names:
                state = self.state(operand)
                if isinstance(state, OfSizes):
                    symbols |= state.symbols
                elif isinstance(state, (PerExample, Numbered)):
                    symbols |= self.growing
            symbols.update(s for axis in grown if not isinstance(d := dims[axis], int) for s in symbols_of(d))
        return SHARED if self.growing.isdisjoint(symbols) else OfSizes(frozenset(symbols))

    def _repeated(self, op: Op, axis: int, dims: tuple[Size, ...], value: str) -> PerExample:
        """Return the state of a constant, or of a shared value repeated as a whole along an axis."""
        value_dims = self._result_dims(op, value) if value else None
        divisor = value_dims[axis + len(value_dims) - len(dims)] if value_dims is not None and axis + len(value_dims) >= len(dims) else 1
        for count in (floordiv(dims[axis], divisor) if divisor not in (0, 1) else 0, *self._counts):
            quotient = floordiv(dims[axis], count) if count != 0 else 0
            if quotient != 0 and equal(product((count, quotient)), dims[axis]) is True:
                return PerExample(axis, 1, count)
        return PerExample(axis, 1, dims[axis])

    def _by_examples(self, op: Op, slots: tuple[str, ...], results: list[str]) -> dict[str, State]:
        """Follow an operator of rows, or sequences, each computed on its own."""
        examples = [s for slot in slots for n in op.inputs.get(slot, ()) if not is_empty_name(n) and isinstance(s := self.state(n), PerExample)]
        unexpected = [n for slot, slot_names in op.inputs.items() if slot not in slots for n in slot_names if isinstance(self.state(n), PerExample)]
        assert op.operator is not None
        sizes = (*op.operator.sets_dims, *op.operator.reads_dims)
        of_sizes = next(
            (n for slot, slot_names in op.inputs.items() for n in slot_names if slot not in sizes and isinstance(self.state(n), (OfSizes, Numbered))), None
        )
        if of_sizes is not None:
            return dict.fromkeys(results, Mixed(op, f"reads {of_sizes}, which follows from the number of examples", True))
        if unexpected or any(s.axis for s in examples):
            return dict.fromkeys(results, Mixed(op, f"reads {unexpected[0]} for every example" if unexpected else "has examples along another axis", True))
        first = examples[0]
        if any(equal(s.outer, first.outer) is not True for s in examples):
            return dict.fromkeys(results, Mixed(op, "reads examples in two orders", False))
        held_in = op.operator.example_results
        apart = {n for slot, slot_names in op.outputs.items() if not held_in or slot in held_in for n in slot_names}
        return {n: self._in_rows(op, n, first) if n in apart else Mixed(op, _OPEN, False) for n in results}

    def _in_rows(self, op: Op, name: str, state: PerExample) -> State:
        dims = self._result_dims(op, name)
        if not dims:
            return state if dims is None else Mixed(op, "joins all examples", True)
        count = product((state.outer, state.count))
        quotient = floordiv(dims[0], count) if count != 0 else 0
        return state if equal(product((quotient, count)), dims[0]) is True else PerExample(0, 1, dims[0])

    def _selected(self, op: Op, results: list[str]) -> dict[str, State]:
        """Follow one of several values, chosen by a number."""
        assert op.operator is not None
        entries, chooser = (op.inputs.get(o.name, ()) for o in op.operator.schema.operands[:2])
        state: State = self.state(entries[0])
        for name in entries[1:]:
            state = self._either(op, state, self.state(name), name)
        if any(self.state(n) is not SHARED for n in chooser):
            state = Mixed(op, "chooses as the numbers of the batch decide", True)
        return dict.fromkeys(results, state)

    def _reshaped(self, op: Op, results: list[str]) -> dict[str, State]:
        """Follow the elements of the first operand in row-major order."""
        operator = op.operator
        assert operator is not None
        slot = operator.schema.operands[0].name
        (name, *further) = op.inputs[slot]
        state, variable = self.state(name), op.block.find(name)
        dims = None if variable is None else self._dims(variable.spec)
        out: dict[str, State] = {}
        for result in results:
            result_dims = self._result_dims(op, result)
            if not isinstance(state, PerExample) or further or variable is None or variable.kind is LOD_TENSOR_ARRAY or dims == result_dims:
                out[result] = state
            elif dims is None or result_dims is None:
                out[result] = Mixed(op, "has unknown dims", False)
            else:
                out[result] = self._after_reshape(op, state, dims, result_dims)
        for result in op.outputs.get("XShape", ()):
            out[result] = SHARED
        return out

    def _after_reshape(self, op: Op, state: PerExample, old_dims: tuple[Size, ...], new_dims: tuple[Size, ...]) -> State:
        ahead, certain = product((*old_dims[: state.axis], state.outer)), True
        for axis, size in enumerate(new_dims):
            passed = product(new_dims[:axis])
            if passed == 0:
                break
            outer = floordiv(ahead, passed)
            fits = equal(product((outer, passed)), ahead)
            if fits is True:
                unit = product((outer, state.count))
                quotient = floordiv(size, unit) if unit != 0 else 0
                fits = equal(product((quotient, unit)), size)
                if fits is True:
                    return PerExample(axis, outer, state.count)
            certain = certain and fits is False
        scattered = any(equal(d, old_dims[state.axis]) is True for d in new_dims)
        if scattered:
            self.scattered.append(op)
        return Mixed(op, "puts elements of several examples into one", certain or scattered)

    def _by_rule(self, op: Op, rule: ShardingRule, results: list[str]) -> dict[str, State]:
        """Follow the axis of the examples by its name in an operator's rule."""
        entries = [(slot, n, self.state(n)) for slot, slot_names in op.inputs.items() for n in slot_names if not is_empty_name(n)]
        joined = [(slot, s) for slot, _, s in entries if isinstance(s, PerExample)]
        axes = {names[s.axis] if s.axis < len(names := rule.operands.get(slot, ())) else WHOLE for slot, s in joined}
        (axis,) = axes if len(axes) == 1 else (WHOLE,)
        assert op.operator is not None
        first, sizes = joined[0][1], op.operator.sets_dims
        if axis == WHOLE or axis in rule.summed:
            return dict.fromkeys(results, Mixed(op, "computes over the examples", True))
        if any(equal(s.outer, first.outer) is not True or equal(s.count, first.count) is not True for _, s in joined):
            return dict.fromkeys(results, Mixed(op, "reads examples in two orders", False))
        for slot, name, state in entries:
            if (isinstance(state, (OfSizes, Numbered)) and slot not in sizes) or (state is SHARED and axis in rule.operands.get(slot, ())):
                return dict.fromkeys(results, Mixed(op, f"reads {name}, which follows from the number of examples", True))
        out: dict[str, State] = dict.fromkeys(results, Mixed(op, _OPEN, False))
        for slot, names in rule.results.items():
            for name in op.outputs.get(slot, ()):
                if is_empty_name(name):
                    continue
                if axis not in names:
                    out[name] = Mixed(op, "computes over the examples", True)
                elif sizes and sum(map(self._grows, self._result_dims(op, name) or ())) > 1:
                    out[name] = Mixed(op, "has several axes that grow with the examples", True)
                else:
                    out[name] = PerExample(names.index(axis), first.outer, first.count)
                if slot in op.operator.accumulates and name in self.states:
                    out[name] = self._either(op, self.states[name], out[name], name)
        for name in op.outputs.get("XShape", ()):
            out[name] = SHARED
        return out
