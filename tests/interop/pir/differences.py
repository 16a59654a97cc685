"""Where results differ from those of PaddlePaddle 3.3.1, and why. The tests hold that each of them still does."""

from __future__ import annotations

UNMADE = "PaddlePaddle leaves it unmade, with the type that an array of nothing has"
MEMORY = "PaddlePaddle leaves what its memory held"
RESERVED = "what a library's kernel keeps for its gradient"

DIFFERENT: dict[str, tuple[tuple[int, ...], str]] = {
    "adamw-4": ((0,), "PaddlePaddle 3 takes lr_ratio in the decay alone, PaddlePaddle 2 in the whole update"),
    **{f"batch_norm-{n}": ((4, 5), MEMORY) for n in (6, 7)},
    "bincount-6": ((0,), "no numbers, of weights of fp32: PaddlePaddle counts in int64"),
    "coalesce_tensor-1": ((3,), MEMORY),
    "coalesce_tensor-4": ((0, 1, 2), MEMORY),
    "eigvalsh-2": ((1,), UNMADE),
    "einsum-0": ((3, 4), UNMADE),
    "einsum-3": ((1, 3, 4), RESERVED),
    **{f"graph_send_recv-{n}": ((0,), UNMADE) for n in (0, 2, 3)},
    **{f"hierarchical_sigmoid-{n}": ((0,), UNMADE) for n in range(4)},
    "linear_interp_v2-3": ((0,), "a result of one element: the first here, as in PaddlePaddle 2, and there the one in the middle"),
    "lstsq-5": ((0,), UNMADE),
    "lstsq-7": ((0,), UNMADE),
    "lstsq-11": ((1, 2), UNMADE),
    "lu_unpack-3": ((0,), UNMADE),
    "nce-0": ((0, 1, 2), "other samples are drawn from one seed"),
    "pool3d-2": ((0,), "windows of an adaptive maximum that do not divide the sizes: PaddlePaddle 3's are others than PaddlePaddle 2's"),
    "put_along_axis-2": ((0,), "PaddlePaddle 3 does not count negative places from the end: the numbers come into other rows"),
    "rnn-0": ((0, 4), RESERVED),
    "rnn-2": ((0, 3), RESERVED),
    **{f"segment_pool-{n}": ((1,), UNMADE) for n in (0, 2, 4)},
    "sgd-1": ((0, 1), "PaddlePaddle 3 does not use the parameter of 64 bits that it is given"),
    **{f"view_shape-{n}": ((0,), "PaddlePaddle's executor leaves the dims as they were, against its own file") for n in range(3)},
    "svd-4": ((0, 2), "the signs of singular vectors are free"),
    "tensor_array_to_tensor-2": ((1,), "the sizes of stacked tensors are 1 here, as in PaddlePaddle 2, and there 0"),
}
"""Case -> the places of the results, and the reason."""

UNKNOWN: dict[str, str] = {
    "lookup_table_dequant-0": "pd_op.lookup_table_dequant",
    "lookup_table_dequant-1": "pd_op.lookup_table_dequant",
}
"""Case -> the operator that is not known here."""
