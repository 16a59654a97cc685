"""`RuleQuestions`: how ops make the sizes of their results, of any number of ops: alike ops are asked once, and named when they are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from foreshape.language.program.op import Op
from foreshape.language.program.variable import Variable
from foreshape.language.views.explain import Place, Probes, by_words, step_of

_PLACE: Final = re.compile("\0(\\d+)\0")


class Made(NamedTuple):
    """The formula of dim ``at`` of a result over sizes of the op's inputs, as ``("(", " - 1) // 2 + 1")`` around one size.

    Attributes:
        text: the formula, cut at its sizes.
        places: the index into ``sources`` behind each piece but the last.
        sources: each the number of an input (see `read_by`), ``dim``, ``count`` or ``value``, and its index.
        by: the operator, in words.
    """

    at: int
    text: tuple[str, ...]
    places: tuple[int, ...]
    sources: tuple[tuple[int, str, int], ...]
    by: str


class RuleQuestions:
    """Questions to the rules of ops, of a limited number of different ones."""

    def __init__(self, limit: int) -> None:
        self.most = limit
        self.forms: list[list[list[Made]]] = []
        """Forms shared by ops: for each result, in the order of the slots, its sizes."""
        self._found: dict[object, int] = {}

    def of(self, op: Op) -> int | None:
        """Return the form of an op, an index into `forms`; -1 without a rule; None beyond the limit of different ones."""
        operator = op.operator
        if operator is None:
            return -1
        inputs = read_by(op)
        numbers = {v.name: number for number, v in enumerate(inputs)}
        wired = tuple([(slot, tuple([numbers.get(n, -1) for n in names])) for slot, names in op.inputs.items()])
        results = [v for n in op.output_names() if (v := op.block.find(n)) is not None]
        if not any(v.known for v in results):
            return -1
        kinds = tuple([(v.known, v.persistable, v.op is op, v.spec) for v in results])
        key = (id(operator), wired, tuple([v.spec for v in inputs]), tuple([(s, len(names)) for s, names in op.outputs.items()]), kinds)
        form = self._found.get(key)
        if form is None:
            if len(self.forms) >= self.most:
                return None
            form = self._found[key] = len(self.forms)
            self.forms.append(list(_form(op, Probes(op, operator), results, {id(v): number for number, v in enumerate(inputs)})))
        return form


def read_by(op: Op) -> list[Variable]:
    """Return the inputs of an op, each once, in the order of their numbers in `Made`."""
    return list(dict.fromkeys(op.input_variables()))


def _form(op: Op, probes: Probes, results: list[Variable], numbers: dict[int, int]) -> Iterator[list[Made]]:
    for variable in results:
        entries: list[Made] = []
        if variable.op is op and not variable.persistable and variable.known:
            for axis in range(len(variable.spec.dims or ())):
                step = step_of(Place(variable, "dim", axis), probes)
                if step is None:
                    continue
                formula = step.formula.replace("\0", "?")
                places = [p for p in step.places if id(p.variable) in numbers]
                for number, place in sorted(enumerate(places), key=lambda p: -len(p[1].text())):
                    formula = formula.replace(place.text().replace("\0", "?"), f"\0{number}\0")
                pieces = _PLACE.split(formula)
                sources = tuple((numbers[id(p.variable)], p.part, p.at) for p in places)
                entries.append(Made(axis, tuple(pieces[::2]), tuple(int(n) for n in pieces[1::2]), sources, by_words(op, step)))
        yield entries
