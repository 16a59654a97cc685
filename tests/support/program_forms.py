"""Programs but for their names: what each result is made of, by its operators, attributes and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from foreshape.core.spec import Spec
from foreshape.interop.parameters import Stored
from foreshape.language.program import Block, Op, Program
from foreshape.language.program.op import is_empty_name

Form = tuple[Any, ...]


def _spec(spec: Spec | None) -> Form:
    if spec is None:
        return ()
    dims = None if spec.dims is None else tuple(d if isinstance(d, int) else "?" for d in spec.dims)
    return str(spec.kind), str(spec.dtype), dims


class _Forms:
    """The forms of a program's values, each as a short digest: of names nothing is left."""

    def __init__(self, program: Program, values: Mapping[str, Stored]) -> None:
        self.program, self.values = program, values
        self.found: dict[str, str] = {}
        self.counts: dict[str, int] = {}

    def digest(self, *parts: Any) -> str:
        return sha256(repr(parts).encode()).hexdigest()[:16]

    def of(self, block: Block, name: str) -> str:
        if name not in self.found:
            variable = block.find(name)
            spec = _spec(variable.spec if variable is not None else None)
            stored = self.values.get(name)
            self.found[name] = self.digest("value", spec, sha256(bytes(stored.data)).hexdigest() if stored is not None else "")
        return self.found[name]

    def known(self, spec: Spec | None) -> str:
        """Return the form of whole numbers that are known before the run, whatever makes them; empty for others."""
        if spec is None or spec.value is None or spec.dims is None or not all(isinstance(n, int) for n in (*spec.value, *spec.dims)):
            return ""
        return self.digest("known", str(spec.dtype), spec.dims, spec.value)

    def filled(self, op: Op) -> str:
        """Return the form of equal numbers in dims that are known; empty for what else an op makes."""
        variable = op.block.find(op.output_slots["Out"][0]) if op.type in ("fill_constant", "fill_any_like") else None
        spec = variable.spec if variable is not None else None
        if spec is None or spec.dims is None or not all(isinstance(d, int) for d in spec.dims) or op.input_slots.get("ValueTensor"):
            return ""
        value = op.attributes.values["value"]
        text = op.attributes.values.get("str_value", "")
        return self.known(spec) or self.digest("filled", _spec(spec), float(text) if text else float(value))

    def op(self, op: Op) -> str:
        if op.type == "feed":
            at = self.counts["feed"] = self.counts.get("feed", 0) + 1
            form = self.digest("feed", at)
        else:
            inputs = tuple(
                (slot, tuple("" if is_empty_name(n) else self.of(op.block, n) for n in names)) for slot, names in sorted(op.input_slots.items()) if names
            )
            filled = self.filled(op)
            if filled:
                self.found[op.output_slots["Out"][0]] = filled
                return filled
            left = ("op_role", "op_role_var", "op_namescope", "sub_block", "col", "str_value")
            values = {k: v for k, v in op.attributes.values.items() if k not in left}
            if op.attributes.values.get("str_value"):
                values["value"] = float(op.attributes.values["str_value"])
            blocks = tuple(self.block(self.program.blocks[idx]) for idx in op.attributes.sub_blocks)
            form = self.digest(op.type, sorted((k, repr(v)) for k, v in values.items() if not (blocks and isinstance(v, (str, list, tuple)))), inputs, blocks)
        for slot, names in op.output_slots.items():
            for at, name in enumerate(names):
                if not is_empty_name(name):
                    variable = op.block.find(name)
                    spec = op.made.get(name) or (variable.spec if variable is not None else None)
                    self.found[name] = self.known(spec) or self.digest(form, slot, at, _spec(spec))
        return form

    def block(self, block: Block) -> str:
        return self.digest(*[self.op(op) for op in block.ops])


def forms_of(program: Program, values: Mapping[str, Stored]) -> list[str]:
    """Return the form of each fetched value."""
    forms = _Forms(program, values)
    out: list[str] = []
    for op in program.global_block.ops:
        if op.type == "fetch":
            out.append(forms.of(op.block, op.input_slots["X"][0]))
        else:
            forms.op(op)
    return out
