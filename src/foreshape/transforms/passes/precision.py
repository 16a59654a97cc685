"""16-bit precision: products and convolutions compute in bf16 or fp16, everything else, including weights and sums, in fp32.

`lower_precision` changes a network before its gradients are appended. The operands of a product are cast, and its result is cast back, so
gradients flow through the casts to fp32 weights. `scale_loss` changes a training program whose gradients could vanish in fp16. The loss is
multiplied by a scale before the backward pass, and gradients are divided by it after. The scale grows while they are finite; otherwise
nothing is updated and the scale falls (Micikevicius et al., 2018).
"""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import BF16, BOOL, FP16, FP32, INT32, LOD_TENSOR, DType, Spec, tensor
from foreshape.errors import SchemaError
from foreshape.language.operator.computations import Filled
from foreshape.language.program import Block, Op, Program, Role, Variable, program_guard
from foreshape.language.program.op import is_empty_name
from foreshape.layer.initializer import Constant
from foreshape.layer.parameter import initialise
from foreshape.transforms.passes.contract import CONDITIONAL_UPDATES, NO_GRADIENTS, UPDATES, ProgramCondition, contract
from foreshape.transforms.passes.forward_and_back import LATER, shown
from foreshape.transforms.passes.update_section import move_under, update_section

TYPES: dict[str, DType | None] = {"fp32": None, "bf16": BF16, "fp16": FP16}
"""The values of `precision=`, with the element type of products; None to leave it."""
INITIAL_SCALE, GROWS_AFTER, GROWS_BY, FALLS_BY = 2.0**15, 1000, 2.0, 0.5


def _multiplies(op: Op) -> bool:
    """Return True for a product or a convolution of the forward pass in fp32."""
    if op.operator is None or not type(op.operator).multiplies or op.role & LATER:
        return False
    floating = [s for n in (*op.input_names(), *op.output_names()) if (s := op.block.var(n).spec).dtype is not None and s.known_dtype.is_floating]
    return bool(floating) and all(s.dtype is FP32 and s.kind is LOD_TENSOR for s in floating)


def _wide(program: Program) -> str:
    return next((f"{shown(op)} computes in fp32" for op in program.all_ops() if _multiplies(op)), "")


_LOWER = contract("lower_precision", [NO_GRADIENTS], [ProgramCondition("products in 16 bits", _wide)], idempotent=True)
_SCALE = contract("scale_loss", [UPDATES], [CONDITIONAL_UPDATES])


def checked_precision(precision: str) -> str:
    """Return a value of ``precision=``. Raises `SchemaError` for any other."""
    if precision not in TYPES:
        raise SchemaError.one_of("precision=", TYPES, precision)
    return precision


def lower_precision(program: Program, precision: str) -> Program:
    """Return a copy of a network whose fp32 products and convolutions compute in 16 bits; the program itself if it has none.

    A value read by several of them is cast once, and a value from one to the next is not cast back in between. Operators with
    products inside, as recurrences, stay in fp32.

    Args:
        program: without gradients; left as it is.
        precision: "bf16", "fp16", or "fp32" for no change.

    Raises:
        SchemaError: another word, or a program with gradients.
    """
    dtype = TYPES[checked_precision(precision)]
    if dtype is None:
        return program

    def change(copy: Program) -> bool:
        return sum(_Lowered(block, dtype).apply() for block in copy.blocks) > 0

    return _LOWER.run(program, change, f"precision={precision!r}").program


class _Lowered:
    """One block: its products compute in another type."""

    def __init__(self, block: Block, dtype: DType) -> None:
        self.block, self.of = block, dtype
        self.casts: dict[str, str] = {}
        """The name of an fp32 value -> the name of its cast."""

    def apply(self) -> int:
        count = 0
        for op in list(self.block.ops):
            if _multiplies(op):
                self._lower(op)
                count += 1
            else:
                for name in op.all_writes():  # the original has another value now
                    self.casts.pop(name, None)
        return count

    def _lower(self, op: Op) -> None:
        for name in dict.fromkeys(op.input_names()):
            if self.block.var(name).dtype is FP32:
                if name not in self.casts:
                    self.casts[name] = self._name(name)
                    self._cast(op, name, self.casts[name], FP32, self.of, self.block.ops.index(op))
                op.rename_input(name, self.casts[name])
        for name in [n for n in op.output_names() if not is_empty_name(n)]:
            variable = self.block.var(name)
            if variable.dtype is not FP32:
                continue
            lowered_name = self._name(name)
            if variable.op is op:
                variable.op = None
            op.rename_output(name, lowered_name)
            self.block.infer_op(op)
            self._cast(op, lowered_name, name, self.of, FP32, self.block.ops.index(op) + 1)
            self.casts[name] = lowered_name

    def _name(self, name: str) -> str:
        return self.block.program.unique_name(f"{name}@{self.of.name.upper()}")

    def _cast(self, op: Op, x: str, out: str, source_dtype: DType, target_dtype: DType, index: int) -> None:
        attrs = {"in_dtype": source_dtype.code, "out_dtype": target_dtype.code}
        self.block.append_op("cast", {"X": x}, {"Out": out}, attrs, role=op.role, site=op.site, index=index)


def scale_loss(program: Program, loss: str, startup: Program, over_ranks: bool = False) -> tuple[Program, Program]:
    """Return a copy of a training program with a scaled loss in the backward pass, and a copy of its startup program.

    The scale begins with 32,768, doubles after 1,000 updates with finite gradients and halves, down to 1, after one without. Such an update is
    left out: parameters and state of the optimizer stay as they are. Accumulate gradients after it, if at all.

    Args:
        program: with gradients and updates; left as it is.
        loss: the name of its minimised loss.
        startup: left as it is.
        over_ranks: True if gradients differ between ranks, so a non-finite one must be reported to all.

    Raises:
        SchemaError: the program has no updates; the backward pass does not begin with a constant.
    """
    begins = startup.clone()

    def change(copy: Program) -> bool:
        with program_guard(copy, begins):
            _Scaled(copy.global_block, loss, over_ranks).apply()
        return True

    return _SCALE.run(program, change, "precision='fp16'").program, begins


class _Scaled:
    """The rewriting of one program for a scaled loss; it appends to the default programs."""

    def __init__(self, block: Block, loss: str, over_ranks: bool) -> None:
        self.block, self.program, self.over_ranks = block, block.program, over_ranks
        self.section = update_section(block, "precision='fp16'")
        self.seed = self._seed(loss)

    def apply(self) -> None:
        section, block = self.section, self.block
        gradient = self.seed.outputs["Out"][0]
        begins = block.var(gradient).spec
        scale = self._state("loss_scaling", tensor(begins.known_dtype, 1), INITIAL_SCALE)
        good, bad = (self._state(f"loss_scaling_{word}_steps", tensor(INT32, 1), 0) for word in ("good", "bad"))
        index = block.ops.index(self.seed)
        seed = self.seed
        block.remove_op(seed)
        shaped = ("reshape2", {"shape": list(begins.known_dims)}) if begins.known_dims else ("squeeze2", {"axes": [0]})
        block.append_op(shaped[0], {"X": scale}, {"Out": gradient}, shaped[1], role=seed.role, site=seed.site, index=index)
        names = list(section.gradients)
        roles = tuple(n for g, p in section.gradients.items() for n in (p, g))
        index = block.ops.index(section.ops[0])
        infinite, finite = self.program.unique_name("found_infinite"), self.program.unique_name("gradients_finite")
        attrs = {"incr_every_n_steps": GROWS_AFTER, "decr_every_n_nan_or_inf": 1, "incr_ratio": GROWS_BY, "decr_ratio": FALLS_BY}
        state = {"PrevLossScaling": scale, "InGoodSteps": good, "InBadSteps": bad}
        new = {"LossScaling": scale, "OutGoodSteps": good, "OutBadSteps": bad}
        steps: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
            ("check_finite_and_unscale", {"X": names, "Scale": scale}, {"Out": names, "FoundInfinite": infinite}, {}),
            *(self._of_all_ranks(infinite) if self.over_ranks else ()),
            ("update_loss_scaling", {"X": names, "FoundInfinite": infinite, **state}, {"Out": names, **new}, attrs),
            ("logical_not", {"X": infinite}, {"Out": finite}, {}),
        ]
        for number, (type, inputs, outputs, step_attrs) in enumerate(steps):
            block.append_op(type, inputs, outputs, step_attrs, role=Role.OPTIMIZE, role_variables=roles, site=section.site, index=index + number)
        move_under(block, section.ops, block.var(finite), section.site)

    def _of_all_ranks(self, infinite: str) -> list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]:
        """Share the finding of one rank with all."""
        number, maximum = (self.program.unique_name(f"{infinite}@{word}") for word in ("RANK", "RANKS"))
        return [
            ("cast", {"X": infinite}, {"Out": number}, {"in_dtype": BOOL.code, "out_dtype": INT32.code}),
            ("c_allreduce_max", {"X": number}, {"Out": maximum}, {"ring_id": 0, "use_calc_stream": True}),
            ("cast", {"X": maximum}, {"Out": infinite}, {"in_dtype": INT32.code, "out_dtype": BOOL.code}),
        ]

    def _seed(self, loss: str) -> Op:
        """Return the first op of the backward pass."""
        for op in self.block.ops:
            if op.role & Role.BACKWARD and loss + "@GRAD" in op.output_names():
                if (filled := op.computes(Filled)) and filled.number == 1.0 and not any(op.input_names()):
                    return op
                raise SchemaError(f"precision='fp16' scales a loss whose backward pass begins with 1; that of {loss} begins with {op.type}")
        raise SchemaError(f"precision='fp16': the program has no gradient of {loss}")

    def _state(self, name: str, spec: Spec, value: float) -> Variable:
        variable = self.block.create_variable(self.program.unique_name(name), spec, site=self.section.site, persistable=True, stop_gradient=True)
        initialise(variable, Constant(value))
        return variable
