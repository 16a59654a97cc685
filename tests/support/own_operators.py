"""Operators of somebody's own, derived from nothing but `Operator`: a function of each element, a loss and an update. Run as ranks, it trains with them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.language.operator import FLOATING, ZERO_GRADIENT, Operator, f32, gradient, operand, require_same_dims, result, sample, torch
from foreshape.language.operator.totals import Total
from foreshape.optimizer.base import Optimizer


class OwnBend(Operator):
    """Out = X |X| / 2."""

    type = "own_bend"
    family = "activation"
    per_element = True
    X = operand(FLOATING)
    Out = result()

    def infer_shape(self, X: Any) -> Any:
        return X.like()

    def kernel(self, X: Any) -> Any:
        return X * X.abs() / 2

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Any, d_out: Any) -> Any:
        return d_out * X.abs()

    samples = [sample(X=f32(3, 5))]


class OwnLoss(Operator):
    """Out = the mean over the examples of the squared distance of X from Label."""

    type = "own_loss"
    family = "loss"
    X = operand(FLOATING)
    Label = operand(FLOATING, same_type_as="X")
    Out = result()

    def infer_shape(self, X: Any, Label: Any) -> Any:
        require_same_dims(X, Label, "X", "Label")
        return X.dense(())

    def totals(self) -> Any:
        return {"Out": Total(of="X", rows=True)}

    def kernel(self, X: Any, Label: Any) -> Any:
        return (X - Label).square().sum() / len(X)

    @gradient("X", "Label", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Any, Label: Any, d_out: Any) -> Any:
        return (X - Label) * (2 / len(X)) * d_out

    samples = [sample(X=f32(3, 5), Label=f32(3, 5))]


class OwnUpdate(Operator):
    """Speed = Speed / 2 + sign(Grad) sqrt(|Grad|); Param = Param - LearningRate * Speed."""

    type = "own_update"
    gradient = ZERO_GRADIENT
    elementwise_state = ("Speed",)
    Param = operand(FLOATING)
    Grad = operand(FLOATING, same_type_as="Param")
    LearningRate = operand(FLOATING)
    Speed = operand(FLOATING, same_type_as="Param")
    ParamOut = result(updates="Param")
    SpeedOut = result(updates="Speed")

    def infer_shape(self, Param: Any, Grad: Any, LearningRate: Any, Speed: Any) -> Any:
        require_same_dims(Param, Grad, "Param", "Grad")
        require_same_dims(Param, Speed, "Param", "Speed")
        return Param, Speed

    def kernel(self, Param: Any, Grad: Any, LearningRate: Any, Speed: Any) -> Any:
        Speed.div_(2).add_(Grad.sign() * Grad.abs().sqrt())
        Param.sub_(Speed * LearningRate)
        return Param, Speed

    samples = [sample(Param=f32(3, 5), Grad=f32(3, 5), LearningRate=f32(1), Speed=f32(3, 5))]


class OwnOptimizer(Optimizer):
    """Updates with `OwnUpdate`."""

    def update(self, parameter: Any, gradient: Any, rate: Any) -> Any:
        speed = self.accumulator(parameter, "speed")
        inputs = {"Param": parameter, "Grad": gradient, "LearningRate": rate, "Speed": speed}
        return "own_update", inputs, {"ParamOut": parameter, "SpeedOut": speed}, {}


OF_OURS: dict[str, Any] = {"own_bend": OwnBend, "own_loss": OwnLoss, "own_update": OwnUpdate}


def network(width: int = 12) -> Any:
    """The cost of two layers, divided by columns and by rows, with a bend between them."""
    x, y = layer.data("x", input_size=6), layer.data("y", input_size=4)
    block = fs.default_main_program().global_block
    h = block.apply("own_bend", {"X": layer.fc(x, width, split="columns")})
    return block.apply("own_loss", {"X": layer.fc(h, 4, split="rows"), "Label": y})


STRATEGIES: dict[str, Any] = {
    "data_parallel": fs.data_parallel, "shard_optimizer": fs.shard_optimizer, "split_layers": fs.split_layers,
}  # fmt: skip


def trained(strategy: str | None = None) -> dict[str, Any]:
    """The losses and the parameters after a few steps of training."""
    torch.manual_seed(1)
    rng = np.random.RandomState(3)
    data = {"x": rng.uniform(-1, 1, (24, 6)).astype("float32"), "y": rng.uniform(-1, 1, (24, 4)).astype("float32")}
    with fs.program_guard(fs.Program(), fs.Program()):
        cost, scope = network(), fs.Scope()
        ranks = {"ranks": STRATEGIES[strategy]()} if strategy is not None else {}
        history = fs.train(cost, data, optimizer=OwnOptimizer(0.02), epochs=3, batch_size=8, progress=False, seed=5, scope=scope, **ranks)
        names = [v.name for v in cost.block.program.parameters()]
        return {"losses": np.array(history.column("loss"))} | {n: np.array(scope.get(n)) for n in names if n in scope}


if __name__ == "__main__":
    import os

    _, out, *strategies = sys.argv
    for name in strategies:
        np.savez(f"{out}.{name}.{os.environ['RANK']}", **trained(name))
