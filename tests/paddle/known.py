"""What PaddlePaddle 2.6.2 computes otherwise, and why it is not followed: for each operator, of which of its samples that is so, and in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foreshape.core.spec import FP64
from foreshape.language.operator.registry import find
from foreshape.language.operator.samples import SampleTensor

Arguments = Mapping[str, Any]
When = Callable[[Arguments], bool]
KNOWN: dict[str, list[tuple[When, str]]] = {}
AS_FOUND = frozenset({"mv"})
"""Operators that come out otherwise there by what lies in memory: by chance as here."""


def know(types: str, when: When, why: str) -> None:
    for type in types.split():
        KNOWN.setdefault(type, []).append((when, why))


def reason(type: str, arguments: Arguments) -> str | None:
    """Why this sample of an operator (or its gradient, of the type with ``_grad``) comes out otherwise there, or None."""
    cls = find(type)  # none for a gradient that is made of others
    later = {} if cls is None else cls.schema.later
    newer = ", ".join(sorted(n for n in later.keys() & arguments.keys() if arguments[n] != later[n].default))
    known = next((why for when, why in KNOWN.get(type, []) if when(arguments)), None)
    return known or (f"PaddlePaddle 2.6.2 does not read what only PaddlePaddle 3 has: {newer}" if newer else None)


def always(arguments: Arguments) -> bool:
    return True


def has(*slots: str) -> When:
    return lambda a: any(a.get(s) is not None for s in slots)


def levels(slot: str, least: int) -> When:
    """Whether an input has that many levels of sequences."""

    def when(a: Arguments) -> bool:
        given = a.get(slot)
        given = given[0] if isinstance(given, (list, tuple)) and given else given
        return isinstance(given, SampleTensor) and len(given.lengths) >= least

    return when


def _first(given: Any) -> Any:
    """The element type of an input, or of the first of a list."""
    given = given[0] if isinstance(given, (list, tuple)) and given else given
    return given.dtype if isinstance(given, SampleTensor) else None


OUTERMOST = "of several levels of sequences PaddlePaddle's kernel takes the outermost, or memory that nothing was written into; here it is the innermost"
IGNORED = "PaddlePaddle 2.6.2 does not read the attribute any more; here it counts, as in the versions that have it"
OUTSIDE = "the mean of a window that lies outside is no number there; here it is 0"
DOUBLE = "a master parameter of fp64 is not PaddlePaddle's: its kernel reads it as fp32"
EXACT = "the gradient there is not that of what it computes; here it is, by finite differences: "
COUNTED = "with counts of regions PaddlePaddle's results have sequences too; here the counts alone tell"
STATE = "state without dims comes out as one of [1] there"

know("accuracy", always, "PaddlePaddle's kernel writes Correct and Total as int32, whatever its programs say of them")
know("adadelta adagrad adam adamax adamw lamb lars_momentum merged_adam momentum sgd", lambda a: _first(a.get("MasterParam")) is FP64, DOUBLE)
know("adamw", lambda a: a.get("lr_ratio", 1.0) != 1.0, "PaddlePaddle's kernel for CPUs multiplies only the decay by lr_ratio; that for GPUs the whole step")
know("batch_norm", lambda a: a["X"].dims[0] == 1 and len(a["X"].dims) == 2,
     "of one element for each channel PaddlePaddle gives X, and leaves the moving statistics; here it is normalised")  # fmt: skip
know("batch_norm", has("MomentumTensor"), "PaddlePaddle 2.6.2 does not read MomentumTensor; here it counts")
know("batch_norm_grad", lambda a: bool(a.get("trainable_statistics")), EXACT + "of trainable statistics in a test it takes the moving ones")
know("batch_norm", has("is_test", "use_global_stats"), "of moving statistics PaddlePaddle leaves SavedMean and SavedVariance as it finds them")
know("coalesce_tensor", always, "what no part takes, or no one sets, is left there as it is found; here it is zeros")
know("conv2d conv2d_transpose conv3d depthwise_conv2d", has("Bias"), "PaddlePaddle's kernel for CPUs does not read Bias; here it is added")
know("bincount", lambda a: 0 in a["X"].dims, "of no numbers PaddlePaddle counts in int64, whatever the weights are")
know("bpr_loss_grad", lambda a: len(a["X"].dims) > 2, EXACT + "of more than two dims it is no number there")
know("cholesky_solve_grad", always, EXACT + "that of Y is another, in every sample")
know("collect_fpn_proposals", has("MultiLevelRoIsNum"), COUNTED)
know("collect_fpn_proposals", lambda a: 0 in a["MultiLevelRois"][0].dims,
     "of no regions at all PaddlePaddle says one image; here there are as many as were given")  # fmt: skip
know("distribute_fpn_proposals", has("RoisNum"), COUNTED)
know("elementwise_heaviside", lambda a: len(a["X"].dims) < len(a["Y"].dims), "where X has fewer dims than Y PaddlePaddle takes each for the other")
know("empty", always, "what nobody sets is left there as it is found; here it is zeros")
know("fake_quantize_moving_average_abs_max", lambda a: a["InScale"].dims == (), STATE)
know("update_loss_scaling", lambda a: a["PrevLossScaling"].dims == (), STATE)
know("histogram", has("Weight"), "PaddlePaddle 2.6.2 does not read Weight, which only PaddlePaddle 3 has")
know("kthvalue_grad mode_grad", lambda a: a["X"].dims == (), EXACT + "of a tensor without dims it is 1 there, whatever comes")
know("merged_momentum", lambda a: a.get("rescale_grad", 1.0) != 1.0, "PaddlePaddle's kernel for CPUs does not read rescale_grad; here it counts")
know("locality_aware_nms multiclass_nms", lambda a: a.get("score_threshold", 0.0) > 1.0 or 0 in a["BBoxes"].dims,
     "where nothing is kept PaddlePaddle gives a single -1, as one sequence, in other dims than its programs say; here there are no rows")  # fmt: skip
know("mv mv_grad", lambda a: 0 in a["X"].dims, "of no columns PaddlePaddle leaves the result as it finds its memory; here it is zeros")
know("nanmedian", always, "MedianIndex, which is for the gradient alone, has room for all numbers there")
know("polygamma", lambda a: a.get("n") == 0, "of order 0 PaddlePaddle 2.6.2 gives -infinity")
know("reduce_amax reduce_amax_grad reduce_amin reduce_amin_grad", lambda a: bool(a.get("reduce_all")),
     "PaddlePaddle's kernel does not read reduce_all, and reduces what dim says")  # fmt: skip
know("set_value_grad", has("none_axes"), EXACT + "with none_axes that of the value is another")
know("shuffle_channel_grad", always, EXACT + "it moves the channels once more as they were moved, and not back")
know("spectral_norm_grad", lambda a: a.get("power_iters") == 0, EXACT + "it is another where no step of power iteration is done")
know("take_along_axis take_along_axis_grad", lambda a: a["Index"].low < 0,
     "negative indices count from the end here; PaddlePaddle's kernel reads outside of the tensor")  # fmt: skip
know("triangular_solve_grad", lambda a: bool(a.get("unitriangular")), EXACT + "what it does not read of X has a gradient there")
know("cross_entropy2", always, "MatchX, which is for the gradient alone, is 0 there in a row that is ignored, and here 1")
know("edit_distance linear_chain_crf linear_chain_crf_grad", lambda a: any(levels(s, 2)(a) for s in ("Hyps", "Emission")), OUTERMOST)
know("warpctc_grad", levels("Logits", 2), OUTERMOST)
know("sequence_concat sequence_concat_grad", levels("X", 2), OUTERMOST)
know("sequence_unpad sequence_unpad_grad", levels("X", 1), "the sequences that X has above are kept here, and dropped there")
know("sequence_mask", levels("X", 1), "the sequences of X are kept here, and dropped there")
know("nce", levels("Input", 1), "the sequences of Input are kept here, and dropped there")
know("fill_constant", lambda a: len(str(a.get("str_value", ""))) > 15, "PaddlePaddle reads str_value as fp64, so that integers above 2^53 are rounded")
know("gather", lambda a: a.get("axis", 0) < 0, "PaddlePaddle's operator takes a negative axis for another one")
know("gather_grad", lambda a: a.get("axis", 0) != 0 or a.get("Axis") is not None, EXACT + "along another axis than 0 it is wrong there")
know("group_norm_grad", lambda a: a.get("Scale") is None, EXACT + "without Scale it is wrong there")
know("fusion_gru", lambda a: bool(a.get("origin_mode")), "PaddlePaddle's own kernel does not read origin_mode, where that of oneDNN does; here it counts")
know("linear_chain_crf", lambda a: a["Emission"].dims[-1] == 1, "of a single tag all is 0 but for rounding")
know("hard_swish hard_swish_grad", has("threshold", "scale", "offset"), IGNORED)
know("relu6 relu6_grad", has("threshold"), IGNORED)
know("svd svd_grad", lambda a: a["X"].dims[-1] > a["X"].dims[-2], "a pair of singular vectors might as well be their opposites, and there some are")
know("swish swish_grad", has("beta"), IGNORED)
know("layer_norm_grad", lambda a: 0 in a["X"].dims, "of no rows PaddlePaddle leaves the gradients of Scale and Bias as it finds their memory")
know("lookup_table_grad", lambda a: bool(a.get("is_sparse")) and "padding_idx" in a, "sparse gradients there have the rows of padding_idx; here they are zero")
know("lookup_table_v2 lookup_table_v2_grad", lambda a: a.get("padding_idx", -1) < -1,
     "a negative padding_idx other than -1 is none there; here it counts from the end (layers write it as a row)")  # fmt: skip
know("lstm_grad", always, "through Cell PaddlePaddle's gradient is nothing, and of a sequence without rows it reads the state of another; here both are exact")
know("mish_grad", has("threshold"), EXACT + "above the threshold it is 1")
know("momentum", lambda a: a.get("rescale_grad", 1.0) != 1.0, "PaddlePaddle's kernel for CPUs does not read rescale_grad; here it counts")
know("pool2d pool2d_grad pool3d pool3d_grad", lambda a: bool(a.get("adaptive")) and a.get("pooling_type") == "max",
     "PaddlePaddle computes adaptive maxima by max_pool2d_with_index or max_pool3d_with_index, and wrongly by this")  # fmt: skip
know("pool2d", lambda a: bool(a.get("ceil_mode")) and a.get("pooling_type") == "avg", OUTSIDE)
know("frobenius_norm reduce_amax reduce_amin reduce_max reduce_mean reduce_min reduce_prod", has("out_dtype"), "PaddlePaddle reads out_dtype of sums only")
know("reduce_prod_grad", lambda a: a["X"].data is not None, EXACT + "where there are zeros it divides by them there")
know("sequence_pool", lambda a: a.get("pooltype") == "MAX", "PaddlePaddle's kernel writes MaxIndex as int32, whatever its programs say of it")
know("sigmoid_cross_entropy_with_logits_grad", has("pos_weight"), EXACT + "it is that of another formula")
know("softmax_with_cross_entropy_grad", lambda a: bool(a.get("soft_label")), EXACT + "it takes it that the labels of a row sum to 1")
know("split", lambda a: a.get("axis", 0) < 0, "PaddlePaddle's operator takes a negative axis for another one (its Python writes it as a positive one)")
know("top_k_v2_grad", has("K"), EXACT + "it reads the attribute k, not K")

KNOWN_PROGRAMS = {
    "avg_pool1d": OUTSIDE,
    "avg_pool2d": OUTSIDE,
}

EXPORTED: dict[tuple[str, str], str] = {}
"""Side ("here", "there"), export of PaddlePaddle 3 -> why its results differ."""
