"""Operators that run a block of the program: loops, branches, recurrences, and their gradients.

Their blocks describe them, so they have no shape rule and no kernel of their own: `foreshape.language.infer.regions` infers through the block, and
`foreshape.compiler.lowering.regions` runs it. ``region`` names one of the three forms.
"""

from __future__ import annotations

from foreshape.core.spec import BOOL, LOD_TENSOR, LOD_TENSOR_ARRAY, NUMERIC, SELECTED_ROWS, STEP_SCOPES
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.fields import NOT_WRITTEN, THROUGH_BLOCK, attribute, operand, result
from foreshape.language.operator.operator import Operator

HELD = (LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS)
"""The kinds of variables a block may read and write."""


class While(Operator):
    """A loop: its block runs for as long as Condition, written by the block, is true.

    X are the outer variables the block reads, Out the outer variables it writes: they carry their values from one round to the next. StepScopes keeps the
    values of each round for `while_grad`.
    """

    type = "while"
    layer_function = "while_loop"
    X = operand(many=True, optional=True, kinds=HELD, doc="the outer variables the block reads")
    Condition = operand((BOOL,), doc="one truth value; the block updates it")
    Out = result(many=True, optional=True, doc="the outer variables the block writes")
    StepScopes = result(doc="the values of each round for the gradient")
    sub_block = attribute(AttrType.BLOCK, doc="the block")
    is_test = attribute(AttrType.BOOLEAN, False, doc="keep nothing for the gradient")
    sub_blocks = ("sub_block",)
    region = "while"
    gradient = THROUGH_BLOCK


class WhileGrad(Operator):
    """The gradient of `while`: its block is the backward pass of one round, run from the last round to the first.

    X@GRAD of a variable carried by the loop is the gradient of Out in the first round. For any other variable it is the sum over all rounds.
    """

    type = "while_grad"
    X = operand(many=True, optional=True, kinds=HELD)
    Out = operand(many=True, optional=True, kinds=HELD)
    Out_GRAD = operand(many=True, optional=True, kinds=HELD, name="Out@GRAD")
    StepScopes = operand(kinds=(STEP_SCOPES,))
    X_GRAD = result(many=True, optional=True, name="X@GRAD")
    sub_block = attribute(AttrType.BLOCK)
    is_test = attribute(AttrType.BOOLEAN, False)
    original_output_grad = attribute(AttrType.STRINGS, [], doc="the names of Out@GRAD in the block; PaddlePaddle needs them")
    sub_blocks = ("sub_block",)
    region = "while_grad"
    gradient = THROUGH_BLOCK


class ConditionalBlock(Operator):
    """A branch: its block runs once if Cond holds. Otherwise the variables it writes keep their values."""

    type = "conditional_block"
    layer_function = "cond"
    Cond = operand(many=True, doc="one truth value; without is_scalar_condition tensors, none of them empty")
    Input = operand(many=True, optional=True, kinds=HELD, doc="the outer variables the block reads")
    Out = result(many=True, optional=True, doc="the outer variables the block writes")
    Scope = result(doc="the values of the block for the gradient")
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
    """The gradient of `conditional_block`: its block if the branch ran, zeros otherwise."""

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
    """A recurrence: its block runs once for each time step of ``inputs``: ``[time, batch, *row]``, or ragged rows.

    In the block, the name of an input is its slice at the step, ``[batch, *row]``; ``ex_states`` are the names of the previous states, ``states`` the names of
    the new ones. The name of an output is its value of the step. Outside, an output is all steps, ``[time, batch, *row]``. ``parameters`` are the other outer
    variables the block reads.

    Over ragged inputs the sequences run in the order of falling length, and drop out as they end. Outputs are ragged rows with the inputs' offsets; an initial
    state has one row per sequence.
    """

    type = "recurrent"
    layer_function = "rnn"
    inputs = operand(many=True, optional=True, doc="one slice of each goes to every step")
    initial_states = operand(many=True, optional=True, doc="the previous states of the first step")
    parameters = operand(many=True, optional=True, kinds=HELD, doc="the other outer variables the block reads")
    outputs = result(many=True, doc="the values of all steps")
    step_scopes = result(doc="the values of each step for the gradient")
    sub_block = attribute(AttrType.BLOCK, doc="the block")
    has_states = attribute(AttrType.BOOLEAN, False)
    ex_states = attribute(AttrType.STRINGS, [])
    states = attribute(AttrType.STRINGS, [])
    reverse = attribute(AttrType.BOOLEAN, False, doc="from the last step to the first")
    is_train = attribute(AttrType.BOOLEAN, True, doc="keep the values for the gradient")
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
