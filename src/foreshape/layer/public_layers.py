"""The public names of `foreshape.layer` and their files: a list for type checkers and for the imports at first use, never run itself."""

# The names of a file stand together. Each is imported as itself: so type checkers, too, take it as one for users.
# fmt: off
# isort: off
from foreshape.layer import detection as detection
from foreshape.layer.arrays import (
    array_length as array_length, array_read as array_read, array_write as array_write,
    create_array as create_array,
    tensor_array_to_tensor as tensor_array_to_tensor,
)
from foreshape.layer.attention import QueryNorm as QueryNorm, attention_mask as attention_mask, multi_head_attention as multi_head_attention
from foreshape.layer.cached_rows import AttentionCache as AttentionCache, attention_cache as attention_cache
from foreshape.layer.augmentation import (
    cutout as cutout, gaussian_noise as gaussian_noise, mixup as mixup, random_affine as random_affine, random_brightness as random_brightness,
    random_contrast as random_contrast, random_crop as random_crop, random_flip as random_flip, random_rotation as random_rotation,
    random_translation as random_translation, random_zoom as random_zoom,
)
from foreshape.layer.basic import activate as activate, bilinear as bilinear, data as data, fc as fc, mean as mean
from foreshape.layer.class_losses import (
    cross_entropy as cross_entropy, sigmoid_focal_loss as sigmoid_focal_loss, softmax_focal_loss as softmax_focal_loss,
    softmax_with_cross_entropy as softmax_with_cross_entropy,
)
from foreshape.layer.control import case as case, cond as cond, switch_case as switch_case, while_loop as while_loop
from foreshape.layer.creation import (
    assign as assign, eye as eye, fill_constant as fill_constant, fill_like as fill_like, gaussian_random as gaussian_random, linspace as linspace,
    logspace as logspace, randint as randint, randperm as randperm, range as range, uniform_random as uniform_random,
)
from foreshape.layer.decoding import (
    gather_tree as gather_tree, viterbi_decode as viterbi_decode,
)
from foreshape.layer.fourier_transforms import (
    angle as angle, as_complex as as_complex, as_real as as_real, complex as complex, conj as conj, fft as fft, frame as frame, ifft as ifft,
    imag as imag, irfft as irfft, overlap_add as overlap_add, real as real, rfft as rfft, stft as stft,
)
from foreshape.layer.functions import (
    celu as celu, elu as elu, gelu as gelu, gumbel_softmax as gumbel_softmax, hard_shrink as hard_shrink, hard_sigmoid as hard_sigmoid,
    hard_swish as hard_swish, hard_tanh as hard_tanh, leaky_relu as leaky_relu, log_sigmoid as log_sigmoid, log_softmax as log_softmax, mish as mish,
    prelu as prelu, relu as relu, relu6 as relu6, rrelu as rrelu, selu as selu, sigmoid as sigmoid, silu as silu, soft_relu as soft_relu,
    softmax as softmax, softplus as softplus, softshrink as softshrink, softsign as softsign, stanh as stanh, swish as swish, tanh as tanh,
    tanh_shrink as tanh_shrink, thresholded_relu as thresholded_relu,
)
from foreshape.layer.images import (
    affine_grid as affine_grid, channel_shuffle as channel_shuffle, deform_conv2d as deform_conv2d, fold as fold, grid_sample as grid_sample,
    im2sequence as im2sequence, lrn as lrn, max_pool2d_with_index as max_pool2d_with_index, max_unpool2d as max_unpool2d, maxout as maxout,
    pixel_shuffle as pixel_shuffle, pixel_unshuffle as pixel_unshuffle, psroi_pool as psroi_pool, roi_align as roi_align, roi_pool as roi_pool,
    spectral_norm as spectral_norm, unfold as unfold,
)
from foreshape.layer.indexing import (
    broadcast_tensors as broadcast_tensors, crop as crop, diag as diag, diag_embed as diag_embed, diagonal as diagonal,
    fill_diagonal as fill_diagonal, index_add as index_add, index_put as index_put, index_sample as index_sample, index_select as index_select,
    meshgrid as meshgrid, multiplex as multiplex, nonzero as nonzero, put_along_axis as put_along_axis, repeat_interleave as repeat_interleave,
    scatter_nd as scatter_nd, scatter_nd_add as scatter_nd_add, set_value as set_value, setitem as setitem, shard_index as shard_index,
    take_along_axis as take_along_axis, temporal_shift as temporal_shift, tril_indices as tril_indices, triu_indices as triu_indices,
    unique as unique, unique_consecutive as unique_consecutive,
)
from foreshape.layer.initializer import (
    Constant as Constant, Initializer as Initializer, Kaiming as Kaiming, Normal as Normal, TruncatedNormal as TruncatedNormal, Uniform as Uniform,
    Xavier as Xavier,
)
from foreshape.layer.legacy import (
    array_to_lod_tensor as array_to_lod_tensor, beam_search as beam_search, beam_search_decode as beam_search_decode, chunk_eval as chunk_eval,
    hierarchical_sigmoid as hierarchical_sigmoid, lod_rank_table as lod_rank_table, lod_tensor_to_array as lod_tensor_to_array,
    max_sequence_len as max_sequence_len,
    nce as nce, reorder_lod_tensor_by_rank as reorder_lod_tensor_by_rank, shrink_memory as shrink_memory,
)
from foreshape.layer.linear_algebra import (
    addmm as addmm, cholesky as cholesky, cholesky_solve as cholesky_solve, cross as cross, det as det, dist as dist, einsum as einsum,
    frobenius_norm as frobenius_norm, inverse as inverse, kron as kron, matrix_power as matrix_power, multi_dot as multi_dot, mv as mv,
    renorm as renorm, slogdet as slogdet, solve as solve, trace as trace, triangular_solve as triangular_solve,
)
from foreshape.layer.logic import (
    allclose as allclose, bitwise_and as bitwise_and, bitwise_left_shift as bitwise_left_shift, bitwise_not as bitwise_not, bitwise_or as bitwise_or,
    bitwise_right_shift as bitwise_right_shift, bitwise_xor as bitwise_xor, equal as equal, equal_all as equal_all, greater_equal as greater_equal,
    greater_than as greater_than, is_empty as is_empty, isclose as isclose, less_equal as less_equal, less_than as less_than,
    logical_and as logical_and, logical_not as logical_not, logical_or as logical_or, logical_xor as logical_xor, masked_fill as masked_fill,
    not_equal as not_equal, where as where,
)
from foreshape.layer.losses import (
    accuracy as accuracy, bce_loss as bce_loss, bpr_loss as bpr_loss, cos_sim as cos_sim, hinge_loss as hinge_loss, huber_loss as huber_loss,
    kldiv_loss as kldiv_loss, label_smooth as label_smooth, log_loss as log_loss, margin_rank_loss as margin_rank_loss, mse_loss as mse_loss,
    nll_loss as nll_loss, rank_loss as rank_loss, sigmoid_cross_entropy_with_logits as sigmoid_cross_entropy_with_logits, smooth_l1 as smooth_l1,
    square_error_cost as square_error_cost,
)
from foreshape.layer.manipulation import (
    concat as concat, expand as expand, expand_as as expand_as, flatten as flatten, flip as flip, gather as gather, gather_nd as gather_nd,
    interpolate as interpolate, masked_select as masked_select, one_hot as one_hot, pad as pad, reshape as reshape, roll as roll, scatter as scatter,
    shape as shape, slice as slice, split as split, squeeze as squeeze, stack as stack, strided_slice as strided_slice, tile as tile,
    transpose as transpose, tril as tril, triu as triu, unsqueeze as unsqueeze, unstack as unstack,
)
from foreshape.layer.math import (
    abs as abs, add as add, cast as cast, ceil as ceil, clip as clip, cos as cos, divide as divide, erf as erf, exp as exp, floor as floor,
    floor_divide as floor_divide, increment as increment, is_finite as is_finite, is_inf as is_inf, is_nan as is_nan, log as log, log1p as log1p,
    log2 as log2, log10 as log10, maximum as maximum, minimum as minimum, multiply as multiply, pow as pow, reciprocal as reciprocal,
    remainder as remainder, round as round, rsqrt as rsqrt, scale as scale, sign as sign, sin as sin, sqrt as sqrt, square as square,
    subtract as subtract, sum as sum,
)
from foreshape.layer.matrix_decompositions import (
    eigh as eigh, eigvalsh as eigvalsh, lstsq as lstsq, lu as lu, lu_unpack as lu_unpack, matrix_rank as matrix_rank, qr as qr, svd as svd,
)
from foreshape.layer.measures import auc as auc, precision_recall as precision_recall
from foreshape.layer.metric_losses import (
    contrastive_loss as contrastive_loss, dice_loss as dice_loss, info_nce_loss as info_nce_loss, triplet_margin_loss as triplet_margin_loss,
)
from foreshape.layer.normalization import (
    batch_norm as batch_norm, dropout as dropout, group_norm as group_norm, instance_norm as instance_norm, layer_norm as layer_norm,
    rms_norm as rms_norm,
)
from foreshape.layer.parameter import ParamAttr as ParamAttr, create_parameter as create_parameter
from foreshape.layer.positions import (
    Rotary as Rotary, position_numbers as position_numbers, rotary_positions as rotary_positions, sinusoidal_positions as sinusoidal_positions,
)
from foreshape.layer.printing import assert_true as assert_true, print as print
from foreshape.layer.recompute_marks import recompute_scope as recompute_scope
from foreshape.layer.recurrent import gru as gru, lstm as lstm, simple_rnn as simple_rnn
from foreshape.layer.reductions import (
    amax as amax, amin as amin, bmm as bmm, dot as dot, grouped_matmul as grouped_matmul, logsumexp as logsumexp, matmul as matmul, norm as norm,
    reduce_all as reduce_all, reduce_any as reduce_any, reduce_max as reduce_max, reduce_mean as reduce_mean, reduce_min as reduce_min,
    reduce_prod as reduce_prod, reduce_sum as reduce_sum,
)
from foreshape.layer.sampled import (
    bernoulli as bernoulli, dirichlet as dirichlet, exponential as exponential,
    multinomial as multinomial, poisson as poisson, sampling_id as sampling_id,
)
from foreshape.layer.sequence import (
    row_conv as row_conv, sequence_concat as sequence_concat, sequence_conv as sequence_conv, sequence_expand as sequence_expand,
    sequence_expand_as as sequence_expand_as, sequence_first_step as sequence_first_step, sequence_last_step as sequence_last_step,
    sequence_pool as sequence_pool, sequence_reverse as sequence_reverse, sequence_softmax as sequence_softmax,
)
from foreshape.layer.sequence_losses import (
    crf_decoding as crf_decoding, ctc_greedy_decoder as ctc_greedy_decoder, edit_distance as edit_distance,
    linear_chain_crf as linear_chain_crf, rnnt_loss as rnnt_loss, warpctc as warpctc,
)
from foreshape.layer.sequence_rows import (
    lod_append as lod_append, lod_reset as lod_reset, sequence_attention as sequence_attention, sequence_enumerate as sequence_enumerate,
    sequence_erase as sequence_erase, sequence_mask as sequence_mask, sequence_pad as sequence_pad, sequence_reshape as sequence_reshape,
    sequence_scatter as sequence_scatter, sequence_slice as sequence_slice, sequence_topk_avg_pooling as sequence_topk_avg_pooling,
    sequence_unpad as sequence_unpad,
)
from foreshape.layer.sorting import (
    argmax as argmax, argmin as argmin, argsort as argsort, bincount as bincount, cummax as cummax, cummin as cummin, cumprod as cumprod,
    cumsum as cumsum, histogram as histogram, kthvalue as kthvalue, logcumsumexp as logcumsumexp, median as median, mode as mode,
    nanmedian as nanmedian, searchsorted as searchsorted, topk as topk,
)
from foreshape.layer.special import (
    acos as acos, acosh as acosh, asin as asin, asinh as asinh, atan as atan, atan2 as atan2, atanh as atanh, cosh as cosh, digamma as digamma,
    erfinv as erfinv, expm1 as expm1, fmax as fmax, fmin as fmin, frac as frac, heaviside as heaviside, i0 as i0, i0e as i0e, i1 as i1, i1e as i1e,
    lerp as lerp, lgamma as lgamma, logit as logit, nextafter as nextafter, polygamma as polygamma, sinh as sinh, tan as tan, trunc as trunc,
)
from foreshape.layer.custom_rnn import rnn as rnn
from foreshape.layer.tables import (
    embedding as embedding, embedding_bag as embedding_bag, graph_send_recv as graph_send_recv, segment_pool as segment_pool,
)
from foreshape.layer.training_only import in_training as in_training
from foreshape.layer.transformer import (
    mlp as mlp, transformer_decoder as transformer_decoder, transformer_decoder_block as transformer_decoder_block,
    transformer_encoder as transformer_encoder, transformer_encoder_block as transformer_encoder_block,
)
from foreshape.layer.vision import (
    adaptive_pool2d as adaptive_pool2d, conv2d as conv2d, conv2d_transpose as conv2d_transpose, lp_pool2d as lp_pool2d, pool2d as pool2d,
)
from foreshape.layer.volumes import (
    conv1d as conv1d, conv3d as conv3d, conv3d_transpose as conv3d_transpose, max_pool3d_with_index as max_pool3d_with_index,
    max_unpool3d as max_unpool3d, pool3d as pool3d,
)
from foreshape.layer.weights import weighted_mean as weighted_mean
# isort: on
# fmt: on
