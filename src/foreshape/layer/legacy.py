"""Operators of old files: rank tables, beams, losses on a part of the classes, chunks of a tagging, and truths assigned to boxes.

Networks saved by PaddlePaddle 1 have them (`foreshape.language.ops.legacy` names the operators of new ones), and their scripts call them by these names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, INT32, LOD_TENSOR, DType, Spec
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.initializer import Initializer
from foreshape.layer.parameter import create_parameter, initialise
from foreshape.layer.weights import ClassWeight, by_example, by_label, by_row

_SAMPLERS = {"uniform": 0, "log_uniform": 1, "custom_dist": 2}


class _Written(Initializer):
    """The numbers themselves, written in the startup program."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = list(numbers)

    def op(self, shape: Sequence[Size], of: DType) -> tuple[str, dict[str, Any]]:
        return "assign_value", {"shape": list(shape), "dtype": of.code, ("fp32_values" if of.is_floating else "int32_values"): self.numbers}


def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """Return the sequences of ``x`` at one level, 0 the outermost, ranked by falling length; sequences of one length keep their order.

    Args:
        x: ragged rows.
        level: of sequences, 0 the outermost.
    """
    return current_block().apply("lod_rank_table", {"X": x}, {"level": level})


def max_sequence_len(rank_table: Variable) -> Variable:
    """Return the length of the longest sequence of a rank table, int64 ``[1]``.

    Args:
        rank_table: from `lod_rank_table`.
    """
    return current_block().apply("max_sequence_len", {"RankTable": rank_table})


def lod_tensor_to_array(x: Variable, rank_table: Variable) -> Variable:
    """Return ragged rows taken apart: element t of the array has step t of all sequences longer than t, in the order of the table.

    Args:
        x: ragged rows.
        rank_table: of the sequences, from `lod_rank_table`.
    """
    return current_block().apply("lod_tensor_to_array", {"X": x, "RankTable": rank_table})


def array_to_lod_tensor(x: Variable, rank_table: Variable) -> Variable:
    """Return the ragged rows whose time steps are the elements of an array: the inverse of `lod_tensor_to_array`.

    Args:
        x: an array, as from `lod_tensor_to_array`.
        rank_table: of the sequences, from `lod_rank_table`.
    """
    return current_block().apply("array_to_lod_tensor", {"X": x, "RankTable": rank_table})


def shrink_memory(x: Variable, i: Variable, rank_table: Variable) -> Variable:
    """Return the first rows of ``x``, as many as the table has sequences longer than ``i``: the state of a recurrence at step ``i``.

    Args:
        x: ``[sequences, ...]``, in the order of the table.
        i: a step, int64 ``[1]``.
        rank_table: of the sequences, from `lod_rank_table`.
    """
    return current_block().apply("shrink_rnn_memory", {"X": x, "RankTable": rank_table, "I": i})


def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """Return the rows of ``x``, or of a ragged x its outermost sequences, in the order of the table.

    Args:
        x: dense, one row for each sequence of the table, or ragged.
        rank_table: from `lod_rank_table`.
    """
    return current_block().apply("reorder_lod_tensor_by_rank", {"X": x, "RankTable": rank_table})


def beam_search(
    pre_ids: Variable, pre_scores: Variable, ids: Variable | None, scores: Variable, beam_size: int, end_id: int, level: int = 0, *,
    is_accumulated: bool = True, return_parent_idx: bool = False, name: str | None = None,
) -> Any:  # fmt: skip
    """Take one step of a beam search: keep the ``beam_size`` best continuations of all prefixes of each source.

    Args:
        pre_ids, pre_scores: the last word of each prefix (int64) and its score, ``[prefixes, 1]``.
        ids: the candidate words of each prefix (int64), ``[prefixes, candidates]``, as from top-k; None for the column numbers of scores.
        scores: ragged as ids: the score of the prefix with each word; or, without ``is_accumulated``, the probability of the word.
        beam_size: the number of continuations kept for each source.
        end_id: the last word of sentences: such a prefix is kept as it is while among the best.
        level: the level of the offsets of scores for the sources.
        is_accumulated: True if scores include the prefixes'.
        return_parent_idx: also return the prefix of each row (int32 ``[kept]``).
        name: the prefix of the results' names.

    Returns:
        (selected_ids, selected_scores[, parent_idx]), ``[kept, 1]``, ragged in two levels: sources of prefixes, prefixes of kept continuations. A
        source with only ended sentences left keeps nothing any more.

    Raises:
        ShapeError: mismatched operands, or a missing level of scores.
    """
    slots = {"pre_ids": pre_ids, "pre_scores": pre_scores, "scores": scores} | ({} if ids is None else {"ids": ids})
    attrs = {"level": level, "beam_size": beam_size, "end_id": end_id, "is_accumulated": is_accumulated}
    block = current_block()
    prefix = block.program.layer_name("beam_search", name)
    op = block.append_op("beam_search", slots, {"parent_idx": f"{prefix}.parent_idx"}, attrs, prefix=prefix)
    selected = tuple(block.vars[op.outputs[slot][0]] for slot in ("selected_ids", "selected_scores", "parent_idx"))
    return selected if return_parent_idx else selected[:2]


def beam_search_decode(ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None) -> tuple[Variable, Variable]:
    """Return the sentences of a beam search, from the arrays of the results of `beam_search` in each step.

    Args:
        ids, scores: arrays of selected_ids and selected_scores, an element for each step.
        beam_size: as for `beam_search`.
        end_id: the last word of sentences.
        name: the prefix of the results' names.

    Returns:
        (words, scores), ``[words]``, ragged in two levels: sources of ``beam_size`` sentences, the best first, and sentences of words.
    """
    return current_block().apply("beam_search_decode", {"Ids": ids, "Scores": scores}, {"beam_size": beam_size, "end_id": end_id}, name)


@tells_line
def nce(
    x: Variable, label: Variable, num_classes: int, sample_weight: Variable | None = None, num_neg_samples: int = 10,
    sampler: str = "uniform", custom_dist: Sequence[float] | None = None, seed: int = 0, is_sparse: bool = False, *, weight: Any = None,
    bias: Any = None, class_weight: ClassWeight = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply noise-contrastive estimation (Gutmann and Hyvärinen, 2010): tell the true classes of each row from a few drawn ones.

    The time of a step does not grow with the vocabulary.

    Args:
        x: ``[batch, width]``, dense or ragged.
        label: the true classes (int64), ``[batch, labels]``.
        num_classes: the number of classes.
        sample_weight: the factor of each row's cost, ``[batch]`` or ``[batch, 1]``.
        num_neg_samples: the number of classes drawn for each row.
        sampler: "uniform"; "log_uniform", for classes numbered by falling frequency; "custom_dist".
        custom_dist: the probability of each class, for "custom_dist"; its numbers are stored in the program.
        seed: draws the same classes in every step; 0 draws others each time, from the executor's generator.
        is_sparse: the weight's gradient is the rows used, not a whole table.
        weight, bias: ``[classes, width]`` and ``[classes, 1]``: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves the bias out.
        class_weight: a further factor of each row's cost, by its only true class: a variable ``[classes]``, a
            list, or a dict of the weights other than 1.
        name: the prefix of the parameters' names.

    Returns:
        The cost ``[batch, 1]``, divided by ``num_neg_samples + 1``.

    Raises:
        SchemaError: an unknown sampler, or one without its distribution. ShapeError: mismatched operands.
    """
    block = current_block()
    prefix = block.program.layer_name("nce", name)
    if sampler not in _SAMPLERS:
        raise SchemaError.one_of(f"nce({x.name}): sampler", _SAMPLERS, sampler)
    if (sampler == "custom_dist") != (custom_dist is not None):
        raise SchemaError(f"nce({x.name}): the sampler custom_dist, and no other, takes the argument custom_dist; seen sampler {sampler!r}")
    width = _width("nce", x)
    slots = {"Input": x, "Label": label}
    slots["Weight"] = create_parameter((num_classes, width), x.spec.known_dtype, weight, prefix=prefix)
    if bias is not False:
        slots["Bias"] = create_parameter((num_classes, 1), x.spec.known_dtype, bias, prefix=prefix, suffix="b", is_bias=True)
    if sample_weight is not None:
        slots["SampleWeight"] = by_row(sample_weight, x, "nce")
    if custom_dist is not None:
        probabilities = [float(p) for p in custom_dist]
        if len(probabilities) != num_classes or not all(p >= 0.0 for p in probabilities) or abs(sum(probabilities) - 1.0) > 1e-3:
            raise SchemaError(
                f"nce({x.name}): custom_dist must have {num_classes} probabilities whose sum is 1; seen {len(probabilities)} "
                f"numbers whose sum is {sum(probabilities)}"
            )
        alias, keep = alias_tables(probabilities)
        slots["CustomDistProbs"] = _constant(prefix, FP32, probabilities)
        slots["CustomDistAlias"] = _constant(prefix, INT32, alias)
        slots["CustomDistAliasProbs"] = _constant(prefix, FP32, keep)
    attrs = {"num_total_classes": num_classes, "num_neg_samples": num_neg_samples, "sampler": _SAMPLERS[sampler], "seed": seed,
             "is_sparse": is_sparse, "remote_prefetch": is_sparse}  # fmt: skip
    cost = block.apply("nce", slots, attrs, prefix)[0]
    cost = block.apply("scale", {"X": cost}, {"scale": 1.0 / (num_neg_samples + 1)}, prefix)
    return by_label(cost, class_weight, label, num_classes, "nce")


def alias_tables(probabilities: Sequence[float]) -> tuple[list[int], list[float]]:
    """Return the tables of the alias method (Walker, 1977) for draws of classes.

    A class is drawn uniformly, and kept with the second table's probability, else replaced by the first table's class (-1 if it is always kept).
    """
    count = len(probabilities)
    alias, keep = [-1] * count, [1.0] * count
    scaled = [p * count for p in probabilities]
    large = deque(c for c, p in enumerate(scaled) if p > 1.0)
    small = deque(c for c, p in enumerate(scaled) if p < 1.0)
    while large and small:
        greater, lesser = large.popleft(), small.popleft()
        alias[lesser], keep[lesser] = greater, scaled[lesser]
        scaled[greater] += scaled[lesser] - 1.0
        if scaled[greater] > 1.0:
            large.append(greater)
        elif scaled[greater] < 1.0:
            small.append(greater)
    return alias, keep


def _constant(prefix: str, dtype: DType, numbers: Sequence[float]) -> Variable:
    """Return a persistable variable with these numbers, unchanged by training."""
    block = current_block().program.global_block
    variable = block.create_variable(block.program.unique_name(f"{prefix}.w"), Spec(LOD_TENSOR, dtype, (len(numbers),)), persistable=True, stop_gradient=True)
    initialise(variable, _Written(numbers))
    return variable


@tells_line
def hierarchical_sigmoid(
    x: Variable, label: Variable, num_classes: int, path_table: Variable | None = None, path_code: Variable | None = None,
    is_sparse: bool = False, *, weight: Any = None, bias: Any = None, class_weight: ClassWeight = None, sample_weight: Variable | None = None,
    name: str | None = None,
) -> Variable:  # fmt: skip
    """Return the loss of a hierarchical softmax (Morin and Bengio, 2005).

    Each class is a leaf of a binary tree, and a row uses only the inner nodes on the path to its class.

    Args:
        x: ``[batch, width]``, dense or ragged.
        label: the classes (int64), ``[batch, 1]``.
        num_classes: of the complete tree, its leaves; of a tree by path_table, its inner nodes.
        path_table, path_code: the path of each row in a tree of your own (int64), ``[batch, longest path]``: inner nodes from the root,
            and 1 or 0 for the path's turn there; -1 after its end.
        is_sparse: the weight's gradient is the rows used, not a whole table.
        weight, bias: ``[inner nodes, width]`` and ``[inner nodes, 1]``: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves
            the bias out.
        class_weight: the factor of each row's cost, by its class: a variable ``[classes]``; of the complete tree a list, too, or
            a dict of the weights other than 1.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each row's cost.
        name: the prefix of the parameters' names.

    Returns:
        The cost, ``[batch, 1]``. As in PaddlePaddle, a path shorter than the longest adds log(2) for each free place.

    Raises:
        SchemaError: a path_table without path_code, or with a list of weights. ShapeError: mismatched operands or weights.
    """
    block = current_block()
    prefix = block.program.layer_name("hierarchical_sigmoid", name)
    if (path_table is None) != (path_code is None):
        raise SchemaError(f"hierarchical_sigmoid({x.name}): path_table and path_code come together")
    nodes = num_classes if path_table is not None else num_classes - 1
    slots = {"X": x, "Label": label}
    slots["W"] = create_parameter((nodes, _width("hierarchical_sigmoid", x)), x.spec.known_dtype, weight, prefix=prefix)
    if bias is not False:
        slots["Bias"] = create_parameter((nodes, 1), x.spec.known_dtype, bias, prefix=prefix, suffix="b", is_bias=True)
    if path_table is not None and path_code is not None:
        slots |= {"PathTable": path_table, "PathCode": path_code}
    if path_table is not None and class_weight is not None and not isinstance(class_weight, Variable):
        raise SchemaError(
            f"hierarchical_sigmoid({x.name}): of a tree of your own the number of classes is not known: class_weight must be a variable "
            f"with one number for each; seen {type(class_weight).__name__}"
        )
    cost = block.apply("hierarchical_sigmoid", slots, {"num_classes": num_classes, "is_sparse": is_sparse}, prefix)[0]
    cost = by_label(cost, class_weight, label, None if path_table is not None else num_classes, "hierarchical_sigmoid")
    return by_example(cost, sample_weight, "hierarchical_sigmoid")


def _width(layer: str, input: Variable) -> int:
    dims = input.spec.known_dims
    if len(dims) != 2 or not isinstance(dims[1], int):
        raise ShapeError(f"{layer}({input.name}): the input must be [batch, width] with a known width to make a weight; it is {input.spec.text()}")
    return dims[1]


def chunk_eval(
    x: Variable, label: Variable, chunk_scheme: str, num_chunk_types: int, excluded_chunk_types: Sequence[int] | None = None, length: Variable | None = None
) -> tuple[Variable, Variable, Variable, Variable, Variable, Variable]:
    """Return precision, recall and F1 of the chunks of a tagging, such as the names in a text.

    Args:
        x, label: tag numbers, ragged ``[rows, 1]``; or ``[sequences, width]`` with ``length``. A number is type * (tags of the
            scheme) + tag; the largest, num_chunk_types * (tags of the scheme), is outside of all chunks.
        chunk_scheme: the tags of a type: "IOB" (B, I), "IOE" (I, E), "IOBES" (B, I, E, S) or "plain" (one).
        num_chunk_types: the number of types of chunks.
        excluded_chunk_types: types left out.
        length: the lengths of padded sequences, int64 ``[sequences]``.

    Returns:
        Precision, recall and F1, fp32 ``[1]``; the numbers of chunks in x, in label, and of right ones, int64 ``[1]``.
        Sum these over minibatches for the measures of a whole.
    """
    attrs = {"num_chunk_types": num_chunk_types, "chunk_scheme": chunk_scheme, "excluded_chunk_types": list(excluded_chunk_types or ())}
    return current_block().apply("chunk_eval", {"Inference": x, "Label": label} | ({} if length is None else {"SeqLength": length}), attrs)


def bipartite_match(dist_matrix: Variable, match_type: str = "bipartite", dist_threshold: float = 0.5) -> tuple[Variable, Variable]:
    """Return the row of its image matched to each column (-1: none), int32 ``[images, columns]``, and their similarity.

    Args:
        dist_matrix: the similarity of rows and columns, ``[rows, columns]``, ragged: the rows of each image.
        match_type: "per_prediction" gives each column left over its most similar row, from ``dist_threshold`` on.
        dist_threshold: the least similarity for "per_prediction".
    """
    return current_block().apply("bipartite_match", {"DistMat": dist_matrix}, {"match_type": match_type, "dist_threshold": dist_threshold})


def mine_hard_examples(
    cls_loss: Variable, match_indices: Variable, match_dist: Variable, loc_loss: Variable | None = None, neg_pos_ratio: float = 1.0,
    neg_dist_threshold: float = 0.5, sample_size: int = 0, mining_type: str = "max_negative",
) -> tuple[Variable, Variable]:  # fmt: skip
    """Return the priors that count as negative examples, int32 ``[rows, 1]``, ragged by image, and the remaining matches, as match_indices.

    Args:
        cls_loss, loc_loss, match_dist: ``[images, priors]``.
        match_indices: int32, as from `bipartite_match`.
        neg_pos_ratio: the most negative examples for each positive one, for "max_negative".
        neg_dist_threshold: priors with less match_dist are negative.
        sample_size: the number of examples kept, for "hard_example".
        mining_type: "max_negative", or "hard_example" with sample_size.
    """
    slots = {"ClsLoss": cls_loss, "MatchIndices": match_indices, "MatchDist": match_dist} | ({} if loc_loss is None else {"LocLoss": loc_loss})
    attrs = {"neg_pos_ratio": neg_pos_ratio, "neg_dist_threshold": neg_dist_threshold, "sample_size": sample_size, "mining_type": mining_type}
    return current_block().apply("mine_hard_examples", slots, attrs)


def target_assign(x: Variable, match_indices: Variable, negative_indices: Variable | None = None, mismatch_value: int = 0) -> tuple[Variable, Variable]:
    """Return the truth matched to each prior, ``[images, priors, width]``, and its weight, ``[images, priors, 1]``.

    Args:
        x: ``[rows, entries, width]``, ragged: the truths of each image; prior k takes entry k % entries.
        match_indices: as from `bipartite_match`.
        negative_indices: as from `mine_hard_examples`; they count, too.
        mismatch_value: the value for priors without a match.
    """
    slots = {"X": x, "MatchIndices": match_indices} | ({} if negative_indices is None else {"NegIndices": negative_indices})
    return current_block().apply("target_assign", slots, {"mismatch_value": mismatch_value})
