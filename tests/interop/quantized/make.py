"""Make the networks of this folder again. Needs paddlepaddle==2.6.2; the tests do not: `python make.py`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn, static
from paddle.base.proto import framework_pb2
from paddle.quantization import ImperativeQuantAware
from paddle.static.quantization import PostTrainingQuantization
from paddle.static.quantization.quanter import convert, quant_aware

HERE = Path(__file__).parent
RNG = np.random.RandomState(0)
X = RNG.standard_normal((2, 3, 6, 6)).astype("float32")
EXAMPLES = RNG.standard_normal((8, 3, 6, 6)).astype("float32")
OPS = ["conv2d", "matmul_v2", "mul"]


class Network(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.pool, self.linear = nn.Conv2D(3, 8, 3), nn.AdaptiveAvgPool2D(2), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        return self.linear(paddle.flatten(self.pool(nn.functional.relu(self.convolution(x))), 1))


class Examples(paddle.io.Dataset):
    def __len__(self) -> int:
        return len(EXAMPLES)

    def __getitem__(self, at: int) -> Any:
        return (EXAMPLES[at],)


def network(folder: str) -> str:
    """A network in floating point, as a saved model."""
    paddle.disable_static()
    prefix = f"{folder}/plain"
    paddle.jit.save(Network(), prefix, input_spec=[static.InputSpec([None, 3, 6, 6], "float32", "x")])
    paddle.enable_static()
    return prefix


def after_training(prefix: str, folder: str) -> None:
    """Scales without dims, and of the channels with two: [] and [1, 8] where the program says [1] and [8]."""
    plain, executor = network(folder), static.Executor(paddle.CPUPlace())
    program, feeds, _ = static.load_inference_model(plain, executor)
    loader = paddle.io.DataLoader(Examples(), feed_list=[program.global_block().var(feeds[0])], batch_size=4, return_list=False)
    tool = PostTrainingQuantization(executor=executor, model_dir=folder, model_filename="plain.pdmodel", params_filename="plain.pdiparams", data_loader=loader,
                                    batch_size=4, batch_nums=2, algo="avg", quantizable_op_type=OPS, onnx_format=True)  # fmt: skip
    tool.quantize()
    tool.save_quantized_model(folder, model_filename=os.path.basename(prefix) + ".pdmodel", params_filename=os.path.basename(prefix) + ".pdiparams")


def in_training(prefix: str, folder: str) -> None:
    main, startup, scope, place = static.Program(), static.Program(), static.global_scope(), paddle.CPUPlace()
    with static.program_guard(main, startup):
        x = static.data("x", [None, 3, 6, 6], "float32")
        out = static.nn.fc(nn.functional.adaptive_avg_pool2d(static.nn.conv2d(x, 8, 3, act="relu"), 2), 5)
    executor = static.Executor(place)
    executor.run(startup)
    types = {"weight_quantize_type": "channel_wise_abs_max", "activation_quantize_type": "moving_average_abs_max"}
    settings = {"onnx_format": True, "quantize_op_types": OPS, **types}
    trained = quant_aware(main.clone(), place, settings, scope=scope, return_program=True)
    tested = quant_aware(main.clone(for_test=True), place, settings, scope=scope, for_test=True)
    for _ in range(3):
        executor.run(trained, feed={"x": EXAMPLES}, fetch_list=[out.name])
    program = convert(tested, place, settings, scope=scope)
    static.save_inference_model(prefix, [program.global_block().var("x")], [program.global_block().var(out.name)], executor, program=program)


def in_training_of_layers(prefix: str, folder: str) -> None:
    paddle.disable_static()
    layers, tool = Network(), ImperativeQuantAware(weight_quantize_type="abs_max", onnx_format=True)
    tool.quantize(layers)
    for _ in range(3):
        layers(paddle.to_tensor(EXAMPLES))
    layers.eval()
    tool.save_quantized_model(layers, prefix, input_spec=[static.InputSpec([None, 3, 6, 6], "float32", "x")])


def keep(prefix: str) -> None:
    """The program without the lines and paths of the machine that made it, its parameters, and what it computes."""
    paddle.enable_static()
    executor = static.Executor(paddle.CPUPlace())
    with static.scope_guard(static.Scope()):
        program, feeds, fetches = static.load_inference_model(prefix, executor)
        out = executor.run(program, feed={feeds[0]: X}, fetch_list=fetches)[0]
    description = framework_pb2.ProgramDesc.FromString(Path(prefix + ".pdmodel").read_bytes())
    description.ClearField("op_version_map")
    for block in description.blocks:
        for op in block.ops:
            kept = [a for a in op.attrs if a.name not in ("op_callstack", "op_device", "op_namescope", "struct_name")]
            del op.attrs[:]
            op.attrs.extend(kept)
    name = os.path.basename(prefix)
    (HERE / f"{name}.pdmodel").write_bytes(description.SerializeToString())
    (HERE / f"{name}.pdiparams").write_bytes(Path(prefix + ".pdiparams").read_bytes())
    np.savez_compressed(HERE / f"{name}.npz", x=X, out=out)


if __name__ == "__main__":
    for make in (after_training, in_training, in_training_of_layers):
        paddle.seed(3)
        with tempfile.TemporaryDirectory() as folder, static.scope_guard(static.Scope()), paddle.utils.unique_name.guard():
            paddle.enable_static()
            make(f"{folder}/{make.__name__}", folder)
            keep(f"{folder}/{make.__name__}")
