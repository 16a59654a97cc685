"""Layers exported by PaddlePaddle 3, with what they compute: ``python paddle3_exports.py FOLDER KIND [NAMES]``, with a Python that has paddlepaddle 3.3.1.

KIND is "layers", "flow" (control flow that PaddlePaddle makes of Python's), "types" (element types, open sizes) or "models" (of ``paddle.vision``);
"names" prints all names. Of each there are NAME.json and NAME.pdiparams, NAME.in.npz and NAME.out.npz (what the exported program computes), and a line in
``built.jsonl``. Nothing of Foreshape is imported here.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.static import InputSpec
from paddle3_flow import FLOW

Input = tuple[list[Any], str, list[int]]
"""The dims of an input in the export (None: open), its element type, and the dims that it is fed with."""
EXPORTS: dict[str, dict[str, Callable[[], tuple[Any, list[Input]]]]] = {"layers": {}, "flow": {}, "types": {}, "models": {}}


def parameter(name: str, dims: Sequence[int], dtype: str) -> np.ndarray:
    """Normal numbers seeded by the name, and scaled by the fan; of a variance (a name that ends in ``w_2``), near one."""
    random = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    value = random.standard_normal(list(dims), dtype=np.float32)
    if name.endswith("w_2"):
        return (1.0 + 0.1 * np.abs(value)).astype(dtype)
    fan = max(1, int(np.prod(dims[1:]))) if len(dims) != 2 else dims[0]
    return (value * (1.4 / np.sqrt(fan) if len(dims) > 1 else 0.1)).astype(dtype)


def numbers(dtype: str, dims: Sequence[int], at: int) -> np.ndarray:
    random = np.random.RandomState(at + sum(dims))
    if dtype == "bool":
        return random.rand(*dims) > 0.5
    return random.randint(0, 7, list(dims)).astype(dtype) if dtype.startswith("int") else random.uniform(-1, 1, list(dims)).astype(dtype)


class Both(nn.Layer):
    """A function as a layer with parts."""

    def __init__(self, call: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.call = call

    def forward(self, x: Any, y: Any = None, z: Any = None) -> Any:
        if z is not None:
            return self.call(self, x, y, z)
        return self.call(self, x) if y is None else self.call(self, x, y)


def keep(name: str, make: Callable[[], Any], *inputs: tuple[int, ...] | tuple[tuple[int, ...], str], kind: str = "layers", open: Sequence[int] = (0,)) -> None:
    """Keep a layer, or a function that makes one, with inputs of these dims; ``open``: the places of open dims."""
    found: list[Input] = []
    for one in inputs:
        dims, dtype = one if len(one) == 2 and isinstance(one[0], tuple) else (one, "float32")
        found.append(([None if at in open else d for at, d in enumerate(dims)], dtype, list(dims)))  # type: ignore[arg-type]
    EXPORTS[kind][name] = lambda: (make(), found)


def call(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: Both(lambda _, *given: function(*given))


# --- layers

for rank, dims in (("1D", (2, 3, 9)), ("2D", (2, 3, 9, 8)), ("3D", (2, 3, 5, 6, 7))):
    keep(f"Conv{rank}", lambda r=rank: getattr(nn, f"Conv{r}")(3, 4, 3, stride=2, padding=1), dims)
    keep(f"Conv{rank}Transpose", lambda r=rank: getattr(nn, f"Conv{r}Transpose")(3, 4, 3, stride=2, padding=1, output_padding=1), dims)
    sizes = (("BatchNorm", (3,)), ("InstanceNorm", (3,)), ("MaxPool", (3, 2, 1)), ("AvgPool", (3, 2, 1)), ("AdaptiveAvgPool", (2,)), ("AdaptiveMaxPool", (2,)))
    for of, given in sizes:
        keep(of + rank, lambda o=of + rank, g=given: getattr(nn, o)(*g), dims)
    for mode in ("constant", "reflect", "replicate", "circular"):
        if rank != "3D" or mode != "reflect":
            keep(f"Pad{rank}_{mode}", lambda r=rank, m=mode: getattr(nn, f"Pad{r}")(1, mode=m), dims)
    keep(f"Dropout_{rank}", lambda: nn.Dropout(0.3), dims)
keep("ConvSame", lambda: nn.Conv2D(3, 4, 3, stride=2, padding="SAME"), (2, 3, 9, 8), open=(0, 2, 3))
keep("ConvGroups", lambda: nn.Conv2D(4, 8, 3, padding=2, dilation=2, groups=2, padding_mode="reflect"), (2, 4, 9, 8))
keep("ConvDepthwise", lambda: nn.Conv2D(4, 4, 3, padding=1, groups=4), (2, 4, 9, 8), open=(0, 2, 3))
keep("ConvChannelsLast", lambda: nn.Conv2D(3, 4, 3, padding=1, data_format="NHWC"), (2, 9, 8, 3))
keep("Linear", lambda: nn.Linear(5, 4), (2, 3, 5))
keep("Embedding", lambda: nn.Embedding(7, 5, padding_idx=2), ((2, 4), "int64"), open=(0, 1))
keep("LayerNorm", lambda: nn.LayerNorm([4, 5]), (2, 3, 4, 5))
keep("GroupNorm", lambda: nn.GroupNorm(2, 6), (2, 6, 4, 5))
keep("LocalResponseNorm", lambda: nn.LocalResponseNorm(5), (2, 6, 4, 5))
keep("SpectralNorm", lambda: Both(lambda s, x: F.linear(x, s.norm(s.linear.weight)), linear=nn.Linear(5, 4), norm=nn.SpectralNorm([5, 4], 1, 2)), (2, 5))
for of in (
    "CELU",
    "ELU",
    "GELU",
    "GLU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "RReLU",
    "ReLU",
    "ReLU6",
    "SELU",
    "Sigmoid",
    "Silu",
    "Softmax",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Swish",
    "Tanh",
    "Tanhshrink",
    "ThresholdedReLU",
):
    keep(of, getattr(nn, of), (2, 3, 4))
keep("GELUTanh", lambda: nn.GELU(approximate=True), (2, 3, 4))
keep("PReLU", lambda: nn.PReLU(3), (2, 3, 4, 5))
keep("Maxout", lambda: nn.Maxout(2), (2, 6, 4, 5))
keep("Softmax2D", nn.Softmax2D, (2, 3, 4, 5))
for mode in ("nearest", "bilinear", "bicubic", "area"):
    if mode != "area":
        keep(f"Upsample_{mode}", lambda m=mode: nn.Upsample(scale_factor=2, mode=m), (2, 3, 4, 5), open=(0, 2, 3))
    keep(f"Upsample_{mode}_size", lambda m=mode: nn.Upsample(size=[7, 9], mode=m), (2, 3, 4, 5))
keep("UpsampleCorners", lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), (2, 3, 4, 5))
keep("UpsampleLinear", lambda: nn.Upsample(scale_factor=[2], mode="linear", data_format="NCW"), (2, 3, 5))
keep("UpsampleTrilinear", lambda: nn.Upsample(scale_factor=2, mode="trilinear", data_format="NCDHW"), (2, 3, 4, 5, 3))
keep("UpsampleToAnother", call(lambda x, y: F.interpolate(x, paddle.shape(y)[2:], mode="bilinear")), (2, 3, 4, 5), (2, 1, 7, 9), open=(0, 2, 3))
keep("PixelShuffle", lambda: nn.PixelShuffle(2), (2, 8, 3, 4))
keep("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), (2, 3, 4, 6))
keep("ChannelShuffle", lambda: nn.ChannelShuffle(3), (2, 6, 4, 5))
keep("Unfold", lambda: nn.Unfold(2, strides=2), (2, 3, 6, 8))
keep("Fold", lambda: nn.Fold([4, 5], 2), (2, 12, 12), open=())
keep("Flatten", lambda: nn.Flatten(1, 2), (2, 3, 4, 5))
keep("Unflatten", lambda: nn.Unflatten(1, [2, 3]), (2, 6, 4))
keep("ZeroPad2D", lambda: nn.ZeroPad2D([1, 2, 0, 1]), (2, 3, 4, 5))
keep("Identity", nn.Identity, (2, 3))
keep("MaxUnPool2D", call(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_mask=True), 2)), (2, 3, 4, 6))
keep("LPPool2D", lambda: nn.LPPool2D(2, 2), (2, 3, 4, 6))
keep("SimpleRNN", lambda: nn.SimpleRNN(5, 6, num_layers=2, activation="relu"), (2, 4, 5))
keep("LSTM", lambda: nn.LSTM(5, 6, num_layers=2, direction="bidirect"), (2, 4, 5), open=(0, 1))
keep("LSTMTimeMajor", lambda: nn.LSTM(5, 6, time_major=True), (4, 2, 5))
keep("LSTMLengths", lambda: Both(lambda s, x, n: s.rnn(x, None, n), rnn=nn.LSTM(5, 6)), (2, 4, 5), ((2,), "int64"))
keep("GRU", lambda: nn.GRU(5, 6, direction="bidirect"), (2, 4, 5))
for of in ("SimpleRNNCell", "LSTMCell", "GRUCell"):
    keep(of, lambda o=of: getattr(nn, o)(5, 6), (2, 5))
keep("RNNOfCell", lambda: nn.RNN(nn.GRUCell(5, 6)), (2, 4, 5))
keep("BiRNN", lambda: nn.BiRNN(nn.LSTMCell(5, 6), nn.LSTMCell(5, 6)), (2, 4, 5))
keep("MultiHeadAttention", lambda: nn.MultiHeadAttention(8, 2), (2, 4, 8), open=(0, 1))
keep(
    "TransformerEncoder",
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", normalize_before=True), 2),
    (2, 4, 8),
    open=(0, 1),
)
keep("Transformer", lambda: nn.Transformer(8, 2, 1, 1, 16), (2, 4, 8), (2, 3, 8), open=(0, 1))
keep("Bilinear", lambda: nn.Bilinear(5, 4, 3), (2, 5), (2, 4))
keep("CosineSimilarity", lambda: nn.CosineSimilarity(1), (2, 3, 4), (2, 3, 4))
keep("PairwiseDistance", lambda: nn.PairwiseDistance(), (2, 5), (2, 5))
for of, dtype in (
    ("MSELoss", "float32"),
    ("L1Loss", "float32"),
    ("SmoothL1Loss", "float32"),
    ("KLDivLoss", "float32"),
    ("BCEWithLogitsLoss", "float32"),
    ("SoftMarginLoss", "float32"),
    ("HuberLoss", "float32"),
    ("PoissonNLLLoss", "float32"),
):
    if hasattr(nn, of):
        keep(of, getattr(nn, of), (2, 5), ((2, 5), dtype))
keep("CrossEntropyLoss", lambda: nn.CrossEntropyLoss(label_smoothing=0.1), (2, 7), ((2,), "int64"))
keep("NLLLoss", lambda: Both(lambda s, x, y: F.nll_loss(F.log_softmax(x), y)), (2, 7), ((2,), "int64"))
keep("CTCLoss", call(lambda x, y: F.ctc_loss(x, y, paddle.full([2], 5, "int64"), paddle.full([2], 3, "int64"))), (5, 2, 8), ((2, 3), "int32"), open=())
keep("deform_conv2d", call(lambda x, o: paddle.vision.ops.deform_conv2d(x, o, paddle.ones([4, 3, 3, 3]))), (2, 3, 6, 6), (2, 18, 4, 4))
keep("grid_sample", call(lambda x, g: F.grid_sample(x, g, mode="bilinear", padding_mode="border")), (2, 3, 6, 6), (2, 4, 5, 2))
keep("affine_grid", call(lambda t: F.affine_grid(t, [2, 3, 4, 5])), (2, 2, 3), open=())
keep("sdpa", call(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True)), (2, 4, 2, 8), open=(0, 1))
keep("temporal_shift", call(lambda x: F.temporal_shift(x, 2, 0.25)), (4, 4, 3, 3))

# --- functions with several results, indexing, shapes

keep("indices", call(lambda x: (x[:, 1:3], x[..., -1], x[:, ::2, None], x[:, [0, 2]], x[x > 0])), (2, 4, 5), kind="types")
keep("assigned", call(lambda x: assigned(x)), (2, 4, 5), kind="types")
keep(
    "open_everywhere",
    call(lambda x: (paddle.flatten(x, 1), x.mean([1, 2]), paddle.tile(x, [1, 2, 1]), paddle.flip(x, [1]))),
    (2, 4, 5),
    kind="types",
    open=(0, 1, 2),
)
keep("expanded", call(lambda x, y: paddle.expand(x, paddle.shape(y)) + y), (1, 4), (3, 4), kind="types", open=(0, 1))
keep(
    "shapes", call(lambda x: paddle.zeros([paddle.shape(x)[0], 3]) + paddle.arange(3).astype("float32") + paddle.full_like(x[:, :3], 2.5)), (2, 4), kind="types"
)
keep("topk", call(lambda x: (*paddle.topk(x, 2), *paddle.sort(x, descending=True).split(2, 1), paddle.argsort(x), paddle.argmax(x, 1))), (2, 6), kind="types")
keep(
    "gathers",
    call(lambda x, i: (paddle.gather(x, i), paddle.index_select(x, i, 1), paddle.take_along_axis(x, paddle.zeros([2, 1], "int64"), 1))),
    (2, 7),
    ((2,), "int64"),
    kind="types",
    open=(0,),
)
keep(
    "scatters",
    call(lambda x, u: (paddle.scatter(x, paddle.to_tensor([1, 0]), u), paddle.scatter_nd_add(x, paddle.to_tensor([[0], [0]]), u))),
    (2, 7),
    (2, 7),
    kind="types",
    open=(),
)
keep(
    "logic",
    call(lambda x: (paddle.where(x > 0, x, -x), paddle.logical_and(x > 0, x < 0.5), x.astype("bool"), (x * 5).astype("int32") // 2, (x * 5) % 2)),
    (2, 7),
    kind="types",
)
keep(
    "reductions",
    call(lambda x: (x.sum(), x.max(1), x.min([0, 1]), x.prod(-1, keepdim=True), x.std(1), x.var(), x.logsumexp(1), x.norm(2, 1), x.cumsum(1))),
    (3, 4),
    kind="types",
)
keep(
    "more_reductions",
    call(lambda x: (x.median(1), x.cumprod(1), paddle.logcumsumexp(x, 1), x.kthvalue(2, 1)[0], x.mode(1)[0], x.nanmean(), x.amax(1))),
    (3, 5),
    kind="types",
)
keep(
    "products",
    call(lambda x, y: (paddle.matmul(x, y, transpose_y=True), paddle.einsum("ij,kj->ik", x, y), paddle.dot(x, y), paddle.outer(x[0], y[0]))),
    (3, 4),
    (3, 4),
    kind="types",
)
keep(
    "bits",
    call(lambda x, y: (x & y, x | y, x ^ y, ~x, paddle.bitwise_left_shift(x, y), paddle.bitwise_right_shift(x, y))),
    ((3, 4), "int32"),
    ((3, 4), "int32"),
    kind="types",
)
keep("masked_fill", call(lambda x: paddle.masked_fill(x, x > 0, 2.0)), (3, 4), kind="types")
keep("masked_select", call(lambda x: paddle.masked_select(x, x > 0)), (3, 4), kind="types")
keep("unique", call(lambda x: paddle.unique(x, return_counts=True)), ((9,), "int64"), kind="types")
keep("nonzero", call(lambda x: paddle.nonzero(x > 0)), (3, 4), kind="types")
keep(
    "numbers_of_all_types",
    call(lambda x: tuple([(x * 3 + 3).astype(t) for t in ("float64", "int8", "uint8", "int16", "int32", "int64", "bool", "float16")])),
    (3, 4),
    kind="types",
)
keep("complex", call(lambda x: (paddle.real(paddle.fft.fft(x)), paddle.abs(paddle.fft.rfft(x)), paddle.fft.irfft(paddle.fft.rfft(x)))), (3, 8), kind="types")
keep("infinities", call(lambda x: (paddle.full([2], float("inf")) + x[0, :2], paddle.where(x > 0, x, paddle.to_tensor(float("-inf"))))), (3, 4), kind="types")
keep("float64", call(lambda x: (x * 2.5 + 0.1).sin()), ((3, 4), "float64"), kind="types")
keep("int_inputs", call(lambda x: (x + 1, x / 2, x * 2.5, x**2, paddle.mean(x.astype("float32")))), ((3, 4), "int64"), kind="types")
keep("bool_inputs", call(lambda x: (paddle.logical_not(x), paddle.any(x, 1), x.astype("float32").sum(1))), ((3, 4), "bool"), kind="types")
keep("bfloat16_weights", lambda: Both(lambda s, x: F.linear(x, s.net.weight.astype("float32")), net=nn.Linear(4, 3).bfloat16()), (3, 4), kind="types")
keep("half_weights", lambda: Both(lambda s, x: F.linear(x, s.net.weight.astype("float32")), net=nn.Linear(4, 3).float16()), (3, 4), kind="types")


def assigned(x: Any) -> Any:
    y = x + 0.0
    y[:, 1:3] = 7.0
    y[:, 0] = x[:, -1]
    y[:, -1, 2] = 1.5
    return y


def quantized() -> Any:
    """A perceptron with the operators of quantization-aware training."""
    from paddle.quantization import QAT, QuantConfig
    from paddle.quantization.quanters import FakeQuanterWithAbsMaxObserver

    quanter = FakeQuanterWithAbsMaxObserver(moving_rate=0.9)
    net = QAT(QuantConfig(activation=quanter, weight=quanter)).quantize(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    net.train()
    for _ in range(3):
        net(paddle.uniform([2, 4], min=-1.0, max=1.0))
    return net


keep("quantized", quantized, (3, 4), kind="types")

# --- control flow

for function in FLOW:
    for at, opened in enumerate(((), (0,))):
        keep(function.__name__ + ("", "_open")[at], lambda f=function: f, (3, 5), kind="flow", open=opened)

# --- whole networks

IMAGE = (2, 3, 64, 64)
MODELS: dict[str, Callable[[], Any]] = {
    "mobilenet_v1": lambda: paddle.vision.models.mobilenet_v1(scale=0.25),
    "mobilenet_v2": lambda: paddle.vision.models.mobilenet_v2(scale=0.25),
    "mobilenet_v3_large": lambda: paddle.vision.models.mobilenet_v3_large(scale=0.5),
    "squeezenet1_0": lambda: paddle.vision.models.squeezenet1_0(),
    "shufflenet_v2_swish": lambda: paddle.vision.models.shufflenet_v2_swish(),
    "resnet34": lambda: paddle.vision.models.resnet34(),
    "resnext50_32x4d": lambda: paddle.vision.models.resnext50_32x4d(),
    "inception_v3": lambda: paddle.vision.models.inception_v3(),
}
for name, make in MODELS.items():
    keep(name, make, (2, 3, 96, 96) if name == "inception_v3" else IMAGE, kind="models")


def flat(made: Any) -> list[Any]:
    return [v for m in made for v in flat(m)] if isinstance(made, (list, tuple)) else [made] if isinstance(made, paddle.Tensor) else []


def as_array(value: Any) -> np.ndarray:
    return np.asarray(value.astype("float32") if value.dtype == paddle.bfloat16 else value)


def one(kind: str, name: str, folder: Path) -> dict[str, Any]:
    """Export one, and run what was exported."""
    paddle.seed(1)
    layer, inputs = EXPORTS[kind][name]()
    specs = [InputSpec(dims, dtype, f"x{at}") for at, (dims, dtype, _) in enumerate(inputs)]
    if isinstance(layer, nn.Layer):
        layer.eval()
        for held in layer.state_dict().values():
            if name != "quantized" and held.dtype in (paddle.float32, paddle.float16, paddle.bfloat16):
                held.set_value(paddle.to_tensor(parameter(held.name, held.shape, "float32")).astype(held.dtype))
    static = paddle.jit.to_static(layer, input_spec=specs, full_graph=True)
    paddle.jit.save(static, str(folder / name), input_spec=specs)
    feed = [numbers(dtype, dims, at) for at, (_, dtype, dims) in enumerate(inputs)]
    if name == "LSTMLengths":
        feed[1] = np.array([4, 2])
    elif name == "CTCLoss":
        feed[1] = feed[1] + 1
    elif name == "gathers":
        feed[1] = np.array([1, 0])
    results = flat(paddle.jit.load(str(folder / name))(*map(paddle.to_tensor, feed)))
    np.savez(folder / f"{name}.in.npz", **{f"x{at}": value for at, value in enumerate(feed)})
    np.savez(folder / f"{name}.out.npz", **{str(at): as_array(value) for at, value in enumerate(results)})
    return {"results": len(results)}


def main(folder: Path, kind: str, names: Sequence[str]) -> None:
    built = folder / "built.jsonl"
    begun = {json.loads(line)["name"] for line in built.read_text().splitlines()} if built.exists() else set()
    with built.open("a") as out:
        for name in names or EXPORTS[kind]:
            if name in begun:
                continue
            print(json.dumps({"name": name, "begun": True}), file=out, flush=True)
            try:
                result = one(kind, name, folder)
            except Exception as error:
                result = {"refused": f"{type(error).__name__}: {error}"[-300:]}
            print(json.dumps({"name": name, "result": result}), file=out, flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "names":
        print(json.dumps({kind: list(found) for kind, found in EXPORTS.items()}))
    else:
        main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
