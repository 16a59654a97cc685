"""Losses and decoding of sequences: conditional random fields, CTC, edit distance.

All of them take sequences as ragged rows, or padded with a tensor of their lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.block import Block
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.parameter import create_parameter, param_attr
from foreshape.layer.weights import by_example


def _present_slots(**slots: Variable | None) -> dict[str, Variable]:
    return {slot: variable for slot, variable in slots.items() if variable is not None}


@tells_line
def linear_chain_crf(
    x: Variable, label: Variable, transition: Any = None, length: Variable | None = None, *, sample_weight: Variable | None = None, name: str | None = None
) -> Variable:
    """Return the negative log-likelihood (a cost, to be minimised) of each sequence's tags under a linear-chain conditional random field.

    Args:
        x: the weight of each tag, ragged ``[rows, tags]``; or ``[sequences, width, tags]`` with ``length``.
        label: tag numbers, ragged ``[rows, 1]``; or ``[sequences, width]`` with ``length``.
        transition: the parameter ``[tags + 2, tags]``: the weights of starting, of ending, and of tag i followed by tag j at
            ``[i + 2, j]``. A name (by which `crf_decoding` finds it), an initializer, a `ParamAttr`, or the variable itself.
        length: the sequences' lengths, ``[sequences]``, if they are padded.
        sample_weight: ``[sequences]`` or ``[sequences, 1]``: the factor of each sequence's cost. It is of a whole sequence, no sum over its tags, so no
            tag has a weight of its own.
        name: the prefix of the transitions' names.

    Returns:
        ``[sequences, 1]``; 0 of a sequence without rows.

    Raises:
        ShapeError: an unknown number of tags, or a label divided unlike x; mismatched weights.
    """
    block = current_block()
    tags = x.spec.known_dims[-1] if x.spec.known_dims else None
    prefix = block.program.layer_name("linear_chain_crf", name)
    if not isinstance(transition, Variable):
        if not isinstance(tags, int):
            raise ShapeError(f"linear_chain_crf({x.name}): the number of tags must be known to make the transitions; the input is {x.spec.text()}")
        transition = create_parameter((tags + 2, tags), x.spec.known_dtype, transition, prefix=prefix)
    inputs = _present_slots(Emission=x, Transition=transition, Label=label, Length=length)
    _, _, _, cost = block.apply("linear_chain_crf", inputs, prefix=prefix)
    return by_example(cost, sample_weight, "linear_chain_crf")


@tells_line
def crf_decoding(x: Variable, transition: Any, label: Variable | None = None, length: Variable | None = None) -> Variable:
    """Return the most likely tags under a linear-chain conditional random field.

    Args:
        x, length: as for `linear_chain_crf`.
        transition: its parameter: the name, a `ParamAttr` with the name, or the variable.
        label: tag numbers; the result is then 1 where the most likely tag is right, otherwise 0.

    Returns:
        int64, ragged ``[rows, 1]``; or ``[sequences, width]``, 0 after the end of each sequence.

    Raises:
        SchemaError: the program has no parameter of this name.
    """
    block = current_block()
    parameter = transition if isinstance(transition, Variable) else _parameter(block, transition)
    return block.apply("crf_decoding", _present_slots(Emission=x, Transition=parameter, Label=label, Length=length))


def _parameter(block: Block, attr: Any) -> Variable:
    name = param_attr(attr).name
    parameter = block.program.global_block.vars.get(name) if name is not None else None
    if parameter is None:
        meant = did_you_mean(name, block.program.global_block.vars)
        raise SchemaError(f"crf_decoding: there is no parameter {name!r}; give linear_chain_crf a transition of that name, or pass the variable{meant}")
    return parameter


@tells_line
def warpctc(
    x: Variable, label: Variable, blank: int = 0, norm_by_times: bool = False, input_length: Variable | None = None,
    label_length: Variable | None = None, *, sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return the loss of connectionist temporal classification: -log of the probability of all alignments of a label with the steps.

    Args:
        x: logits (the softmax is part of the loss), ragged ``[steps, classes]``, the blank being one of the classes; or
            time-major ``[width, sequences, classes]`` with the lengths.
        label: class numbers without blanks, ragged ``[labels, 1]``; or ``[sequences, labels]`` with the lengths.
        blank: the class of no label.
        norm_by_times: divide the gradient, though not the loss, by the number of steps.
        input_length, label_length: ``[sequences]``, if they are padded.
        sample_weight: ``[sequences]`` or ``[sequences, 1]``: the factor of each sequence's loss. It is of all alignments of a label at once, so no
            class has a weight of its own.

    Returns:
        ``[sequences, 1]``; 0 where the label is too long for the steps.

    Raises:
        ShapeError: operands or mismatched weights.
    """
    inputs = _present_slots(Logits=x, Label=label, LogitsLength=input_length, LabelLength=label_length)
    loss, _ = current_block().apply("warpctc", inputs, {"blank": blank, "norm_by_times": norm_by_times})
    return by_example(loss, sample_weight, "warpctc")


def ctc_greedy_decoder(x: Variable, blank: int, input_length: Variable | None = None, pad_value: int = 0) -> Any:
    """Return the labels of the best class of each step, repetitions merged and blanks taken out.

    Args:
        x: scores, ragged ``[steps, classes]``; or ``[sequences, width, classes]`` with ``input_length``.
        blank: the class of no label.
        input_length: the number of steps of each sequence, int32 or int64 ``[sequences]``.
        pad_value: the padding of the labels of padded sequences.

    Returns:
        Ragged labels ``[labels, 1]``; with ``input_length`` the pair (labels ``[sequences, width]``, their number ``[sequences, 1]``).
    """
    block = current_block()
    prefix = block.program.layer_name("ctc_greedy_decoder")
    _, best = block.apply("top_k_v2", {"X": x}, {"k": 1, "axis": -1, "largest": True, "sorted": True}, prefix)
    attrs: dict[str, Any] = {"blank": blank, "merge_repeated": True}
    if input_length is None:
        labels, _ = block.apply("ctc_align", {"Input": best}, attrs, prefix)
        return labels
    best, _ = block.apply("squeeze2", {"X": best}, {"axes": [2]}, prefix)
    return block.apply("ctc_align", {"Input": best, "InputLength": input_length}, attrs | {"padding_value": pad_value}, prefix)


@tells_line
def edit_distance(
    x: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """Count the insertions, deletions and substitutions from each sequence of ``x`` to ``label``'s.

    Args:
        x, label: numbers, ragged ``[rows, 1]``; or ``[sequences, width]`` with the lengths.
        normalized: divide by the length of label's sequence, none of them empty.
        ignored_tokens: numbers taken out of both first; only for ragged ones.
        input_length, label_length: the count of numbers in each padded sequence, int32 or int64 ``[sequences]``.

    Returns:
        The distances fp32 ``[sequences, 1]``, and the number of sequences int64 ``[1]``.

    Raises:
        SchemaError: ``ignored_tokens`` of padded sequences.
    """
    block = current_block()
    prefix = block.program.layer_name("edit_distance")
    if ignored_tokens:
        if input_length is not None or label_length is not None:
            raise SchemaError("edit_distance: ignored_tokens are taken out of ragged sequences only, and these are padded")
        tokens = {"tokens": list(ignored_tokens)}
        x, label = (block.apply("sequence_erase", {"X": x}, tokens, prefix) for x in (x, label))
    inputs = _present_slots(Hyps=x, Refs=label, HypsLength=input_length, RefsLength=label_length)
    count, distances = block.apply("edit_distance", inputs, {"normalized": normalized}, prefix)
    return distances, count


def rnnt_loss(
    x: Variable, label: Variable, input_length: Variable, label_length: Variable, blank: int = 0, fastemit_lambda: float = 0.0, *,
    sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return the loss of a transducer, ``[batch]``: the cost of all paths through steps and labels to the labels (Graves, 2012).

    Args:
        x: logarithms of probabilities ``[batch, steps, labels + 1, classes]``, floats.
        label: int32 ``[batch, labels]``.
        input_length, label_length: int32 ``[batch]``: the numbers of steps and labels of each sequence.
        blank: the class of no label.
        fastemit_lambda: the additional weight of early labels in the gradient (Yu et al., 2021).
        sample_weight: ``[batch]``: the factor of each sequence's loss.
    """
    inputs = {"input": x, "label": label, "input_lengths": input_length, "label_lengths": label_length}
    loss, _ = current_block().apply("warprnnt", inputs, {"blank": blank, "fastemit_lambda": fastemit_lambda})
    return by_example(loss, sample_weight, "rnnt_loss")
