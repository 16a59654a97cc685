"""Operators are found by their type without all others being imported, and a type of ours is taken from the beginning."""

from __future__ import annotations

import subprocess
import sys

import foreshape as fs
from foreshape.language.operator.registry import all_operators, modules_with

ALONE = """
import sys
import foreshape as fs
from foreshape import layer
from foreshape.language.operator import NOT_DIFFERENTIABLE, operand, registry, result

layer.fc(layer.data("x", 4), 3, "relu")
assert registry.find("onnx.If") is None
assert not any(name.startswith("foreshape.language.ops.detection.") for name in sys.modules), "a small program waits for what it has not"
try:
    class Mine(fs.Operator):
        type = "prior_box"
        X = operand()
        Out = result()
        gradient = NOT_DIFFERENTIABLE
        def infer_shape(self, X): return X
        def kernel(self, X): return X
except fs.SchemaError as error:
    print(error)
"""


def test_every_type_is_found_by_its_word() -> None:
    lost = [t for t, cls in all_operators().items() if cls.__module__.startswith("foreshape.language.ops.") and cls.__module__ not in modules_with(t)]
    assert not lost, "for these everything is imported"
    assert all(t.isidentifier() for t in all_operators()), "other types are not looked for"


def test_a_small_program_imports_few_operators_and_a_type_is_taken_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "the type 'prior_box' is taken by foreshape.language.ops.detection" in done.stdout
    assert fs.Operator.abstract


PROMISED = """
import foreshape as fs
from foreshape.language.operator import NOT_DIFFERENTIABLE, operand, registry, result

relu = registry.get("relu")
assert "relu_grad" not in registry._registry, "a gradient is made before it is asked for"
try:
    class Mine(fs.Operator):
        type = "relu_grad"
        X = operand()
        Out = result()
        gradient = NOT_DIFFERENTIABLE
        def infer_shape(self, X): return X
        def kernel(self, X): return X
except fs.SchemaError as error:
    print(error)
assert registry.get("relu_grad") is relu.grad_class is registry.all_operators()["relu_grad"]
assert registry.get("relu_grad").forward_class is relu
assert registry.get("tanh").grad_class is registry.get("tanh_grad") and registry.find("tanh_grad_grad_grad") is None
"""


def test_a_gradient_is_made_when_it_is_asked_for_and_its_type_is_taken_before() -> None:
    done = subprocess.run([sys.executable, "-c", PROMISED], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "the type 'relu_grad' is taken by foreshape.language.ops.math" in done.stdout
