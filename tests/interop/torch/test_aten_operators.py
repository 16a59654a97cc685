"""Each function of import of ATen's operators: many small expressions in one module, beside torch itself, with the batch open."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.aten_functions import complex_parts, diagonals, masked, masked_rows, put_by_places, put_in_place, sparse_products, spectra
from torch import Tensor, nn

from foreshape.interop.torch.torch_model import from_torch

W = torch.linspace(-1, 1, 20).reshape(5, 4)


CASES: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "cplx_einsum": lambda x, i, m: torch.view_as_real(
        torch.einsum("bij,jk,bk->bi", torch.complex(x, x + 1), torch.complex(W.T[:3].repeat(2, 1), W.T[1:].repeat(2, 1)), torch.fft.rfft(x[:, 0], n=8))
    ),
    "cplx_parts": lambda x, i, m: complex_parts(x),
    "cplx_spectra": lambda x, i, m: spectra(x, torch.complex(torch.arange(24.0).reshape(4, 2, 3), torch.ones(4, 2, 3))),
    "cplx_more": lambda x, i, m: torch.view_as_real(
        torch.where(m, torch.complex(x, x + 1), 2j).mean(1).cumsum(-1) + F.pad(torch.complex(x, x)[:, 0].reciprocal() ** 3, (1, 2))[:, :6]
    ),
    "fill_diagonal": lambda x, i, m: diagonals(x),
    "median_ties": lambda x, i, m: (x.round().median(1), (x * 2).round().median(-1, keepdim=True), i.median(1), x.round().median(0), x.flatten().median(0)),
    "nanmedian_ties": lambda x, i, m: [x.round().where(x < 0.5, float("nan")).nanmedian(d) for d in (0, 1, 2)] + [x.where(x < 1, float("nan")).median(2)],
    "all_true": lambda x, i, m: (torch._is_all_true(m), torch._is_any_true(m), torch._is_all_true(m | ~m)),
    "sparse": lambda x, i, m: sparse_products(x),
    "addmm": lambda x, i, m: torch.addmm(torch.ones(4), x[:, :, 0], torch.ones(4, 4), beta=2, alpha=3),
    "angle": lambda x, i, m: torch.angle(x),
    "angle_c": lambda x, i, m: torch.angle(torch.complex(x, x + 1)),
    "polar": lambda x, i, m: torch.view_as_real(torch.polar(x.abs(), x)),
    "cplx": lambda x, i, m: torch.view_as_real(torch.complex(x, x) * torch.complex(x, -x)),
    "cplx_square": lambda x, i, m: torch.view_as_real(torch.complex(x, x + 1) ** 2),
    "cplx_abs": lambda x, i, m: torch.complex(x, x).abs(),
    "cplx_mulscalar": lambda x, i, m: torch.view_as_real(torch.complex(x, x) * 2.0 + 1.0 - torch.complex(x, x) / 3),
    "cplx_reim": lambda x, i, m: torch.fft.fft(x).real + torch.fft.fft(x).imag,
    "fft2": lambda x, i, m: torch.fft.fft2(x).real,
    "ifft": lambda x, i, m: torch.fft.ifft(torch.fft.fft(x)).real,
    "rfft": lambda x, i, m: torch.fft.irfft(torch.fft.rfft(x), n=6),
    "rfft2": lambda x, i, m: torch.fft.irfft2(torch.fft.rfft2(x, norm="ortho"), s=(4, 6), norm="ortho"),
    "rfftn": lambda x, i, m: torch.fft.rfft(x, n=8, dim=1).abs(),
    "fftshift": lambda x, i, m: torch.fft.fftshift(x),
    "viewc": lambda x, i, m: torch.view_as_complex(x.reshape(-1, 4, 3, 2).contiguous()).abs(),
    "conj": lambda x, i, m: (torch.complex(x, x + 1).conj()).imag,
    "stft": lambda x, i, m: torch.stft(x.reshape(-1, 24), 8, 4, window=torch.hann_window(8), return_complex=True).abs(),
    "logit": lambda x, i, m: torch.logit(torch.sigmoid(x), eps=1e-3),
    "logit2": lambda x, i, m: torch.logit(torch.sigmoid(x)),
    "hypot": lambda x, i, m: torch.hypot(x, x + 1),
    "diff": lambda x, i, m: torch.diff(x),
    "cdist": lambda x, i, m: torch.cdist(x, x + 1),
    "cdist1": lambda x, i, m: torch.cdist(x, x + 1, p=1.0),
    "pdist": lambda x, i, m: F.pairwise_distance(x, x + 1),
    "cosine": lambda x, i, m: F.cosine_similarity(x, x + 1, dim=-1),
    "cross": lambda x, i, m: torch.cross(x[:, :, :3], x[:, :, 3:], dim=-1),
    "linalg_cross": lambda x, i, m: torch.linalg.cross(x[:, :3], x[:, 1:4], dim=1),
    "index_copy": lambda x, i, m: x.index_copy(1, torch.tensor([2, 0]), torch.zeros(1, 2, 6).expand(x.shape[0], 2, 6)),
    "index_fill": lambda x, i, m: x.index_fill(1, torch.tensor([2, 0]), 3.0),
    "index_add": lambda x, i, m: x.index_add(2, torch.tensor([2, 0, 2]), x[:, :, :3], alpha=2),
    "index_put_none": lambda x, i, m: put_in_place(x),
    "index_put_mid": lambda x, i, m: put_by_places(x),
    "index_put_acc": lambda x, i, m: torch.zeros(4).index_put((i[:, 0],), x[:, 0, 0], accumulate=True),
    "setitem_mask": lambda x, i, m: masked(x, m),
    "setitem_mask_rows": lambda x, i, m: masked_rows(x, m),
    "masked_scatter": lambda x, i, m: x.masked_scatter(m, torch.arange(1000.0)),
    "scatter": lambda x, i, m: torch.zeros(x.shape[0], 4).scatter(1, i, x[:, :, 0]),
    "scatter_v": lambda x, i, m: torch.zeros(x.shape[0], 4).scatter(1, i, 2.0),
    "scatter_reduce": lambda x, i, m: torch.zeros(x.shape[0], 4).scatter_reduce(1, i, x[:, :, 0], "amax", include_self=False),
    "scatter_red_mean": lambda x, i, m: torch.ones(x.shape[0], 4).scatter_reduce(1, i, x[:, :, 0], "mean", include_self=True),
    "scatter_add": lambda x, i, m: torch.zeros(x.shape[0], 4).scatter_add(1, i, x[:, :, 0]),
    "index_reduce": lambda x, i, m: x.index_reduce(1, torch.tensor([0, 2, 1, 1]), x + 1, "amax"),
    "take": lambda x, i, m: torch.take(x, i),
    "put": lambda x, i, m: x.put(i, x[:, :, 0]),
    "index2": lambda x, i, m: x[:, i[0]],
    "index3": lambda x, i, m: x[:, [0, 1], [2, 3]],
    "index4": lambda x, i, m: x[torch.arange(x.shape[0]), :, i[:, 0]],
    "hist": lambda x, i, m: torch.histc(x.detach(), 5, -2, 2),
    "lstm_cell": lambda x, i, m: torch.lstm_cell(
        x[:, 0, :4],
        [torch.zeros(1, 3).expand(x.shape[0], 3), torch.zeros(1, 3).expand(x.shape[0], 3)],
        torch.ones(12, 4) * 0.1,
        torch.ones(12, 3) * 0.2,
        torch.arange(12.0) * 0.1,
        torch.zeros(12),
    ),
    "gru_cell": lambda x, i, m: torch.gru_cell(
        x[:, 0, :4], x[:, 1, :3], torch.ones(9, 4) * 0.1, torch.ones(9, 3) * 0.2, torch.arange(9.0) * 0.1, torch.zeros(9) + 0.1
    ),
    "rnn_cell": lambda x, i, m: torch.rnn_tanh_cell(
        x[:, 0, :4], x[:, 1, :3], torch.ones(3, 4) * 0.1, torch.ones(3, 3) * 0.2, torch.arange(3.0) * 0.1, torch.zeros(3)
    ),
    "bce_pos": lambda x, i, m: F.binary_cross_entropy_with_logits(x, torch.sigmoid(x * 2), pos_weight=torch.arange(1.0, 7.0)),
    "bce_w": lambda x, i, m: F.binary_cross_entropy(torch.sigmoid(x), torch.sigmoid(x * 2), weight=torch.arange(1.0, 7.0)),
    "ce_w": lambda x, i, m: F.cross_entropy(x[:, :, 0], i[:, 0], weight=torch.arange(1.0, 5.0), label_smoothing=0.1),
    "ce_none": lambda x, i, m: F.cross_entropy(x, i[:, :1].expand(-1, 6), reduction="none", label_smoothing=0.1),
    "ce_sum": lambda x, i, m: F.cross_entropy(x[:, :, 0], i[:, 0], reduction="sum", weight=torch.arange(1.0, 5.0), ignore_index=1),
    "ce_soft": lambda x, i, m: F.cross_entropy(x[:, :, 0], x[:, :, 1].softmax(-1), label_smoothing=0.1, weight=torch.arange(1.0, 5.0)),
    "nll2d": lambda x, i, m: F.nll_loss(x[:, :, :2, None].log_softmax(1), i[:, :2, None]),
    "margin": lambda x, i, m: F.margin_ranking_loss(x, x * 0.5, x.sign(), margin=0.3),
    "hinge": lambda x, i, m: F.hinge_embedding_loss(x, (x > 0) * 2.0 - 1),
    "soft_margin": lambda x, i, m: F.soft_margin_loss(x, (x > 0) * 2.0 - 1),
    "multi_margin": lambda x, i, m: F.multi_margin_loss(x[:, :, 0], i[:, 0]),
    "multilabel": lambda x, i, m: F.multilabel_soft_margin_loss(x[:, :, 0], (x[:, :, 1] > 0) * 1.0),
    "triplet": lambda x, i, m: F.triplet_margin_loss(x, x + 1, x * 2),
    "cos_emb": lambda x, i, m: F.cosine_embedding_loss(x[:, 0], x[:, 1], (x[:, 2, 0] > 0) * 2 - 1),
    "poisson": lambda x, i, m: F.poisson_nll_loss(x, x.abs(), full=True),
    "kl": lambda x, i, m: F.kl_div(x.log_softmax(-1), x.flip(0).softmax(-1), reduction="batchmean"),
    "huber": lambda x, i, m: F.huber_loss(x, x * 2, delta=0.7) + F.smooth_l1_loss(x, x * 2, beta=0.3),
    "dilated_pool": lambda x, i, m: F.max_pool2d(x[:, None], 2, 1, dilation=2),
    "dilated_pool1": lambda x, i, m: F.max_pool1d(x, 2, 1, dilation=2),
    "ceil_pool": lambda x, i, m: F.max_pool2d(x[:, None], 3, 2, 1, ceil_mode=True),
    "div_pool": lambda x, i, m: F.avg_pool2d(x[:, None], 2, 1, divisor_override=3),
    "pool_idx": lambda x, i, m: F.max_pool2d(x[:, None], 2, 2, return_indices=True)[1],
    "pool1_idx": lambda x, i, m: F.max_pool1d(x, 2, 2, return_indices=True)[1],
    "unpool": lambda x, i, m: F.max_unpool2d(*F.max_pool2d(x[:, None], 2, 2, return_indices=True), 2, 2),
    "ad_max": lambda x, i, m: F.adaptive_max_pool2d(x[:, None], (2, 3)),
    "ad_avg3": lambda x, i, m: F.adaptive_avg_pool2d(x[:, None], (3, 4)),
    "ad_none": lambda x, i, m: F.adaptive_avg_pool2d(x[:, None], (None, 4)),
    "ad_places": lambda x, i, m: (F.adaptive_max_pool2d(x[:, None], (2, 3), return_indices=True), F.adaptive_max_pool1d(x, 4, return_indices=True)),
    "ad_max1": lambda x, i, m: F.adaptive_max_pool1d(x, 2),
    "lp_pool": lambda x, i, m: F.lp_pool2d(x[:, None], 2.0, 2),
    "up_bicubic": lambda x, i, m: F.interpolate(x[:, None], scale_factor=2, mode="bicubic"),
    "up_bil": lambda x, i, m: F.interpolate(x[:, None], size=(5, 9), mode="bilinear", align_corners=True),
    "up_one": lambda x, i, m: [F.interpolate(x[:, None], size=(n, 1), mode=k) for k in ("bilinear", "bicubic") for n in (1, 3)],
    "up_aa": lambda x, i, m: [F.interpolate(x[:, None], size=(n, n), mode=k, antialias=True) for k in ("bilinear", "bicubic") for n in (1, 3, 9)],
    "up_near": lambda x, i, m: F.interpolate(x[:, None], size=(5, 9), mode="nearest"),
    "up_exact": lambda x, i, m: F.interpolate(x[:, None], size=(5, 9), mode="nearest-exact"),
    "up_exact_by": lambda x, i, m: F.interpolate(x[:, None], scale_factor=1.7, mode="nearest-exact"),
    "up_lin": lambda x, i, m: F.interpolate(x, scale_factor=1.5, mode="linear"),
    "up_tri": lambda x, i, m: F.interpolate(x[:, None, None], size=(2, 5, 9), mode="trilinear"),
    "up_near3": lambda x, i, m: F.interpolate(x[:, None, None], size=(2, 5, 9), mode="nearest"),
    "up_area": lambda x, i, m: F.interpolate(x[:, None], size=(2, 3), mode="area"),
    "pads": lambda x, i, m: F.pad(x, (1, 2), mode="reflect"),
    "pad_circ": lambda x, i, m: F.pad(x, (1, 2), mode="circular"),
    "pad_circ2": lambda x, i, m: F.pad(x[:, None], (1, 2, 1, 0), mode="circular"),
    "pad_rep": lambda x, i, m: F.pad(x[:, None], (1, 2, 1, 0), mode="replicate"),
    "pad_neg": lambda x, i, m: F.pad(x, (-1, 2, 0, 1)),
    "grid_bic": lambda x, i, m: F.grid_sample(x[:, None], torch.zeros(1, 2, 2, 2).expand(x.shape[0], 2, 2, 2) + 0.3, mode="bicubic", align_corners=False),
    "affine": lambda x, i, m: F.affine_grid(x[:, :2, :3], (x.shape[0], 1, 3, 4), align_corners=False),
    "embbag2": lambda x, i, m: F.embedding_bag(i, W, mode="mean"),
    "embbag_off": lambda x, i, m: F.embedding_bag(torch.tensor([1, 2, 3, 1]), W, torch.tensor([0, 2]), mode="sum"),
    "embbag_last": lambda x, i, m: F.embedding_bag(torch.tensor([1, 2, 3, 1]), W, torch.tensor([0, 2, 4]), mode="mean", include_last_offset=True),
    "embbag_pad": lambda x, i, m: F.embedding_bag(i, W, mode="sum", padding_idx=1),
    "embbag_max_empty": lambda x, i, m: F.embedding_bag(torch.tensor([1, 2, 3, 1]), W, torch.tensor([0, 2, 2]), mode="max"),
    "embbag_w": lambda x, i, m: F.embedding_bag(i, W, mode="sum", per_sample_weights=x[:, :, 0]),
    "emb_max": lambda x, i, m: F.embedding(i, W, padding_idx=1),
    "bn_nostat": lambda x, i, m: F.batch_norm(x, None, None, training=True),
    "inst": lambda x, i, m: F.instance_norm(x),
    "gn": lambda x, i, m: F.group_norm(x, 2),
    "gn2": lambda x, i, m: F.group_norm(x[:, :, 0], 2, torch.ones(4), torch.ones(4)),
    "rms": lambda x, i, m: F.rms_norm(x, (6,)),
    "ln2": lambda x, i, m: F.layer_norm(x, (4, 6), torch.ones(4, 6), torch.ones(4, 6)),
    "lrn": lambda x, i, m: F.local_response_norm(x, 2),
    "lrn2": lambda x, i, m: F.local_response_norm(x[:, None], 3),
    "normalize": lambda x, i, m: F.normalize(x, dim=1),
    "norm3": lambda x, i, m: x.norm(3, dim=1) + torch.linalg.norm(x, dim=1),
    "mnorm": lambda x, i, m: torch.linalg.matrix_norm(x),
    "sdpa": lambda x, i, m: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], is_causal=True),
    "sdpa_mask": lambda x, i, m: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=torch.tril(torch.ones(4, 4, dtype=torch.bool))),
    "sdpa_gqa": lambda x, i, m: F.scaled_dot_product_attention(
        x[:, None].expand(-1, 4, -1, -1), x[:, None].expand(-1, 2, -1, -1), x[:, None].expand(-1, 2, -1, -1), enable_gqa=True
    ),
    "conv_same": lambda x, i, m: F.conv1d(x, torch.ones(3, 4, 2), padding="same"),
    "conv_t": lambda x, i, m: F.conv_transpose1d(x, torch.ones(4, 3, 3) * 0.1, stride=2, padding=1, output_padding=1),
    "conv_t2": lambda x, i, m: F.conv_transpose2d(x[:, None], torch.ones(1, 3, 3, 2) * 0.1, stride=2, padding=1, output_padding=1),
    "conv_t3": lambda x, i, m: F.conv_transpose3d(x[:, None, None], torch.ones(1, 3, 2, 3, 2) * 0.1, stride=2, output_padding=1),
    "conv3": lambda x, i, m: F.conv3d(x[:, None, None], torch.ones(2, 1, 1, 3, 2) * 0.1),
    "bilinear": lambda x, i, m: F.bilinear(x[:, 0], x[:, 1], torch.ones(3, 6, 6)),
    "fold": lambda x, i, m: F.fold(F.unfold(x[:, None], 2), (4, 6), 2),
    "unfold1": lambda x, i, m: x.unfold(2, 3, 2),
    "weight_norm": lambda x, i, m: torch._weight_norm(x[0], torch.ones(4, 1), 0),
    "glu": lambda x, i, m: F.glu(x),
    "rrelu": lambda x, i, m: F.rrelu(x),
    "hardt": lambda x, i, m: (
        F.hardtanh(x, -0.3, 0.4) + F.hardswish(x) + F.hardsigmoid(x) + F.softshrink(x) + F.hardshrink(x) + F.tanhshrink(x) + F.threshold(x, 0.1, 20)
    ),
    "prelu": lambda x, i, m: F.prelu(x, torch.arange(4.0) * 0.1),
    "logsig": lambda x, i, m: F.logsigmoid(x) + F.softplus(x, 2, 1) + F.celu(x, 1.3) + F.elu(x, 0.5) + F.selu(x) + F.mish(x),
    "pows": lambda x, i, m: x.abs() ** 1.5 + 2.0**x + x**3 + x.abs() ** x + (i[:, :, None] ** 2),
    "ints": lambda x, i, m: (
        (i * 3 + 1) // 2 % 3 - i.clamp(1, 2) + i.sign() + torch.div(i - 3, 2, rounding_mode="trunc") + i.neg() + i.abs() + torch.fmod(i - 3, 2)
    ),
    "ints_big": lambda x, i, m: i + 2**40 + i * 123456789,
    "intdiv": lambda x, i, m: i / 3 + torch.floor_divide(x[:, :, 0], 0.3) + torch.remainder(x[:, :, 0], -0.4) + torch.fmod(x[:, :, 0], 0.4),
    "bits": lambda x, i, m: (i & 1) | (i << 2) ^ (i >> 1) ^ ~i,
    "lshift": lambda x, i, m: torch.bitwise_left_shift(i, 2),
    "bool_ops": lambda x, i, m: (m & (x > 0)) | ~m ^ (x < 1),
    "boolsum": lambda x, i, m: m.sum(1) + m.sum(),
    "boolcum": lambda x, i, m: m.cumsum(1),
    "bool_any": lambda x, i, m: m.any(1) | m.all(1),
    "minmax": lambda x, i, m: torch.aminmax(x, dim=1),
    "maxdim": lambda x, i, m: x.max(1),
    "median": lambda x, i, m: x.median(1),
    "median_all": lambda x, i, m: x.median(),
    "mode": lambda x, i, m: i.mode(1)[0],
    "quantile": lambda x, i, m: x.quantile(0.3, dim=1),
    "nanmean": lambda x, i, m: x.nanmean() + x.nansum(),
    "nan_to_num": lambda x, i, m: torch.nan_to_num(x / 0.0, 1.0, 2.0, 3.0),
    "kth": lambda x, i, m: x.kthvalue(2, dim=1),
    "topk": lambda x, i, m: x.topk(3, dim=1),
    "sort": lambda x, i, m: x.sort(1, descending=True),
    "msort": lambda x, i, m: x.msort(),
    "sort_st": lambda x, i, m: i.sort(dim=-1, stable=True),
    "argsort": lambda x, i, m: x.argsort(dim=1, descending=True),
    "cummax": lambda x, i, m: x.cummax(1),
    "cumprod": lambda x, i, m: x.cumprod(1) + x.logcumsumexp(1),
    "lse": lambda x, i, m: x.logsumexp((1, 2)),
    "var": lambda x, i, m: x.var(1) + x.std(1) + x.var(1, unbiased=False),
    "varb": lambda x, i, m: torch.var_mean(x, dim=0),
    "prod": lambda x, i, m: x.prod(1).sum() + i.prod() + x.prod(),
    "count_nz": lambda x, i, m: torch.count_nonzero(i, dim=1),
    "renorm": lambda x, i, m: x.renorm(2, 1, 0.5),
    "isclose": lambda x, i, m: torch.isclose(x, x + 1e-9),
    "isin": lambda x, i, m: torch.isin(i, torch.tensor([1, 2])),
    "bucket": lambda x, i, m: torch.bucketize(x, torch.tensor([-1.0, 0, 1])),
    "search": lambda x, i, m: torch.searchsorted(torch.tensor([-1.0, 0, 1]), x, right=True),
    "unique": lambda x, i, m: torch.unique(i, return_inverse=True, return_counts=True),
    "unique_rows": lambda x, i, m: torch.unique(i % 2, dim=1),
    "unique_next": lambda x, i, m: torch.unique_consecutive(i.reshape(-1), return_inverse=True)[1],
    "ctc": lambda x, i, m: F.ctc_loss(
        x.transpose(0, 1).log_softmax(-1), i[:, :3] + 1, torch.full((x.shape[0],), 4), i[:, 0] % 3 + 1, reduction="none", zero_infinity=True
    ),
    "ctc_long": lambda x, i, m: F.ctc_loss(x.transpose(0, 1).log_softmax(-1), i // 2 + 1, torch.full((x.shape[0],), 4), i[:, 0] % 4 + 1, reduction="none"),
    "strides": lambda x, i, m: torch.as_strided(torch.arange(24.0), (3, 2), (4, 5), 2) + x.sum(),
    "bits_of": lambda x, i, m: x.view(torch.int32) + i[:, :, None].to(torch.int32),
    "split_at": lambda x, i, m: (*x.tensor_split([1, 3], 1), *x.tensor_split(4, 2)),
    "bincount": lambda x, i, m: torch.bincount(torch.tensor([1, 2, 2]), minlength=5),
    "one_hot": lambda x, i, m: F.one_hot(i, 5),
    "tril": lambda x, i, m: x.tril(1) + x.triu(-1),
    "tri_i": lambda x, i, m: torch.tril_indices(4, 4),
    "diag": lambda x, i, m: torch.diag_embed(x[:, 0]),
    "diag2": lambda x, i, m: torch.diagonal(x, 0, 1, 2),
    "diag3": lambda x, i, m: torch.diag(x[0, 0]) + 0 * torch.diag(x[0]).sum(),
    "trace": lambda x, i, m: torch.trace(x[0]),
    "kron": lambda x, i, m: torch.kron(x[0], torch.ones(2, 2)),
    "outer": lambda x, i, m: torch.outer(x[0, 0], x[0, 1]),
    "tensordot": lambda x, i, m: torch.tensordot(x, x[0], dims=([1, 2], [0, 1])),
    "einsum": lambda x, i, m: torch.einsum("bij,bkj->bik", x, x),
    "einsum_e": lambda x, i, m: torch.einsum("...ij,...kj->...ik", x, x),
    "einsum3": lambda x, i, m: (torch.einsum("bij,jk,bk->bi", x, x[0].mT, x[:, :, 0]), torch.einsum("...i,...j,ij", x, x, torch.ones(6, 6))),
    "chain": lambda x, i, m: torch.linalg.multi_dot([x[0], x[0].t(), x[0]]),
    "inv": lambda x, i, m: torch.linalg.inv(x[:, :, :4] + 5 * torch.eye(4)),
    "slogdet": lambda x, i, m: torch.linalg.slogdet(x[:, :, :4]),
    "eye": lambda x, i, m: torch.eye(x.shape[0]) + torch.eye(x.shape[0], dtype=torch.bool),
    "det": lambda x, i, m: torch.linalg.det(x[:, :, :4]),
    "solve": lambda x, i, m: torch.linalg.solve(x[:, :, :4] + 5 * torch.eye(4), x),
    "chol": lambda x, i, m: torch.linalg.cholesky(x @ x.transpose(1, 2) + torch.eye(4)),
    "qr": lambda x, i, m: torch.linalg.qr(x)[1].abs(),
    "eigh": lambda x, i, m: torch.linalg.eigh(x @ x.transpose(1, 2))[0],
    "matpow": lambda x, i, m: torch.linalg.matrix_power(x[:, :, :4], 3),
    "roll": lambda x, i, m: x.roll(1) + x.roll((1, 2), (1, 2)) + x.rot90(2, (1, 2)),
    "rot90": lambda x, i, m: x.rot90(1, (1, 2)),
    "flip": lambda x, i, m: x.flip(1, 2),
    "repeat": lambda x, i, m: x.repeat(1, 2, 1),
    "rep_int": lambda x, i, m: x.repeat_interleave(2, dim=1),
    "rep_int_one": lambda x, i, m: x.repeat_interleave(torch.tensor([2]), dim=1, output_size=8),
    "pick_rows": lambda x, i, m: torch.masked_select(x, m[:, :1]),
    "windows": lambda x, i, m: torch.arange(x.shape[0] + 4).unfold(0, 3, 1),
    "rep_int_t": lambda x, i, m: x.repeat_interleave(torch.tensor([1, 2, 0, 1]), dim=1, output_size=4),
    "chunk": lambda x, i, m: x.chunk(3, 2),
    "tsplit": lambda x, i, m: x.tensor_split((1, 3), 1),
    "splits": lambda x, i, m: x.split([1, 3], 1),
    "unbind": lambda x, i, m: x.unbind(1),
    "stacks": lambda x, i, m: torch.hstack([x, x]) + torch.cat([x, x], 1),
    "dstack": lambda x, i, m: torch.dstack([x, x]),
    "block": lambda x, i, m: torch.block_diag(x[0], x[0]),
    "cartesian": lambda x, i, m: torch.cartesian_prod(x[0, 0], x[0, 1]),
    "meshg": lambda x, i, m: torch.meshgrid(x[0, 0], x[0, 1], indexing="xy"),
    "movedim": lambda x, i, m: x.movedim(0, 2),
    "view_as": lambda x, i, m: x.view_as(x.reshape(-1, 24).view(-1, 4, 6)),
    "narrow": lambda x, i, m: x.narrow(1, 1, 2),
    "sel_scat_last": lambda x, i, m: torch.select_scatter(x, x[0] * 2, 0, -1),
    "sel_scat": lambda x, i, m: torch.select_scatter(x, x[:, 0], 1, 2),
    "sl_scat": lambda x, i, m: torch.slice_scatter(x, x[:, :2], 1, 0, 4, 2),
    "lerp": lambda x, i, m: torch.lerp(x, x + 1, 0.3) + torch.addcmul(x, x, x, value=0.5) + torch.addcdiv(x, x, x.abs() + 1, value=0.5),
    "fills": lambda x, i, m: torch.full_like(x, 2.5) + torch.zeros_like(x) + torch.ones_like(x).fill_(3) + x.new_full((1,), 2) + torch.tensor(3.5),
    "fill_big": lambda x, i, m: torch.full_like(i, 2**40),
    "arange": lambda x, i, m: torch.arange(1, 10, 2)[:4] + torch.arange(x.shape[1]) + torch.linspace(0, 1, 4),
    "logspace": lambda x, i, m: torch.logspace(0, 1, 4),
    "trig": lambda x, i, m: (
        x.sin() + x.cos() + x.tan() + x.atan() + x.sinh() + x.cosh() + x.tanh() + x.asinh() + x.sinc() + torch.atan2(x, x + 3) + x.erf() + x.erfc() + x.expm1()
    ),
    "logs": lambda x, i, m: (
        (x.abs() + 1).log()
        + (x.abs() + 1).log2()
        + (x.abs() + 1).log10()
        + x.abs().log1p()
        + (x.abs() + 1).lgamma()
        + (x.abs() + 1).rsqrt()
        + torch.xlogy(x.abs(), x.abs())
        + torch.special.entr(x.abs())
    ),
    "rounds": lambda x, i, m: (
        x.round()
        + x.floor()
        + x.ceil()
        + x.trunc()
        + x.frac()
        + x.round(decimals=1)
        + x.sign()
        + x.heaviside(torch.tensor(0.5))
        + torch.copysign(x, -x)
        + x.sgn()
        + torch.signbit(x)
    ),
    "fmaxs": lambda x, i, m: (
        torch.fmax(x, -x)
        + torch.fmin(x, -x)
        + torch.maximum(x, -x)
        + x.clamp(min=torch.tensor(0.0))
        + x.clamp_max(1)
        + torch.logaddexp(x, -x)
        + torch.logaddexp2(x, -x)
        + torch.ldexp(x, i[:, :, None])
        + x.deg2rad()
        + x.rad2deg()
        + x.square()
        + x.exp2()
        + x.float_power(2).float()
    ),
    "where": lambda x, i, m: (
        torch.where(m, x, 0.0) + torch.where(x > 0, 1.0, 2.0) + x.masked_fill(m, float("-inf")).softmax(-1) + x.masked_fill(x > 0, x.new_tensor(2.0))
    ),
    "half": lambda x, i, m: (x.to(torch.bfloat16) * 2 + x.half().float()).float() + x.double().float() + x.int() + x.long() + x.bool().float(),
    "dropout": lambda x, i, m: F.dropout(x, 0.5, False) + F.alpha_dropout(x, 0.5, False) + F.dropout1d(x, 0.5, False),
    "pix": lambda x, i, m: F.pixel_shuffle(x[:, :, :, None], 2),
    "pix2": lambda x, i, m: F.pixel_unshuffle(x[:, None], 2),
    "chshuf": lambda x, i, m: F.channel_shuffle(x[:, :, :, None], 2),
    "gumbel": lambda x, i, m: F.softmin(x, dim=1),
    "gumb_shape": lambda x, i, m: F.gumbel_softmax(x).sum(-1),
    "unflatten": lambda x, i, m: x.unflatten(2, (2, 3)).flatten(1, 2),
    "vander": lambda x, i, m: torch.vander(x[0, 0]),
    "swap": lambda x, i, m: x.swapaxes(1, 2).mT + x.mT.mH + x.adjoint().adjoint(),
    "squeeze": lambda x, i, m: x[:, None].squeeze(1) + x.unsqueeze(-1).squeeze(-1),
    "addr": lambda x, i, m: torch.addr(torch.zeros(4, 6), x[0, :, 0], x[0, 0]),
    "addmv": lambda x, i, m: torch.addmv(torch.zeros(4), x[0], x[0, 0]),
    "trapz": lambda x, i, m: torch.trapezoid(x, dim=1) + torch.cumulative_trapezoid(x, dim=1).sum(1),
    "rand_shape": lambda x, i, m: torch.rand_like(x) * 0 + torch.randn(x.shape[0], 4, 6) * 0 + torch.bernoulli(x * 0 + 1) + torch.randint_like(x, 5) * 0,
    "randint": lambda x, i, m: torch.randint(0, 5, (3,)) * 0 + torch.randperm(3) * 0,
    "normal": lambda x, i, m: torch.normal(x * 0, 0.0 * x.abs() + 1e-9) * 0,
    "uniform_": lambda x, i, m: torch.empty_like(x).uniform_() * 0 + torch.empty_like(x).normal_() * 0 + torch.empty_like(x).exponential_() * 0,
    "complex_mm": lambda x, i, m: (torch.complex(x, x) @ torch.complex(x, x).transpose(1, 2)).abs(),
    "as_float": lambda x, i, m: i.float().mean() + i.max() + i.min(),
    "mul_scalar_mixed": lambda x, i, m: i * 1.5 + m[:, :, 0] * 2 + True * x[:, :, 0],
    "bool_max": lambda x, i, m: (m.max(), m.max(1), m.amin(-1), m.amax((0, 1))),
    "sum_int32": lambda x, i, m: (i.sum(dtype=torch.int32), i.int().prod(1), x.sum(1, dtype=torch.float64)),
    "norm_types": lambda x, i, m: (torch.linalg.vector_norm(x, 2, -1, dtype=torch.float64), torch.linalg.vector_norm(torch.complex(x, x + 1), 3.0, -1)),
    "search_side": lambda x, i, m: (
        torch.searchsorted(torch.tensor([0.0, 1, 2]), i.float(), side="right"),
        torch.searchsorted(torch.tensor([1.0, -1, 0]), x, sorter=torch.tensor([1, 2, 0])),
        torch.bucketize(x * 3, torch.tensor([-2, 0, 2])),
    ),
    "signs_of_zero": lambda x, i, m: (torch.signbit(x * -0.0), torch.copysign(x, x * -0.0), torch.copysign(x, -2.0)),
    "crossed_bounds": lambda x, i, m: x.clamp(1.0, -1.0),
    "addmm_without": lambda x, i, m: torch.addmm(torch.full((4, 4), float("nan")), x[0], x[0].T, beta=0),
    "round_to": lambda x, i, m: (x.round(decimals=2), (x * 100).round(decimals=-1)),
    "nanmedian": lambda x, i, m: (
        x.masked_fill(m, float("nan")).nanmedian(),
        x.masked_fill(m & (torch.arange(4) > 0)[:, None], float("nan")).nanmedian(1),
        torch.full_like(x, float("nan")).nanmedian(-1, True)[0],
    ),
    "polygamma": lambda x, i, m: torch.polygamma(0, x.abs() + 0.5) + torch.polygamma(1, x.abs() + 0.5) + torch.special.i0e(x) + torch.special.i1(x),
    "tails": lambda x, i, m: (torch.special.erfcx(x * 2), torch.special.erfcx(x.abs() * 20), torch.special.log_ndtr(x * 6)),
    "bits_of_numbers": lambda x, i, m: (
        *torch.frexp(torch.stack([x, x * 1e-39, x * 1e30, x * 0, (x / 0).detach()])),
        torch.nextafter(x.detach(), x.new_tensor(10.0)),
    ),
    "matrix_exp": lambda x, i, m: (torch.matrix_exp(x[:, :, :4]), torch.matrix_exp(x[:, :, 2:] * 3)),
    "cmp": lambda x, i, m: (i >= 1.5) | (i == 2) | (x[:, :, 0] > 1) | m[:, :, 0] | (i.float() != 2),
}
"""Name -> an expression of floats ``[batch, 4, 6]``, places below 4 ``[batch, 4]`` and bools ``[batch, 4, 6]``."""
GROUPS = 16


class Many(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, x: Tensor, i: Tensor, m: Tensor) -> dict[str, Any]:
        return {name: CASES[name](x, i, m) for name in self.names}


def test_matrices_are_turned_in_their_last_axes_alone() -> None:
    """By itself, as torch.export then leaves these whole: a batch as large as the matrices would hide another order of axes."""

    class Turned(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [x @ x.mT, x.mT, x.adjoint(), x[0].T, x[0].mT]

    x = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(from_torch(Turned(), x)(x), Turned()(x))


def test_places_along_an_axis_are_broadcast() -> None:
    class Taken(nn.Module):
        def forward(self, x: Tensor) -> list[Tensor]:
            return [torch.take_along_dim(x, torch.zeros(1, 1, 3, dtype=torch.int64), 1), torch.take_along_dim(x[:, :1], torch.arange(3).view(1, 3, 1), 2)]

    x = torch.randn(3, 3, 3)
    torch.testing.assert_close(from_torch(Taken(), x, (None,))(x), Taken()(x))


def test_the_weight_of_lerp_has_its_gradient() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.3))

        def forward(self, x: Tensor) -> Tensor:
            return x.lerp(x * 2, self.w.expand(6)).sum()

    x, module = inputs(2)[0], Mixed().train()
    module(x).backward()
    torch.testing.assert_close(from_torch(module, x).gradients(x)["w"], module.w.grad)


@pytest.mark.long
def test_gradients_at_zero_and_of_equal_elements_are_torchs() -> None:
    of: dict[str, Callable[[Tensor], Tensor]] = {
        "norm": lambda w: w.norm(dim=1) + w.norm(),
        "normalize": F.normalize,
        "deviation": lambda w: w.std(1),
        "cosine": lambda w: F.cosine_similarity(w, torch.ones(3), dim=1),
        "distances": lambda w: torch.cdist(w, w),
        "largest": lambda w: w.max(0)[0] + w.min(0)[0],
        "amax": lambda w: w.amax(0),
    }

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            rows = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [-2.0, 0.3, 0.0], [0.0, 0.3, 1.0]])
            self.rows = nn.ParameterDict({name: nn.Parameter(rows.clone()) for name in of})

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([(function(self.rows[name] * x) * 1.7).sum() for name, function in of.items()]).sum()

    module, x = Sum(), torch.ones(3)
    module(x).backward()
    seen = from_torch(module, x, (None,)).gradients(x)
    for name, row in module.rows.items():
        torch.testing.assert_close(seen[f"rows.{name}"], row.grad, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


LONG = ("norm_types", "bits_of_numbers", "matrix_exp", "nanmedian", "cplx_einsum", "cplx_spectra", "cplx_more", "fill_diagonal", "median_ties",
        "nanmedian_ties")  # fmt: skip


@pytest.mark.parametrize("name", ["tails", "cplx_parts", "sparse", *(pytest.param(n, marks=pytest.mark.long) for n in LONG)])
def test_gradients_of_composed_operators_are_torchs(name: str) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.linspace(-0.5, 0.5, 24).reshape(4, 6))

        def forward(self, x: Tensor, i: Tensor, m: Tensor) -> Tensor:
            made = torch.utils._pytree.tree_leaves(CASES[name](x.to(self.w) + self.w, i, m))
            return sum((one.nan_to_num(0.0, 0.0, 0.0).tanh().sum() for one in made if one.requires_grad), torch.tensor(0.0)).float()

    given, module = inputs(3), Sum()
    module(*given).backward()
    assert module.w.grad is not None
    seen = from_torch(module, given).gradients(*given)["w"]
    torch.testing.assert_close(seen, module.w.grad, rtol=1e-4, atol=1e-4 * float(module.w.grad.abs().max()), equal_nan=True)


def inputs(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 4, 6, generator=drawn), torch.randint(0, 4, (batch, 4), generator=drawn), torch.rand(batch, 4, 6, generator=drawn) > 0.5


@pytest.mark.parametrize("first", [pytest.param(n, marks=[pytest.mark.long] if n else []) for n in range(GROUPS)])
def test_operators_give_what_torch_gives(first: int) -> None:
    module = Many(list(CASES)[first::GROUPS]).eval()
    model = from_torch(module, inputs(2), ({0: "batch"},) * 3)
    assert not model.missing
    for batch in (2, 5):
        given = inputs(batch)
        want, seen = module(*given), model(*given)
        for name in module.names:
            pairs = zip(torch.utils._pytree.tree_leaves(want[name]), torch.utils._pytree.tree_leaves(seen[name]), strict=True)
            for w, s in pairs:
                assert s.dtype == w.dtype, name
                torch.testing.assert_close(s, w, rtol=1e-4, atol=1e-5, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
