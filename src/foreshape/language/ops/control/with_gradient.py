"""Results with a gradient of their own, other than the one of their computation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from foreshape.core.spec import ANY_OR_COMPLEX, COMPLEX, EVERY_TYPE, FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import SchemaError
from foreshape.language.operator import OWN, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.samples import f32, sample

_REVERSED = '{"ops": [["scale", {"X": ["g0"]}, {"Out": ["t0"]}, {"scale": -1.0}]], "gives": {"0": "t0"}}'
_MULTIPLIED = '{"ops": [["elementwise_mul", {"X": ["g1"], "Y": ["s0"]}, {"Out": ["t0"]}, {}]], "gives": {"1": "t0"}}'


class WithGradient(Operator):
    """Out = Value. Its gradient goes to X by the ops of ``backward``, whatever Value was computed from: a reversed, a clipped or a straight-through one.

    ``backward`` is JSON: ``{"ops": [[type, inputs, outputs, attributes], ...], "gives": {place in X: name}}``. In it ``g0`` is the gradient of the first
    Out, ``s0`` the first of Saved, and other names are results of its ops.
    """

    type = "with_gradient"
    since = OWN
    X = operand((*FLOATING, *COMPLEX), many=True, doc="the tensors to which the gradient goes")
    Value = operand(ANY_OR_COMPLEX, many=True, doc="any shapes")
    Saved = operand(EVERY_TYPE, many=True, optional=True, doc="the tensors read by ``backward``")
    Out = result(many=True, view_of="Value", doc="each as its Value")
    backward = attribute(AttrType.STRING, '{"ops": [], "gives": {}}', doc="the ops of the gradient, in JSON")
    refusal = attribute(AttrType.STRING, "", doc="why the gradient has no ops, for whoever asks for it")

    def infer_shape(self, X: tuple[Spec, ...], Value: tuple[Spec, ...], Saved: tuple[Spec, ...]) -> Any:
        return Value

    def kernel(self, X: list[Tensor], Value: list[Tensor], Saved: list[Tensor]) -> list[Tensor]:
        return list(Value)

    def gradient_ops(self, slots: GradientSlots) -> None:
        if self.refusal:
            raise SchemaError(self.refusal)
        ops, gives = self._parsed()
        targets = slots.input("X")
        required = {name for place, name in gives.items() if slots.needs(targets[place])}
        needed: list[Any] = []
        for op in reversed(ops):
            if any(name in required for names in op[2].values() for name in names):
                needed.append(op)
                required.update(name for names in op[1].values() for name in names)
        names = {f"s{index}": name for index, name in enumerate(slots.input("Saved"))}
        for index, (name, gradient) in enumerate(zip(slots.output("Out"), slots.grad_of_output("Out"), strict=True)):
            names[f"g{index}"] = gradient
            if f"g{index}" in required and name not in slots.available:
                slots.add("fill_zeros_like", {"X": [name]}, {"Out": [name]})
        temporaries: dict[str, str] = {}
        for type, inputs, outputs, attrs in reversed(needed):
            read = {slot: [names[name] for name in listed] for slot, listed in inputs.items()}
            for name in (name for listed in outputs.values() for name in listed):
                temporaries[name] = slots.op.block.program.unique_name(f"{slots.output('Out')[0]}.{name}")
                names[name] = f"{temporaries[name]}@GRAD"
            slots.add(type, read, {slot: [temporaries[name] for name in listed] for slot, listed in outputs.items()}, attrs)
        for place, name in gives.items():
            if slots.needs(targets[place]):
                slots.add("assign", {"X": [names[name]]}, {"Out": [targets[place]]})

    def _parsed(self) -> tuple[list[Any], Mapping[int, str]]:
        """Return the ops, and place in X -> the name of its gradient. Raises `SchemaError` for other text."""
        try:
            read = json.loads(self.backward)
            return list(read["ops"]), {int(place): str(name) for place, name in read["gives"].items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise SchemaError.must("backward of with_gradient", "JSON with ops and gives", f"{error}") from None

    samples = [
        sample(X=[f32(2, 3)], Value=[f32(2, 3)], differentiate=False, backward=_REVERSED),
        sample(X=[f32(2), f32(3, 4)], Value=[f32(5), f32(3, 4)], Saved=[f32(3, 4)], differentiate=False, backward=_MULTIPLIED),
    ]
