"""Operators that run a block of the program: loops, branches, recurrences, and the operators that undo them.

They are described by their blocks, so that they have no shape rule and no kernel of their own: `foreshape.infer.regions`
infers through the block, and `foreshape.lowering.regions` runs it. ``region`` says which of the three forms it is.
"""

from __future__ import annotations

from foreshape.operator.attributes import AttrType
from foreshape.operator.fields import NOT_WRITTEN, THROUGH_BLOCK, attribute, operand, result
from foreshape.operator.operator import Operator
from foreshape.spec import BOOL, LOD_TENSOR, LOD_TENSOR_ARRAY, NUMERIC, SELECTED_ROWS, STEP_SCOPES

HELD = (LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS)
"""The kinds that a block may read and write."""


class While(Operator):
    """Runs its block for as long as Condition, which the block writes, is true.

    X are the variables that the block reads from outside, Out those that it writes: they carry their values from one round to
    the next. StepScopes holds what each round leaves for `while_grad`.
    """

    type = "while"
    X = operand(many=True, optional=True, kinds=HELD, doc="what the block reads from outside")
    Condition = operand((BOOL,), doc="one truth value; the block writes it anew")
    Out = result(many=True, optional=True, doc="what the block writes outside")
    StepScopes = result(doc="what each round keeps for the gradient")
    sub_block = attribute(AttrType.BLOCK, doc="the block")
    is_test = attribute(AttrType.BOOLEAN, False, doc="keep nothing for the gradient")
    sub_blocks = ("sub_block",)
    region = "while"
    gradient = THROUGH_BLOCK


class WhileGrad(Operator):
    """Undoes the rounds of `while`, the last one first: its block is the backward pass of one round.

    Of a variable that the loop carried, X@GRAD is what the gradient of Out has become in the first round; of another, the sum
    over all rounds.
    """

    type = "while_grad"
    X = operand(many=True, optional=True, kinds=HELD)
    Out = operand(many=True, optional=True, kinds=HELD)
    Out_GRAD = operand(many=True, optional=True, kinds=HELD, name="Out@GRAD")
    StepScopes = operand(kinds=(STEP_SCOPES,))
    X_GRAD = result(many=True, optional=True, name="X@GRAD")
    sub_block = attribute(AttrType.BLOCK)
    is_test = attribute(AttrType.BOOLEAN, False)
    original_output_grad = attribute(AttrType.STRINGS, [], doc="Out@GRAD by the names that these have in the block; PaddlePaddle needs them")
    sub_blocks = ("sub_block",)
    region = "while_grad"
    gradient = THROUGH_BLOCK


class ConditionalBlock(Operator):
    """Runs its block once if Cond holds, otherwise not at all: what it would have written then keeps the value that it had."""

    type = "conditional_block"
    Cond = operand(many=True, doc="one truth value; without is_scalar_condition tensors of which none may be empty")
    Input = operand(many=True, optional=True, kinds=HELD, doc="what the block reads from outside")
    Out = result(many=True, optional=True, doc="what the block writes outside")
    Scope = result(doc="what the block keeps for the gradient")
    sub_block = attribute(AttrType.BLOCK, doc="the block")
    is_scalar_condition = attribute(AttrType.BOOLEAN, False)
    sub_blocks = ("sub_block",)
    region = "conditional"
    gradient = THROUGH_BLOCK


class ConditionalBlockInfer(ConditionalBlock):
    """`conditional_block`, as programs for inference call it."""

    type = "conditional_block_infer"
    gradient = NOT_WRITTEN


class ConditionalBlockGrad(Operator):
    """The gradient of `conditional_block`: its block where that one ran, zeros where not."""

    type = "conditional_block_grad"
    Cond = operand(many=True)
    Input = operand(many=True, optional=True, kinds=HELD)
    Out = operand(many=True, optional=True, kinds=HELD)
    Out_GRAD = operand(many=True, optional=True, kinds=HELD, name="Out@GRAD")
    Scope = operand(kinds=(STEP_SCOPES,))
    Cond_GRAD = result(many=True, optional=True, name="Cond@GRAD")
    Input_GRAD = result(many=True, optional=True, name="Input@GRAD")
    sub_block = attribute(AttrType.BLOCK)
    is_scalar_condition = attribute(AttrType.BOOLEAN, False)
    sub_blocks = ("sub_block",)
    region = "conditional_grad"
    gradient = THROUGH_BLOCK


class Recurrent(Operator):
    """Runs its block once for each time step of ``inputs``, which are ``[time, batch, *row]``, or ragged rows.

    In the block, the name of an input is its slice at that step, ``[batch, *row]``; ``ex_states`` are the names that the previous
    states have there, ``states`` those of the new ones; the name of an output is what that step gives. Outside, an output is all
    steps, ``[time, batch, *row]``. ``parameters`` are what else the block reads from outside.

    Over ragged inputs the sequences run in the order of falling length, those that have ended drop out, and outputs are ragged
    rows with the inputs' offsets; an initial state has one row per sequence.
    """

    type = "recurrent"
    inputs = operand(many=True, optional=True, doc="one slice of each goes to every step")
    initial_states = operand(many=True, optional=True, doc="the previous states of the first step")
    parameters = operand(many=True, optional=True, kinds=HELD, doc="what the block reads from outside besides")
    outputs = result(many=True, doc="what the steps give")
    step_scopes = result(doc="what each step keeps for the gradient")
    sub_block = attribute(AttrType.BLOCK, doc="the block")
    has_states = attribute(AttrType.BOOLEAN, False)
    ex_states = attribute(AttrType.STRINGS, [])
    states = attribute(AttrType.STRINGS, [])
    reverse = attribute(AttrType.BOOLEAN, False, doc="from the last step to the first")
    is_train = attribute(AttrType.BOOLEAN, True, doc="keep what the gradient needs")
    skip_eager_deletion_vars = attribute(AttrType.STRINGS, [])
    sub_blocks = ("sub_block",)
    region = "recurrent"
    gradient = THROUGH_BLOCK


class RecurrentGrad(Operator):
    """The gradient of `recurrent`: its block undoes one step, and runs from the last step to the first."""

    type = "recurrent_grad"
    inputs = operand(many=True, optional=True)
    initial_states = operand(many=True, optional=True)
    parameters = operand(many=True, optional=True, kinds=HELD)
    outputs = operand(many=True)
    outputs_GRAD = operand(NUMERIC, many=True, optional=True, name="outputs@GRAD")
    step_scopes = operand(kinds=(STEP_SCOPES,))
    inputs_GRAD = result(many=True, optional=True, name="inputs@GRAD")
    initial_states_GRAD = result(many=True, optional=True, name="initial_states@GRAD")
    parameters_GRAD = result(many=True, optional=True, name="parameters@GRAD")
    sub_block = attribute(AttrType.BLOCK)
    has_states = attribute(AttrType.BOOLEAN, False)
    ex_states = attribute(AttrType.STRINGS, [])
    states = attribute(AttrType.STRINGS, [])
    reverse = attribute(AttrType.BOOLEAN, False)
    is_train = attribute(AttrType.BOOLEAN, True)
    skip_eager_deletion_vars = attribute(AttrType.STRINGS, [])
    sub_blocks = ("sub_block",)
    region = "recurrent_grad"
    gradient = THROUGH_BLOCK
