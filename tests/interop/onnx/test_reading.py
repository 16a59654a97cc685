"""Reading a model: the families of its operators alone are imported, and equal attributes are read once and told apart all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.onnx_writer import Graph, model, node, value

from foreshape.errors import FormatError
from foreshape.interop.forms.rows import names_from_onnx
from foreshape.interop.forms.rules import modules_with, onnx_operators, onnx_versions
from foreshape.language.wire.limits import Limits
from foreshape.language.wire.onnx_model import read_model

SMALL = """
import sys
import foreshape as fs
program = fs.load_program(bytes.fromhex(sys.argv[1]))
assert "relu" in [op.type for op in program.all_ops()]
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("foreshape.interop.forms.")))
"""


def many(operator: str, count: int, **attributes: object) -> bytes:
    """Return a model with a chain of equal nodes."""
    nodes = [node(operator, f"x{at}", f"x{at + 1}", **attributes) for at in range(count)]
    return model(Graph(nodes, [value("x0", "float32", ["n", 3])], [value(f"x{count}", "float32", None)]))


def test_every_operator_names_its_family() -> None:
    functions = {key: onnx_versions(*key) for key in onnx_operators() if key[1] not in names_from_onnx()}
    lost = [key for key, versions in functions.items() for _, function in versions if function.__module__ not in modules_with("from_onnx", key[1])]
    assert not lost, "their decorators must have the names written out"


def test_a_small_model_imports_few_families() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL, many("Relu", 2).hex()], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "functions" in done.stdout.split()
    assert len(done.stdout.split()) < 10, done.stdout


def test_equal_attributes_of_two_nodes_are_two_lists() -> None:
    first, second = (one.attributes for one in read_model(many("Squeeze", 2, axes=[1, 2], name="n", keep=3, scale=0.5, mode="same")).graph.nodes)
    assert first == second == {"axes": [1, 2], "keep": 3, "scale": 0.5, "mode": b"same"}
    first["axes"].append(7)
    assert second["axes"] == [1, 2]


@pytest.mark.parametrize("count", [1, 60])
def test_equal_attributes_count_for_the_memory_all_the_same(count: int) -> None:
    axes = [*range(1, 21)]
    with pytest.raises(FormatError, match=r"Limits\.memory"):
        read_model(many("Squeeze", count, axes=axes), Limits(memory=count * 1600, memory_per_byte=0))
    read_model(many("Squeeze", count, axes=axes), Limits(memory=6000 + count * 6000, memory_per_byte=0))
