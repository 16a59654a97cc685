"""Functions of operators, out of the package ``onnx``."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, attribute, function, model, node, opened, value

import foreshape as fs
from foreshape.interop.forms import rules

X = np.float32([[1, -2, 3], [-4, 5, -6]])
BODY = function("Twice", "a b", "y z", [node("Add", "a b", "s"), node("Mul", "s s", "y")], domain="")
"""As the package has functions of operators: only the results that a node names are made."""


def network(operator: str, **attributes: Any) -> bytes:
    nodes = [node(operator, "x x", "y _", name="/twice", **attributes), node("Abs", "x", "z")]
    return model(Graph(nodes, [value("x", "float32", ["n", 3])], [value("y", "float32", None), value("z", "float32", None)]))


def package(has_function: bool, told: list[Any]) -> ModuleType:
    """Return a package with one schema, which notes the node and types that it is asked for."""

    def of_context(version: int, given: bytes, types: list[bytes]) -> bytes:
        told.append((version, given, types))
        return BODY

    default = SimpleNamespace(default_value=SimpleNamespace(SerializeToString=lambda: attribute("k", 1)))
    schema = SimpleNamespace(
        has_function=has_function,
        has_context_dependent_function=not has_function,
        function_opset_versions=[13, 18, 21],
        context_dependent_function_opset_versions=[13, 18, 21],
        get_function_with_opset_version=lambda version: BODY if version == 18 else b"",
        get_context_dependent_function_with_opset_version=of_context,
        attributes={"k": default},
    )
    made = ModuleType("onnx")
    made.defs = SimpleNamespace(has=lambda name, domain: name == "Twice", get_schema=lambda *_: schema, SchemaError=KeyError)  # pyright: ignore
    return made


@pytest.mark.parametrize("has_function", [True, False])
def test_an_operator_without_a_rule_is_its_function_in_the_package(has_function: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setitem(sys.modules, "onnx", package(has_function, told))
    net = opened(network("Twice", table=np.float32([1, 2])), tmp_path)
    assert np.array_equal(net.run(X)["y"], (X + X) ** 2)
    if not has_function:
        ((version, given, types),) = told
        assert version == 18 and b"Twice" in given and np.float32([1, 2]).tobytes() in given and types[0] == types[1] and b"n" in types[0]
    with pytest.raises(fs.ForeshapeError, match=r"onnx\.Thrice"):
        opened(network("Thrice"), tmp_path).run(X)


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(fs.SchemaError, match=r"Twice \(/twice\) .* pip install 'foreshape\[onnx\]'"):
        opened(network("Twice"), tmp_path).run(X)
    fs.load_program(network("Twice"))


@pytest.mark.parametrize(("operator", "attributes"), [("Celu", {"alpha": 2.0}), ("Mish", {}), ("Selu", {}), ("ThresholdedRelu", {"alpha": 0.3})])
def test_functions_of_the_installed_package_compute_as_rules_do(
    operator: str, attributes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnx.defs")
    graph = Graph([node(operator, "x", "y", **attributes)], [value("x", "float32", ["n", 3])], [value("y", "float32", None)])
    want = opened(model(graph, 22), tmp_path).run(X)["y"]
    monkeypatch.delitem(rules._onnx_readers, ("", operator))
    assert np.allclose(opened(model(graph, 22), tmp_path).run(X)["y"], want, atol=1e-6)
