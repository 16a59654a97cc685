"""The reasons why operators have no form in ONNX here."""

from __future__ import annotations

from typing import Final

_OF_ROOMS: Final = {
    "foreshape.language.ops.update.": "it changes parameters, in training",
    "foreshape.language.ops.collective.": "it speaks with other ranks",
}
_OF_TYPES: Final = {
    "ONNX decomposes no matrices and solves no systems": "cholesky cholesky_solve eigh eigvalsh lstsq lu lu_unpack matrix_rank qr solve svd triangular_solve",
    "ONNX reckons with no complex numbers": "as_complex as_real complex fft_c2c fft_c2r fft_r2c imag real stft",
    "ONNX has no such function": "digamma erfinv hash i0 i0e i1 i1e lgamma nextafter polygamma view_dtype",
    "ONNX draws from no such distribution": "dirichlet exponential poisson sampling_id shuffle_batch truncated_gaussian_random",
    "a graph of ONNX has no state of a generator": "random_state seed swap_random_state",
    "it teaches, in training": "bipartite_match center_loss cross_entropy_grad2 "
    "hierarchical_sigmoid linear_chain_crf mine_hard_examples nce target_assign warpctc warprnnt yolov3_loss",
    "it measures a training": "auc chunk_eval edit_distance precision_recall",
    "it takes element after element, which is not written": "locality_aware_nms mode nanmedian similarity_focus",
    "its result is ragged": "box_clip generate_proposals im2sequence psroi_pool retinanet_detection_output",
    "it puts tensors side by side in memory": "coalesce_tensor",
    "its caches of keys and values are not written": "fused_multi_transformer",
    "ONNX has no sparse rows": "get_tensor_from_selected_rows merge_selected_rows",
}
_REASONS: Final = {type: reason for reason, types in _OF_TYPES.items() for type in types.split()}


def reason_of(type: str, module: str) -> str:
    """Return why an operator, of a class in a module, is not written; empty if nothing is known."""
    return _REASONS.get(type) or next((reason for room, reason in _OF_ROOMS.items() if module.startswith(room)), "")
