"""Windows, regions and resizing of ONNX over open sizes: what is known before the run; their numbers are among the random cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, tensor, value

from foreshape.errors import SchemaError
from foreshape.interop.onnx import open_model

FILTERS, TURNED, NOTHING = np.zeros((4, 3, 3, 3), "float32"), np.zeros((3, 4, 3, 3), "float32"), np.zeros(0, "float32")
REGIONS = {"r": np.zeros((5, 4), "float32"), "i": np.zeros(5, "int64")}
KNOWN: list[tuple[str, dict[str, np.ndarray], dict[str, Any], str]] = [
    ("MaxPool", {}, {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"}, "n 3 ceil(h/2) ceil(w/2)"),
    ("MaxPool", {}, {"kernel_shape": [3, 2], "strides": [2, 3], "auto_pad": "SAME_LOWER"}, "n 3 ceil(h/2) ceil(w/3)"),
    ("MaxPool", {}, {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [1, 2]}, "n 3 max(h-4,0) max((w//2)-1,0)"),
    ("Conv", {"w": FILTERS}, {"strides": [2, 3], "auto_pad": "SAME_UPPER"}, "n 4 ceil(h/2) ceil(w/3)"),
    ("Conv", {"w": FILTERS}, {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, "n 4 max(ceil(h/2),1) max(ceil(w/2),1)"),
    ("Conv", {"w": FILTERS}, {"strides": [2, 3], "dilations": [2, 2], "auto_pad": "SAME_UPPER"}, "n 4 max(ceil(h/2),1) max(ceil(w/3),1)"),
    ("ConvTranspose", {"w": TURNED}, {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, "n 4 2*h 2*w"),
    ("ConvTranspose", {"w": TURNED}, {"strides": [2, 2], "output_shape": [20, 21]}, "n 4 20 21"),
    ("Resize", {"_": NOTHING, "s": np.array([1, 1, 1.5, 0.5], "float32")}, {"mode": "cubic"}, "n 3 (3*h)//2 w//2"),
    ("Resize", {"_": NOTHING, "s": np.array([1, 1, 2, 3], "float32")}, {"mode": "nearest", "nearest_mode": "ceil"}, "n 3 2*h 3*w"),
    ("CenterCropPad", {"s": np.array([20, 21])}, {"axes": [2, 3]}, "n 3 20 21"),
    ("RoiAlign", REGIONS, {"output_height": 2, "output_width": 4}, "5 3 2 4"),
    ("RoiAlign", REGIONS, {"output_height": 2, "output_width": 4, "mode": "max"}, "5 3 2 4"),
]
REFUSED: list[tuple[str, list[int], dict[str, Any], str]] = [
    ("MaxPool", [1, 2, 3, 4, 5, 6], {"kernel_shape": [1, 1, 1, 1]}, "a pool of 4 axes"),
    ("Conv", [1, 3, 3, 3], {"kernel_shape": [5, 3]}, "a window of 5 over an axis of 3"),
    ("GridSample", [1, 3, 3, 3], {"mode": "lanczos"}, "the mode lanczos"),
    ("RoiAlign", [1, 3, 3, 3], {"mode": "median"}, "the mode median"),
]


def described(operator: str, shape: list[Any], tensors: dict[str, np.ndarray], **attributes: Any) -> Any:
    """Return the result of a model of one node."""
    held = [tensor(name, array) for name, array in tensors.items() if name != "_"]
    inputs = [value("x", "float32", shape)]
    graph = Graph([node(operator, " ".join(["x", *tensors]), "y", name="here", **attributes)], inputs, [value("y", "float32", None)], held)
    ops = open_model(model(graph, 20))[0].global_block.ops
    fetched = next(op for op in ops if op.type == "fetch")
    refused = [op.attributes.error for op in ops if op.type.startswith("onnx.")]
    return refused[0] if refused else fetched.block.vars[fetched.input("X") or ""].spec


@pytest.mark.parametrize(("operator", "tensors", "attributes", "wanted"), KNOWN)
def test_sizes_are_known_before_the_run(operator: str, tensors: dict[str, np.ndarray], attributes: dict[str, Any], wanted: str) -> None:
    spec = described(operator, ["n", 3, "h", "w"], tensors, **attributes)
    assert " ".join(str(d).replace(" ", "") for d in spec.dims) == wanted


@pytest.mark.parametrize(("operator", "shape", "attributes", "says"), REFUSED)
def test_a_refusal_names_node_and_operator(operator: str, shape: list[int], attributes: dict[str, Any], says: str) -> None:
    given = {"Conv": {"w": np.zeros((2, 3, 5, 3), "float32")}, "GridSample": {"g": np.zeros((1, 2, 2, 2), "float32")}, "RoiAlign": REGIONS}
    error = described(operator, shape, given.get(operator, {}), **attributes)
    assert isinstance(error, SchemaError)
    assert f"{operator} (here) cannot be imported" in str(error)
    assert says in str(error)
