"""Copies and casts, in the other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape import layer
from foreshape.core.spec import BOOL, INT64
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call, element_type
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("Identity", "Dropout")
def identity(c: Call) -> Any:
    """In use a dropout is its operand; its mask is true."""
    if c.node.operator == "Dropout":
        training = c.constant(2)
        if c.has(2) and (training is None or bool(training.reshape(-1)[0])) and c.attribute("ratio", 0.5) != 0:
            raise Refused("a dropout of training draws at random, and its numbers differ from run to run")
        if len([o for o in c.node.outputs if o]) > 1:
            return c.x(), c.cast(layer.fill_like(c.x(), 1.0), BOOL)
    operand = c.value(0)
    # torch's older exporter keeps one tensor of zeros for all biases: each of them is trained on its own
    if isinstance(operand, OnnxConstant) and operand.record is not None and (numbers := c.constant(0)).size > 1 and (numbers == numbers.flat[0]).all():
        return OnnxConstant(c.node.outputs[0], operand.record, numbers, uses=c.importer.uses)
    return operand


@from_onnx("Cast", "CastLike")
def from_onnx_cast(c: Call) -> Any:
    dtype = c.x(1).spec.known_dtype if c.node.operator == "CastLike" else element_type(int(c.attribute("to", 1)))
    x = c.x()
    return c.op("cast", {"in_dtype": x.spec.known_dtype.code, "out_dtype": dtype.code}, X=x)


@from_onnx("BitCast")
def bit_cast(c: Call) -> Any:
    dtype, x = element_type(int(c.attribute("to"))), c.x()
    if dtype.itemsize != x.spec.known_dtype.itemsize:
        raise Refused(f"elements of {8 * x.spec.known_dtype.itemsize} bits read as {dtype.name}")
    return c.op("view_dtype", {"dtype": dtype.code}, input=x)


# --- to ONNX


@to_onnx()
def _to_onnx_with_gradient(w: WrittenOp) -> Any:
    return ([w.node("Identity", x) for x in w.all("Value")],)


@to_onnx()
def _to_onnx_cast(w: WrittenOp) -> OnnxValue:
    x, to = w.x("X"), w.result("Out").known_dtype
    source = x.node.inputs[0] if x.node is not None and x.node.operator == "Cast" else None
    if to is INT64 and source is not None and source.node is not None and source.node.operator == "Shape":  # int32 here, and int64 there
        return source
    return w.node("Cast", x, to=w.writer.code_of(to))


@to_onnx()
def _to_onnx_assert(w: WrittenOp) -> Any:
    """A network of ONNX checks nothing."""
    return ()


# --- from PaddlePaddle 3


@from_pir("cast")
def _from_pir_cast(p: PirCall) -> Any:
    """Convert to another element type."""
    return p.apply("cast", {"in_dtype": p.dtype().code, "out_dtype": p.element_code()}, X=p.x())


# --- from torch


@from_torch("_to_copy", "to", "type_as", "convert_element_type")
def _from_torch_cast(t: TorchCall, x: Variable, *_: Any, **__: Any) -> Any:
    return t.cast(x, t.dtype)


@from_torch("clone", "alias", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "lift", "positive")
def _from_torch_same(t: TorchCall, x: Variable, *_: Any, **__: Any) -> Any:
    if t.name == "detach":
        copy = layer.assign(x)
        copy.stop_gradient = True
        return copy
    return x


@from_torch()
def _from_torch_copy(t: TorchCall, x: Variable, y: Any, *_: Any) -> Any:
    return layer.expand_as(t.tensor(y, t.dtype), x)


# --- to torch's code


@to_torch()
def _to_torch_cast(w: PlainOp) -> str:
    return w.cast(w.x("X"), w.dtype("X"), w.result("Out").known_dtype)
