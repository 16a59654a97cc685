"""`Steps`: how each op makes each size of its results, of thousands of ops: alike ops are asked once."""

from __future__ import annotations

from typing import NamedTuple

from foreshape.program.explain import Place, Step, by_words, step_of
from foreshape.program.op import Op
from foreshape.program.variable import Variable


class Made(NamedTuple):
    """One step: ``place`` (``y[2]``) is ``formula`` (``(x[2] - 1) // 2 + 1``), which has sizes of ``sources``: each a variable and which dim."""

    place: str
    formula: str
    sources: tuple[tuple[str, int], ...]
    by: str


class Steps:
    """Asks the rules of ops, at most so many times."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: dict[object, tuple[str, tuple[tuple[int, str, int], ...], Step]] = {}

    def of(self, variable: Variable) -> list[Made] | None:
        """Where each dim of a variable comes from, one step back; empty where no op makes it. None after too many questions."""
        op = variable.op
        if op is None or op.operator is None or variable.persistable:
            return []
        out: list[Made] = []
        for at in range(len(variable.spec.dims or ())):
            place = Place(variable, "dim", at)
            made = self._made(place, op)
            if made is None:
                return None
            if made.formula:
                out.append(made)
        return out

    def _made(self, place: Place, op: Op) -> Made | None:
        variable = place.variable
        inputs = list(dict.fromkeys(op.input_variables()))
        numbers = {id(v): at for at, v in enumerate(inputs)}
        wired = tuple((slot, tuple(numbers.get(id(op.block.find(n)), -1) for n in names)) for slot, names in op.inputs.items())
        slot = next(((s, names.index(variable.name)) for s, names in op.outputs.items() if variable.name in names), None)
        key = (op.type, _settings(op), wired, tuple(v.spec for v in inputs), slot, place.at, variable.known)
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= self.most:
                return None
            step = step_of(place)
            if step is None:
                found = ("", (), Step("", [], True))
            else:
                formula = step.formula
                places = [p for p in step.places if id(p.variable) in numbers]
                for number, one in sorted(enumerate(places), key=lambda p: -len(p[1].text())):
                    formula = formula.replace(one.text(), f"\0{number}\0")
                found = (formula, tuple((numbers[id(p.variable)], p.part, p.at) for p in places), step)
            self._found[key] = found
        formula, sources, step = found
        read = [Place(inputs[at], part, axis) for at, part, axis in sources]
        for number, one in enumerate(read):
            formula = formula.replace(f"\0{number}\0", one.text())
        return Made(place.text(), formula, tuple((p.variable.name, p.at) for p in read if p.part == "dim"), by_words(op, step) if formula else "")


def _settings(op: Op) -> str:
    operator = op.operator
    return "" if operator is None else repr([(n, getattr(operator, n)) for n in operator.schema.attributes])
