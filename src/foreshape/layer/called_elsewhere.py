"""Names of the layers in other libraries, with their names here."""

from __future__ import annotations

from typing import Final

from foreshape.core.lazy_names import lazy_names

CALLED_ELSEWHERE: Final = {
    **dict.fromkeys(("dense", "Dense", "linear", "Linear"), "layer.fc(x, output_size)"),
    **dict.fromkeys(("input", "Input", "placeholder"), "layer.data(name, shape=['batch', ...])"),
    **dict.fromkeys(("Conv1D", "Conv1d"), "layer.conv1d"),
    **dict.fromkeys(("Conv2D", "Conv2d"), "layer.conv2d"),
    **dict.fromkeys(("Conv3D", "Conv3d"), "layer.conv3d"),
    **dict.fromkeys(("max_pool2d", "MaxPool2d", "MaxPooling2D"), "layer.pool2d(x, 2, stride=2)"),
    **dict.fromkeys(("avg_pool2d", "AvgPool2d", "AveragePooling2D"), "layer.pool2d(x, 2, pool_type='avg', stride=2)"),
    **dict.fromkeys(("global_average_pooling2d", "GlobalAveragePooling2D"), "layer.reduce_mean(x, [2, 3])"),
    **dict.fromkeys(("BatchNorm", "BatchNorm2d", "BatchNormalization"), "layer.batch_norm"),
    **dict.fromkeys(("LayerNorm", "LayerNormalization"), "layer.layer_norm"),
    "Dropout": "layer.dropout",
    "Embedding": "layer.embedding(ids, [rows, width])",
    **dict.fromkeys(("LSTM", "GRU"), "layer.lstm, layer.gru"),
    **dict.fromkeys(("attention", "self_attention", "MultiHeadAttention", "MultiheadAttention"), "layer.multi_head_attention"),
    **dict.fromkeys(("ReLU", "leakyrelu", "LeakyReLU"), "layer.relu, layer.leaky_relu"),
    "Softmax": "layer.softmax",
    **dict.fromkeys(("Flatten", "Reshape", "view"), "layer.flatten, layer.reshape"),
    **dict.fromkeys(("concatenate", "cat", "Concatenate"), "layer.concat"),
    "hsigmoid": "layer.hierarchical_sigmoid",
    "permute": "layer.transpose",
    **{name: f"x.{name}(axis)" for name in ("std", "var")},
    "clamp": "layer.clip",
    **dict.fromkeys(("mse", "MSELoss", "MeanSquaredError", "mean_squared_error"), "layer.mse_loss"),
    **dict.fromkeys(("mae", "l1_loss", "L1Loss", "mean_absolute_error"), "layer.abs(guess - truth)"),
    **dict.fromkeys(("binary_cross_entropy", "BCELoss", "binary_crossentropy"), "layer.bce_loss of shares, layer.sigmoid_cross_entropy_with_logits of scores"),
    **dict.fromkeys(("binary_cross_entropy_with_logits", "BCEWithLogitsLoss"), "layer.sigmoid_cross_entropy_with_logits"),
    **dict.fromkeys(
        ("CrossEntropyLoss", "sparse_categorical_crossentropy", "categorical_crossentropy", "SparseCategoricalCrossentropy"),
        "layer.softmax_with_cross_entropy of scores, layer.cross_entropy of shares",
    ),
    "kl_div": "layer.kldiv_loss",
    **dict.fromkeys(("RandomFlip", "RandomHorizontalFlip"), "layer.random_flip"),
    **dict.fromkeys(("RandomCrop", "RandomRotation", "RandomTranslation", "RandomZoom", "RandomAffine"), "layer.random_crop, layer.random_affine and others"),
    **dict.fromkeys(("GaussianNoise", "noise"), "layer.gaussian_noise"),
    **dict.fromkeys(("RandomErasing", "random_erasing"), "layer.cutout"),
}
"""Name -> the code to write here."""

_FETCHED: Final = "fs.Executor().run(program, feed, [x]), which gives its value as an array"
_TRAINED: Final = "fs.train(cost, data, optimizer=...), or fs.append_backward(cost)"
_METHODS: Final = {
    **dict.fromkeys(("numpy", "item", "tolist", "cpu", "data", "eval"), _FETCHED),
    **dict.fromkeys(("backward", "grad", "zero_grad", "step", "minimize"), _TRAINED),
    **dict.fromkeys(("detach", "requires_grad", "requires_grad_"), "x.stop_gradient = True"),
    **dict.fromkeys(("cuda", "device", "gpu"), "fs.Executor('cuda'), which computes all there"),
    **dict.fromkeys(("to", "type", "type_as"), "x.astype('int64'); the device is the executor's"),
    **{
        name: f"x.astype({of!r})"
        for name, of in (("float", "fp32"), ("double", "fp64"), ("half", "fp16"), ("long", "int64"), ("int", "int32"), ("bool", "bool"))
    },
    **dict.fromkeys(("clone", "copy", "contiguous"), "layer.assign(x), where a copy is needed at all"),
    **dict.fromkeys(("dim", "rank"), "x.ndim"),
    **dict.fromkeys(("get_shape", "shape_as_list"), "x.shape"),
    "numel": "x.size",
    **dict.fromkeys(("mm", "bmm", "dot"), "layer.matmul(x, y)"),
    "t": "x.T",
}
"""A method of arrays and tensors elsewhere -> the code to write here."""
_FUNCTIONS: Final = {
    "torch.cross_entropy": "layer.softmax_with_cross_entropy(scores, label)",
    "torch.cross_entropy_loss": "layer.softmax_with_cross_entropy(scores, label)",
    **dict.fromkeys(("amax", "amin"), "x.max(axis), x.min(axis)"),
    "vstack": "layer.concat([x, y], axis=0)",
    "hstack": "layer.concat([x, y], axis=1)",
    "absolute": "abs(x)",
    "negative": "-x",
}
"""A function of numpy's or of torch's on tensors -> the code to write here, for other names than of a method or a layer."""

_LAYERS: Final = {n: f"layer.{n}(x)" for n in lazy_names("foreshape.layer.public_layers") if n[0].islower()} | {
    n: words for n, words in CALLED_ELSEWHERE.items() if n[0].islower()
}
METHOD_HINTS: Final[dict[str, str]] = _LAYERS | _METHODS
"""Names that users may expect as a variable's methods, as arrays elsewhere have them -> the code to write."""
FUNCTION_HINTS: Final[dict[str, str]] = _LAYERS | _FUNCTIONS
"""Names of numpy's and torch's functions, some behind ``torch.``, -> the code to write."""
