"""Gradients of a case of ONNX beside the slopes of its results."""

from __future__ import annotations

from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.interop.onnx import open_model
from support.onnx_cases import node_of

STEPS = (4e-3, 1e-3, 2e-2)
MOVES = (0.05, -0.05, 0.0)
"""Away from corners, as of a relu at 0; the first within the operator's domain counts."""
OF_VALUES = {
    "Hardmax": (),
    "Resize": (0,),
    "RoiAlign": (0,),
    "Upsample": (0,),
    "OneHot": (2,),
    "Range": (),
    "MaxRoiPool": (0,),
    "MelWeightMatrix": (),
    "NonMaxSuppression": (),
    "Unique": (),
    "STFT": (0,),
}
"""The operands that a result follows smoothly; the others of these operators are sizes and places, though they may be fractions."""
CLOSE = 0.02
FLOATS = (np.float32, np.float64)


class Summed:
    """The weighted sum of a case's fractional results, as a function of its fractional operands.

    Attributes:
        of: the names of these operands.
        fed: name -> array.
    """

    def __init__(self, case: dict[str, Any], random: np.random.Generator) -> None:
        self.program, parameters = open_model(case["model"].tobytes())
        self.scope, self.run = fs.Scope(), fs.Executor("cpu").run
        parameters.put_into(self.scope)
        self.block, ops = self.program.global_block, [*self.program.global_block.ops]
        feeds = [op.output("Out") or "" for op in ops if op.type == "feed"]
        fetches = [op.input("X") or "" for op in ops if op.type == "fetch"]
        node = node_of(case)
        given = {name: case[f"in{at}"] for at, name in enumerate(feeds)}
        ways = (0,) if node.attributes.get("mode") == b"nearest" else OF_VALUES.get(node.operator, range(len(node.inputs)))
        smooth = [node.inputs[at] for at in ways if at < len(node.inputs)]
        self.of = [name for name in feeds if name in smooth and given[name].dtype in FLOATS and given[name].size]
        self.results = [name for name in fetches if self.block.vars[name].spec.known_dtype.name in ("fp32", "fp64")]
        shift = {name: random.uniform(0.4, 1.6, given[name].shape) for name in self.of}
        for move in MOVES if self.of and self.results else ():
            moved = {name: np.where(np.isfinite(given[name]), given[name], 0.5) + move * shift[name] for name in self.of}
            self.fed = given | {name: array.astype(given[name].dtype) for name, array in moved.items()}
            values = [np.asarray(one) for one in self.run(self.program, feed=self.fed, fetch=self.results, scope=self.scope)]
            if all(np.isfinite(one).all() for one in values):
                break
        else:
            self.of = []
            return
        self.weights = [random.uniform(0.5, 1.5, one.shape).astype(one.dtype) for one in values]

    def gradients(self) -> dict[str, np.ndarray]:
        """By operand, in fp64; zeros where the sum does not depend on one."""
        with fs.program_guard(self.program):
            sums = [layer.cast(layer.reduce_sum(self.block.vars[n] * layer.assign(w)), "float64") for n, w in zip(self.results, self.weights, strict=True)]
            for name in self.of:
                self.block.vars[name].stop_gradient = False
            try:
                found = {p.name: g for p, g in fs.append_backward(layer.sum(sums), self.of)}
            except fs.SchemaError as error:
                if "no trainable parameter reaches" not in str(error):
                    raise
                found = {}
        values = self.run(self.program, feed=self.fed, fetch=[*found.values()], scope=self.scope) if found else []
        of = {name: np.asarray(one, "float64") for name, one in zip(found, values, strict=True)}
        return {name: of.get(name, np.zeros(self.fed[name].shape)) for name in self.of}

    def __call__(self, name: str, array: np.ndarray) -> float:
        values = self.run(self.program, feed=self.fed | {name: array.astype(self.fed[name].dtype)}, fetch=self.results, scope=self.scope)
        return sum(float((np.asarray(one, "float64") * w).sum()) for one, w in zip(values, self.weights, strict=True))


def compare_slopes(case: dict[str, Any]) -> dict[str, float]:
    """Operand -> how far the slope of the results along it is apart from its gradient, in lengths of the gradient; empty without fractions."""
    random = np.random.default_rng(3)
    summed, out = Summed(case, random), dict[str, float]()
    for operand, gradient in summed.gradients().items() if summed.of else ():
        x, told = summed.fed[operand], list[float]()
        for step in STEPS:
            way = random.choice([-1.0, 1.0], x.shape) * random.uniform(0.5, 1.5, x.shape)
            slope = (summed(operand, x + step * way) - summed(operand, x - step * way)) / (2 * step)
            told.append(float(abs(slope - (gradient * way).sum()) / (np.linalg.norm(gradient) + 1e-3)))
            if told[-1] < CLOSE:
                break
        out[operand] = min(told) if np.isfinite(told[-1]) else float("nan")
    return out
