"""Networks of paddle.nn's layers, and programs for training with paddle.optimizer, described in static mode; see `paddle_programs`.

``LAYERS[name]()`` gives the inputs, the results and what is fed; ``TRAINING[name]()`` the loss, with its updates, and what is fed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle import optimizer as O

LAYERS: dict[str, Callable[[], tuple[list[Any], Any, dict[str, np.ndarray]]]] = {}
TRAINING: dict[str, Callable[[], tuple[Any, dict[str, np.ndarray]]]] = {}
BATCH = 2


def data(name: str, dims: list[int], dtype: str, most: int = 7) -> tuple[Any, np.ndarray]:
    """An input with an open batch, and numbers for it."""
    rng = np.random.RandomState(len(name) + sum(dims))
    drawn = rng.randint(0, most, [BATCH, *dims]) if dtype.startswith("int") else rng.uniform(-1, 1, [BATCH, *dims])
    return paddle.static.data(name, [-1, *dims], dtype), drawn.astype(dtype)


def keep(name: str, make: Callable[[], Any], *dims: int, dtype: str = "float32") -> None:
    """A layer (or a function that makes one), called with one input of these dims, batch apart."""

    def describe() -> tuple[list[Any], Any, dict[str, np.ndarray]]:
        x, numbers = data("x", list(dims), dtype)
        layer = make()
        layer.eval()
        return [x], layer(x), {"x": numbers}

    LAYERS[name] = describe


class Both(nn.Layer):
    """A function as a layer with parts."""

    def __init__(self, call: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = call

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


for kind, dims in (("1D", (3, 9)), ("2D", (3, 9, 8)), ("3D", (3, 5, 6, 7))):
    keep(f"Conv{kind}", lambda k=kind: getattr(nn, f"Conv{k}")(3, 4, 3, stride=2, padding=1), *dims)
    keep(f"Conv{kind}Transpose", lambda k=kind: getattr(nn, f"Conv{k}Transpose")(3, 4, 3, stride=2, padding=1, output_padding=1), *dims)
    keep(f"BatchNorm{kind}", lambda k=kind: getattr(nn, f"BatchNorm{k}")(3), *dims)
    keep(f"InstanceNorm{kind}", lambda k=kind: getattr(nn, f"InstanceNorm{k}")(3), *dims)
    keep(f"MaxPool{kind}", lambda k=kind: getattr(nn, f"MaxPool{k}")(3, 2, 1), *dims)
    keep(f"AvgPool{kind}", lambda k=kind: getattr(nn, f"AvgPool{k}")(3, 2, 1), *dims)
    keep(f"AdaptiveAvgPool{kind}", lambda k=kind: getattr(nn, f"AdaptiveAvgPool{k}")(2), *dims)
    keep(f"AdaptiveMaxPool{kind}", lambda k=kind: getattr(nn, f"AdaptiveMaxPool{k}")(2), *dims)
    keep(f"Pad{kind}", lambda k=kind: getattr(nn, f"Pad{k}")(1, mode="replicate"), *dims)
keep("ConvSame", lambda: nn.Conv2D(3, 4, 3, stride=2, padding="SAME", dilation=1), 3, 9, 8)
keep("ConvDilatedGroups", lambda: nn.Conv2D(4, 8, 3, padding=2, dilation=2, groups=2, padding_mode="reflect"), 4, 9, 8)
keep("ConvChannelsLast", lambda: nn.Conv2D(3, 4, 3, padding=1, data_format="NHWC"), 9, 8, 3)
keep("Linear", lambda: nn.Linear(5, 4), 3, 5)
keep("Embedding", lambda: nn.Embedding(7, 5, padding_idx=2), 4, dtype="int64")
keep("LayerNorm", lambda: nn.LayerNorm([4, 5]), 3, 4, 5)
keep("GroupNorm", lambda: nn.GroupNorm(2, 6), 6, 4, 5)
keep("LocalResponseNorm", lambda: nn.LocalResponseNorm(5), 6, 4, 5)
keep("SpectralNorm", lambda: Both(lambda s, x: F.linear(x, s.norm(s.linear.weight)), linear=nn.Linear(5, 4), norm=nn.SpectralNorm([5, 4], 1, 2)), 5)
keep("PReLU", lambda: nn.PReLU(3), 3, 4, 5)
keep("Upsample", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), 3, 4, 5)
keep("UpsamplingNearest2D", lambda: nn.UpsamplingNearest2D(size=[7, 9]), 3, 4, 5)
keep("PixelShuffle", lambda: nn.PixelShuffle(2), 8, 3, 4)
keep("Unfold", lambda: nn.Unfold(2, strides=2), 3, 6, 8)
keep("Fold", lambda: nn.Fold([4, 5], 2), 12, 12)
keep("ChannelShuffle", lambda: nn.ChannelShuffle(3), 6, 4, 5)
keep("Maxout", lambda: nn.Maxout(2), 6, 4, 5)
keep("Flatten", lambda: nn.Flatten(1, 2), 3, 4, 5)
keep("ZeroPad2D", lambda: nn.ZeroPad2D([1, 2, 0, 1]), 3, 4, 5)
keep("Dropout2D", lambda: nn.Dropout2D(0.3), 3, 4, 5)
keep("AlphaDropout", lambda: nn.AlphaDropout(0.3), 3, 4)
keep("SimpleRNN", lambda: nn.SimpleRNN(5, 6, num_layers=2, activation="relu"), 4, 5)
keep("LSTM", lambda: nn.LSTM(5, 6, num_layers=2, direction="bidirect"), 4, 5)
keep("LSTMTimeMajor", lambda: Both(lambda s, x: s.lstm(paddle.transpose(x, [1, 0, 2])), lstm=nn.LSTM(5, 6, time_major=True)), 4, 5)
keep("GRU", lambda: nn.GRU(5, 6, direction="bidirect"), 4, 5)
keep("LSTMCell", lambda: nn.LSTMCell(5, 6), 5)
keep("GRUCell", lambda: nn.GRUCell(5, 6), 5)
keep("MultiHeadAttention", lambda: nn.MultiHeadAttention(8, 2), 4, 8)
keep("TransformerEncoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", normalize_before=True), 2), 4, 8)
keep("Transformer", lambda: Both(lambda s, x: s.net(x, x), net=nn.Transformer(8, 2, 1, 1, 16)), 4, 8)
keep("Bilinear", lambda: Both(lambda s, x: s.net(x, x * 2.0), net=nn.Bilinear(5, 5, 3)), 5)
keep("CosineSimilarity", lambda: Both(lambda s, x: s.net(x, x + 1.0), net=nn.CosineSimilarity(1)), 3, 4)
keep("Silu", nn.Silu, 3, 4)
keep("Softmax2D", nn.Softmax2D, 3, 4, 5)
keep("RReLU", nn.RReLU, 3, 4)


def small(x: Any) -> Any:
    """A perceptron whose loss the optimizers below lower."""
    return nn.Linear(8, 5)(F.gelu(nn.LayerNorm(8)(nn.Linear(6, 8)(x))))


def train(name: str, make: Callable[[], Any], network: Callable[[Any], Any] = small, dims: tuple[int, ...] = (6,)) -> None:
    def describe() -> tuple[Any, dict[str, np.ndarray]]:
        x, numbers = data("x", list(dims), "float32")
        label, classes = data("label", [1], "int64", 5)
        loss = F.cross_entropy(network(x), label)
        make().minimize(loss)
        return loss, {"x": numbers, "label": classes}

    TRAINING[name] = describe


train("SGD", lambda: O.SGD(0.1))
train("Momentum", lambda: O.Momentum(0.1, 0.9, use_nesterov=True, weight_decay=0.01))
train("Adam", lambda: O.Adam(0.01))
train("AdamW", lambda: O.AdamW(0.01, weight_decay=0.1))
train("Adamax", lambda: O.Adamax(0.01))
train("Adagrad", lambda: O.Adagrad(0.05, initial_accumulator_value=0.1))
train("Adadelta", lambda: O.Adadelta(0.5))
train("RMSProp", lambda: O.RMSProp(0.01, momentum=0.9))
train("RMSPropCentered", lambda: O.RMSProp(0.01, centered=True))
train("Lamb", lambda: O.Lamb(0.01))
train("LarsMomentum", lambda: paddle.incubate.optimizer.LarsMomentumOptimizer(0.1, 0.9))
train("GlobalNorm", lambda: O.Adam(0.01, grad_clip=nn.ClipGradByGlobalNorm(0.5)))
train("ClipByNorm", lambda: O.SGD(0.1, grad_clip=nn.ClipGradByNorm(0.2)))
train("ClipByValue", lambda: O.SGD(0.1, grad_clip=nn.ClipGradByValue(0.05)))
train("L1Decay", lambda: O.SGD(0.1, weight_decay=paddle.regularizer.L1Decay(0.01)))


def image_net(x: Any) -> Any:
    x = F.relu(nn.BatchNorm2D(4)(nn.Conv2D(3, 4, 3, padding=1, bias_attr=False)(x)))
    x = F.max_pool2d(x, 2, 2)
    x = F.adaptive_avg_pool2d(F.hardswish(nn.Conv2D(4, 8, 3, padding=1, groups=4)(x)), 1)
    return nn.Linear(8, 5)(paddle.flatten(x, 1))


def sequence_net(x: Any) -> Any:
    out, _ = nn.LSTM(6, 7)(x)
    return nn.Linear(7, 5)(out[:, -1])


def attention_net(x: Any) -> Any:
    return nn.Linear(8, 5)(paddle.mean(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)(x), 1))


train("image_net", lambda: O.Momentum(0.05, 0.9), image_net, (3, 8, 8))
train("sequence_net", lambda: O.Adam(0.01), sequence_net, (4, 6))
train("attention_net", lambda: O.SGD(0.05), attention_net, (4, 8))
