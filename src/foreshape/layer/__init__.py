"""Layers: functions that append ops to the default main program and return their results."""

from typing import TYPE_CHECKING, Any

from foreshape.core.hints import no_such_name

# The names of a file stand together, as in __all__.
# fmt: off
# isort: off
from foreshape.layer import detection
from foreshape.layer.arrays import array_length, array_read, array_write, create_array, tensor_array_to_tensor
from foreshape.layer.attention import QueryNorm, attention_mask, multi_head_attention
from foreshape.layer.cached_rows import AttentionCache, attention_cache
from foreshape.layer.augmentation import (
    cutout, gaussian_noise, mixup, random_affine, random_brightness, random_contrast, random_crop, random_flip, random_rotation, random_translation,
    random_zoom,
)
from foreshape.layer.basic import activate, bilinear, data, fc, mean
from foreshape.layer.argument_errors import close, hide_files
from foreshape.layer.called_elsewhere import CALLED_ELSEWHERE, FUNCTIONS_ELSEWHERE, METHODS_ELSEWHERE
from foreshape.layer.class_losses import cross_entropy, sigmoid_focal_loss, softmax_focal_loss, softmax_with_cross_entropy
from foreshape.layer.control import case, cond, switch_case, while_loop
from foreshape.layer.creation import assign, eye, fill_constant, fill_like, gaussian_random, linspace, logspace, randint, randperm, range, uniform_random
from foreshape.layer.decoding import gather_tree, viterbi_decode
from foreshape.layer.fourier_transforms import angle, as_complex, as_real, complex, conj, fft, frame, ifft, imag, irfft, overlap_add, real, rfft, stft
from foreshape.layer.functions import (
    celu, elu, gelu, gumbel_softmax, hard_shrink, hard_sigmoid, hard_swish, hard_tanh, leaky_relu, log_sigmoid, log_softmax, mish, prelu, relu, relu6,
    rrelu, selu, sigmoid, silu, soft_relu, softmax, softplus, softshrink, softsign, stanh, swish, tanh, tanh_shrink, thresholded_relu,
)
from foreshape.layer.images import (
    affine_grid, channel_shuffle, deform_conv2d, fold, grid_sample, im2sequence, lrn, max_pool2d_with_index, max_unpool2d, maxout, pixel_shuffle,
    pixel_unshuffle, psroi_pool, roi_align, roi_pool, spectral_norm, unfold,
)
from foreshape.layer.indexing import (
    broadcast_tensors, crop, diag, diag_embed, diagonal, fill_diagonal, index_add, index_put, index_sample, index_select, meshgrid, multiplex, nonzero,
    put_along_axis, repeat_interleave, scatter_nd, scatter_nd_add, set_value, setitem, shard_index, take_along_axis, temporal_shift, tril_indices,
    triu_indices, unique, unique_consecutive,
)
from foreshape.layer.initializer import Constant, Initializer, Kaiming, Normal, TruncatedNormal, Uniform, Xavier
from foreshape.layer.legacy import (
    array_to_lod_tensor, beam_search, beam_search_decode, chunk_eval, hierarchical_sigmoid, lod_rank_table, lod_tensor_to_array, max_sequence_len, nce,
    reorder_lod_tensor_by_rank, shrink_memory,
)
from foreshape.layer.linear_algebra import (
    addmm, cholesky, cholesky_solve, cross, det, dist, einsum, frobenius_norm, inverse, kron, matrix_power, multi_dot, mv, renorm, slogdet, solve, trace,
    triangular_solve,
)
from foreshape.layer.logic import (
    allclose, bitwise_and, bitwise_left_shift, bitwise_not, bitwise_or, bitwise_right_shift, bitwise_xor, equal, equal_all, greater_equal, greater_than,
    is_empty, isclose, less_equal, less_than, logical_and, logical_not, logical_or, logical_xor, masked_fill, not_equal, where,
)
from foreshape.layer.losses import (
    accuracy, bce_loss, bpr_loss, cos_sim, hinge_loss, huber_loss, kldiv_loss, label_smooth, log_loss, margin_rank_loss, mse_loss, nll_loss, rank_loss,
    sigmoid_cross_entropy_with_logits, smooth_l1, square_error_cost,
)
from foreshape.layer.manipulation import (
    concat, expand, expand_as, flatten, flip, gather, gather_nd, interpolate, masked_select, one_hot, pad, reshape, roll, scatter, shape, slice, split,
    squeeze, stack, strided_slice, tile, transpose, tril, triu, unsqueeze, unstack,
)
from foreshape.layer.math import (
    abs, add, cast, ceil, clip, cos, divide, erf, exp, floor, floor_divide, increment, is_finite, is_inf, is_nan, log, log1p, log2, log10, maximum,
    minimum, multiply, pow, reciprocal, remainder, round, rsqrt, scale, sign, sin, sqrt, square, subtract, sum,
)
from foreshape.layer.matrix_decompositions import eigh, eigvalsh, lstsq, lu, lu_unpack, matrix_rank, qr, svd
from foreshape.layer.measures import auc, precision_recall
from foreshape.layer.metric_losses import contrastive_loss, dice_loss, info_nce_loss, triplet_margin_loss
from foreshape.layer.normalization import batch_norm, dropout, group_norm, instance_norm, layer_norm, rms_norm
from foreshape.layer.parameter import ParamAttr, create_parameter
from foreshape.layer.positions import Rotary, position_numbers, rotary_positions, sinusoidal_positions
from foreshape.layer.printing import assert_true, print
from foreshape.layer.recompute_marks import recompute_scope
from foreshape.layer.recurrent import gru, lstm, simple_rnn
from foreshape.layer.reductions import (
    amax, amin, bmm, dot, grouped_matmul, logsumexp, matmul, norm, reduce_all, reduce_any, reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum,
)
from foreshape.layer.sampled import bernoulli, dirichlet, exponential, multinomial, poisson, sampling_id
from foreshape.layer.sequence import (
    row_conv, sequence_concat, sequence_conv, sequence_expand, sequence_expand_as, sequence_first_step, sequence_last_step, sequence_pool,
    sequence_reverse, sequence_softmax,
)
from foreshape.layer.sequence_losses import crf_decoding, ctc_greedy_decoder, edit_distance, linear_chain_crf, rnnt_loss, warpctc
from foreshape.layer.sequence_rows import (
    lod_append, lod_reset, sequence_attention, sequence_enumerate, sequence_erase, sequence_mask, sequence_pad, sequence_reshape, sequence_scatter,
    sequence_slice, sequence_topk_avg_pooling, sequence_unpad,
)
from foreshape.layer.sorting import (
    argmax, argmin, argsort, bincount, cummax, cummin, cumprod, cumsum, histogram, kthvalue, logcumsumexp, median, mode, nanmedian, searchsorted, topk,
)
from foreshape.layer.special import (
    acos, acosh, asin, asinh, atan, atan2, atanh, cosh, digamma, erfinv, expm1, fmax, fmin, frac, heaviside, i0, i0e, i1, i1e, lerp, lgamma, logit,
    nextafter, polygamma, sinh, tan, trunc,
)
from foreshape.layer.custom_rnn import rnn
from foreshape.layer.tables import embedding, embedding_bag, graph_send_recv, segment_pool
from foreshape.layer.training_only import in_training
from foreshape.layer.transformer import mlp, transformer_decoder, transformer_decoder_block, transformer_encoder, transformer_encoder_block
from foreshape.layer.vision import adaptive_pool2d, conv2d, conv2d_transpose, lp_pool2d, pool2d
from foreshape.layer.volumes import conv1d, conv3d, conv3d_transpose, max_pool3d_with_index, max_unpool3d, pool3d
from foreshape.layer.weights import weighted_mean
# isort: on
# fmt: on

if not TYPE_CHECKING:  # type checkers report a wrong name

    def __getattr__(name: str) -> Any:
        raise no_such_name(__name__, name, CALLED_ELSEWHERE, __all__, "layer")


__all__ = [
    "AttentionCache", "Constant", "Initializer", "Kaiming", "Normal", "ParamAttr", "QueryNorm", "Rotary", "TruncatedNormal", "Uniform", "Xavier", "abs",
    "accuracy", "acos", "acosh", "activate", "adaptive_pool2d", "add", "addmm", "affine_grid", "allclose", "amax", "amin", "angle", "argmax", "argmin",
    "argsort", "array_length", "array_read", "array_to_lod_tensor", "array_write", "as_complex", "as_real", "asin", "asinh", "assert_true", "assign",
    "atan", "atan2", "atanh", "attention_cache", "attention_mask", "auc", "batch_norm", "bce_loss", "beam_search", "beam_search_decode", "bernoulli",
    "bilinear", "bincount", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bmm", "bpr_loss",
    "broadcast_tensors", "case", "cast", "ceil", "celu", "channel_shuffle", "cholesky", "cholesky_solve", "chunk_eval", "clip", "complex", "concat", "cond",
    "conj", "contrastive_loss", "conv1d", "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose", "cos", "cos_sim", "cosh", "create_array",
    "create_parameter", "crf_decoding", "crop", "cross", "cross_entropy", "ctc_greedy_decoder", "cummax", "cummin", "cumprod", "cumsum", "cutout", "data",
    "deform_conv2d", "det", "detection", "diag", "diag_embed", "diagonal", "dice_loss", "digamma", "dirichlet", "dist", "divide", "dot", "dropout",
    "edit_distance", "eigh", "eigvalsh", "einsum", "elu", "embedding", "embedding_bag", "equal", "equal_all", "erf", "erfinv", "exp", "expand", "expand_as",
    "expm1", "exponential", "eye", "fc", "fft", "fill_constant", "fill_diagonal", "fill_like", "flatten", "flip", "floor", "floor_divide", "fmax", "fmin",
    "fold", "frac", "frame", "frobenius_norm", "gather", "gather_nd", "gather_tree", "gaussian_noise", "gaussian_random", "gelu", "graph_send_recv",
    "greater_equal", "greater_than", "grid_sample", "group_norm", "grouped_matmul", "gru", "gumbel_softmax", "hard_shrink", "hard_sigmoid", "hard_swish",
    "hard_tanh", "heaviside", "hierarchical_sigmoid", "hinge_loss", "histogram", "huber_loss", "i0", "i0e", "i1", "i1e", "ifft", "im2sequence", "imag",
    "in_training", "increment", "index_add", "index_put", "index_sample", "index_select", "info_nce_loss", "instance_norm", "interpolate", "inverse",
    "irfft", "is_empty", "is_finite", "is_inf", "is_nan", "isclose", "kldiv_loss", "kron", "kthvalue", "label_smooth", "layer_norm", "leaky_relu", "lerp",
    "less_equal", "less_than", "lgamma", "linear_chain_crf", "linspace", "lod_append", "lod_rank_table", "lod_reset", "lod_tensor_to_array", "log", "log1p",
    "log2", "log10", "log_loss", "log_sigmoid", "log_softmax", "logcumsumexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logit",
    "logspace", "logsumexp", "lp_pool2d", "lrn", "lstm", "lstsq", "lu", "lu_unpack", "margin_rank_loss", "masked_fill", "masked_select", "matmul",
    "matrix_power", "matrix_rank", "max_pool2d_with_index", "max_pool3d_with_index", "max_sequence_len", "max_unpool2d", "max_unpool3d", "maximum",
    "maxout", "mean", "median", "meshgrid", "minimum", "mish", "mixup", "mlp", "mode", "mse_loss", "multi_dot", "multi_head_attention", "multinomial",
    "multiplex", "multiply", "mv", "nanmedian", "nce", "nextafter", "nll_loss", "nonzero", "norm", "not_equal", "one_hot", "overlap_add", "pad",
    "pixel_shuffle", "pixel_unshuffle", "poisson", "polygamma", "pool2d", "pool3d", "position_numbers", "pow", "precision_recall", "prelu", "print",
    "psroi_pool", "put_along_axis", "qr", "randint", "random_affine", "random_brightness", "random_contrast", "random_crop", "random_flip",
    "random_rotation", "random_translation", "random_zoom", "randperm", "range", "rank_loss", "real", "reciprocal", "recompute_scope", "reduce_all",
    "reduce_any", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum", "relu", "relu6", "remainder", "renorm",
    "reorder_lod_tensor_by_rank", "repeat_interleave", "reshape", "rfft", "rms_norm", "rnn", "rnnt_loss", "roi_align", "roi_pool", "roll",
    "rotary_positions", "round", "row_conv", "rrelu", "rsqrt", "sampling_id", "scale", "scatter", "scatter_nd", "scatter_nd_add", "searchsorted",
    "segment_pool", "selu", "sequence_attention", "sequence_concat", "sequence_conv", "sequence_enumerate", "sequence_erase", "sequence_expand",
    "sequence_expand_as", "sequence_first_step", "sequence_last_step", "sequence_mask", "sequence_pad", "sequence_pool", "sequence_reshape",
    "sequence_reverse", "sequence_scatter", "sequence_slice", "sequence_softmax", "sequence_topk_avg_pooling", "sequence_unpad", "set_value", "setitem",
    "shape", "shard_index", "shrink_memory", "sigmoid", "sigmoid_cross_entropy_with_logits", "sigmoid_focal_loss", "sign", "silu", "simple_rnn", "sin",
    "sinh", "sinusoidal_positions", "slice", "slogdet", "smooth_l1", "soft_relu", "softmax", "softmax_focal_loss", "softmax_with_cross_entropy", "softplus",
    "softshrink", "softsign", "solve", "spectral_norm", "split", "sqrt", "square", "square_error_cost", "squeeze", "stack", "stanh", "stft",
    "strided_slice", "subtract", "sum", "svd", "swish", "switch_case", "take_along_axis", "tan", "tanh", "tanh_shrink", "temporal_shift",
    "tensor_array_to_tensor", "thresholded_relu", "tile", "topk", "trace", "transformer_decoder", "transformer_decoder_block", "transformer_encoder",
    "transformer_encoder_block", "transpose", "triangular_solve", "tril", "tril_indices", "triplet_margin_loss", "triu", "triu_indices", "trunc", "unfold",
    "uniform_random", "unique", "unique_consecutive", "unsqueeze", "unstack", "viterbi_decode", "warpctc", "weighted_mean", "where", "while_loop",
]  # fmt: skip

close(globals(), __all__)
hide_files(globals(), __all__)

# A user who expects a method known from other arrays on a variable is told the function.
_FUNCTIONS = {n: f"layer.{n}(x)" for n in __all__ if n[0].islower()} | {n: w for n, w in CALLED_ELSEWHERE.items() if n[0].islower()}
METHOD_HINTS: dict[str, str] = _FUNCTIONS | METHODS_ELSEWHERE
"""Names that users may expect as a variable's methods -> the code to write."""
FUNCTION_HINTS: dict[str, str] = _FUNCTIONS | FUNCTIONS_ELSEWHERE
"""Names of numpy's and torch's functions, some behind ``torch.``, -> the code to write."""
