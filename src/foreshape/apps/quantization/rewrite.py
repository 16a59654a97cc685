"""A program with its values rounded to 8 bits: as bytes for answers, or in fp32 with gradients for training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.apps.quantization.points import Points, QuantizedLayer
from foreshape.core.spec import FP32, INT8, INT32, DType, tensor
from foreshape.language.ops.quantization.fake import FakeChannelWiseQuantizeDequantizeAbsMax, FakeQuantizeDequantizeMovingAverageAbsMax
from foreshape.language.ops.quantization.grid import largest_level
from foreshape.language.program import Op, Program

LEVELS = largest_level(8)
Values = dict[str, Any]
_WHOLE, _BACK, _FAKE = ".quantized", ".dequantized", ".rounded"


class Rewriting:
    """The rewriting of one program in place.

    Attributes:
        values: the arrays of new and changed persistables.
    """

    def __init__(self, program: Program) -> None:
        self.block = program.global_block
        self.values: Values = {}

    def constant(self, name: str, array: Any, dtype: DType = FP32) -> str:
        """Make a persistable, unless it is there, and give it a value; return its name."""
        if name not in self.block.vars:
            self.block.create_variable(name, tensor(dtype, *array.shape), persistable=True, stop_gradient=True)
        self.values[name] = array
        return name

    def zeros(self, count: int) -> str:
        """Return the name of so many zero points. Nothing reads them, but PaddlePaddle's operators ask for them."""
        import numpy

        return self.constant(f"quantization@zero_{count}", numpy.zeros(count, "int32"), INT32)

    def behind(self, name: str) -> tuple[int, Any]:
        """Return the place behind the last maker of a value, and the line of the maker."""
        for index, op in reversed([*enumerate(self.block.ops)]):
            if name in op.output_names():
                return index + 1, op.site
        return 0, None

    def add(
        self, type: str, inputs: Mapping[str, str], outputs: Mapping[str, str], attrs: Mapping[str, Any], index: int, site: Any, drop: Sequence[str] = ()
    ) -> None:
        """Put an op at a place; ``drop``: its results to leave out."""
        op = self.block.append_op(type, inputs, outputs, attrs, site=site, index=index)
        for slot in drop:
            for name in op.output_slots.pop(slot, ()):
                if name not in inputs.values():
                    self.block.vars.pop(name, None)

    def read_instead(self, name: str, new: str, readers: Sequence[Op]) -> None:
        """Let ops read another value; fetch ops keep reading the first."""
        for op in readers:
            if op.is_run:
                op.rename_input(name, new)

    def readers(self, name: str) -> list[Op]:
        return [op for op in self.block.ops if name in op.input_names()]

    # --- bytes

    def round_value(self, name: str, scale: float) -> None:
        """Put ``quantize_linear`` and ``dequantize_linear`` behind a value, for all its readers."""
        import numpy

        readers, (index, site) = self.readers(name), self.behind(name)
        operands = {"Scale": self.constant(f"{name}@scale", numpy.array([scale if scale > _LEAST else 1.0], "float32")), "ZeroPoint": self.zeros(1)}
        self.add("quantize_linear", {"X": name, **operands}, {"Y": name + _WHOLE}, _attributes(-1), index, site, ("OutScale",))
        self.add("dequantize_linear", {"X": name + _WHOLE, **operands}, {"Y": name + _BACK}, _attributes(-1), index + 1, site, ("OutScale",))
        self.read_instead(name, name + _BACK, readers)

    def keep_as_bytes(self, layer: QuantizedLayer, weight: Any, per_channel: bool) -> None:
        """Keep a weight as int8, with ``dequantize_linear`` before its first reader."""
        name, readers = layer.weight, self.readers(layer.weight)
        axis = layer.axis if per_channel else -1
        encoded, scales = as_bytes(weight, axis)
        variable = self.block.vars[name]
        variable.inferred_spec = variable.spec.with_dtype(INT8)
        variable.is_parameter = variable.trainable = False
        self.values[name] = encoded
        operands = {"Scale": self.constant(f"{name}@scale", scales), "ZeroPoint": self.zeros(len(scales))}
        index = self.block.ops.index(readers[0])
        self.add("dequantize_linear", {"X": name, **operands}, {"Y": name + _BACK}, _attributes(axis), index, readers[0].site, ("OutScale",))
        self.read_instead(name, name + _BACK, readers)

    # --- training

    def follow_value(self, name: str, scale: float) -> None:
        """Put a rounding with a moving average of the largest size behind a value, for all its readers."""
        import numpy

        readers, (index, site) = self.readers(name), self.behind(name)
        start = numpy.array([scale if scale > _LEAST else 1.0], "float32")
        operands = {slot: self.constant(f"{name}@{suffix}", start.copy()) for slot, suffix in (("InScale", "scale"), ("InAccum", "sum"))}
        operands["InState"] = self.constant(f"{name}@count", numpy.ones(1, "float32"))
        out = {"Out": name + _FAKE, "OutScale": operands["InScale"], "OutAccum": operands["InAccum"], "OutState": operands["InState"]}
        attrs = {"bit_length": 8, "round_type": 0, "moving_rate": 0.9, "is_test": False}
        self.add("fake_quantize_dequantize_moving_average_abs_max", {"X": name, **operands}, out, attrs, index, site)
        self.read_instead(name, name + _FAKE, readers)

    def follow_weight(self, layer: QuantizedLayer) -> None:
        """Put a rounding by the largest size of each channel before a weight's first reader."""
        name, readers = layer.weight, self.readers(layer.weight)
        attrs = {"bit_length": 8, "quant_axis": layer.axis, "round_type": 0}
        index = self.block.ops.index(readers[0])
        self.add("fake_channel_wise_quantize_dequantize_abs_max", {"X": name}, {"Out": name + _FAKE}, attrs, index, readers[0].site)
        self.read_instead(name, name + _FAKE, readers)


_LEAST = 1e-30
"""Up to this all numbers count as 0, and any scale will do."""


def _attributes(axis: int) -> dict[str, Any]:
    return {"quant_axis": axis, "bit_length": 8, "round_type": 0, "is_test": True, "only_observer": False}


def as_bytes(weight: Any, axis: int) -> tuple[Any, Any]:
    """Return a weight as int8, and its scales: the largest size of each entry along an axis, or of all where it is below 0."""
    import numpy

    axes = tuple(k for k in range(weight.ndim) if k != axis)
    scale = numpy.abs(weight).max(axis=axes if axis >= 0 else None).astype("float32").reshape(-1)
    scale = numpy.where(scale > _LEAST, scale, numpy.float32(1.0))
    wide = scale.reshape([-1 if k == axis else 1 for k in range(weight.ndim)] if axis >= 0 else [])
    return numpy.clip(numpy.rint(weight / wide * numpy.float32(LEVELS)), -LEVELS, LEVELS).astype("int8"), scale


def with_bytes(program: Program, points: Points, scales: Mapping[str, float], weights: Mapping[str, Any], per_channel: bool) -> Values:
    """Round values and keep weights as bytes, in place; return the arrays of changed and new persistables."""
    rewriting = Rewriting(program)
    for name, scale in points.shared(scales).items():
        rewriting.round_value(name, scale)
    for layer in {s.weight: s for s in points.layers}.values():
        rewriting.keep_as_bytes(layer, weights[layer.weight], per_channel)
    return rewriting.values


def with_rounding(program: Program, points: Points, scales: Mapping[str, float]) -> Values:
    """Round values and weights in fp32, with gradients that pass through, in place; return the arrays of new persistables."""
    rewriting = Rewriting(program)
    for name, scale in points.shared(scales).items():
        rewriting.follow_value(name, scale)
    for layer in {s.weight: s for s in points.layers}.values():
        rewriting.follow_weight(layer)
    return rewriting.values


def rounded_in_training(program: Program) -> bool:
    """Return whether values of a program are rounded as `with_rounding` does."""
    return any(isinstance(op.operator, FakeQuantizeDequantizeMovingAverageAbsMax) for op in program.global_block.ops)


def without_rounding(program: Program) -> tuple[dict[str, str], set[str]]:
    """Take the rounding of training out of a program, in place.

    Returns:
        Each rounded value with the name of its scale, and the rounded weights.
    """
    block = program.global_block
    values: dict[str, str] = {}
    weights: set[str] = set()
    for op in [*block.ops]:
        followed = isinstance(op.operator, FakeQuantizeDequantizeMovingAverageAbsMax)
        if not followed and not isinstance(op.operator, FakeChannelWiseQuantizeDequantizeAbsMax):
            continue
        name, out = op.input_slots["X"][0], op.output_slots["Out"][0]
        if followed:
            values[name] = op.input_slots["InScale"][0]
        else:
            weights.add(name)
        for reader in block.ops:
            if reader is not op:
                reader.rename_input(out, name)
        block.remove_op(op)
    return values, weights
