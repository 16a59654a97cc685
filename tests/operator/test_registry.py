"""Operators are found by their type without all others being imported, and a type of ours is taken from the beginning."""

from __future__ import annotations

import subprocess
import sys

import foreshape as fs
from foreshape.operator.registry import all_operators, modules_with

ALONE = """
import sys
import foreshape as fs
from foreshape import layer
from foreshape.operator import NOT_DIFFERENTIABLE, operand, result

layer.fc(layer.data("x", 4), 3, "relu")
assert not any(name.startswith("foreshape.ops.detection.") for name in sys.modules), "a small program waits for what it has not"
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
    lost = [t for t, cls in all_operators().items() if cls.__module__.startswith("foreshape.ops.") and cls.__module__ not in modules_with(t)]
    assert not lost, "for these everything is imported"


def test_a_small_program_imports_few_operators_and_a_type_is_taken_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "the type 'prior_box' is taken by foreshape.ops.detection" in done.stdout
    assert fs.Operator.abstract
