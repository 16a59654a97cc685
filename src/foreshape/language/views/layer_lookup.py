"""Layers of a program by words: ``last pool``, ``second last conv``, ``before last linear``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from foreshape.core.spec import TENSOR_KINDS
from foreshape.errors import SchemaError
from foreshape.language.program.op import EMPTY, Op
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable

_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_SHOWN: Final = 12
_LONGEST: Final = 12
"""So many pieces of a name are looked at."""
_BESIDE: Final = re.compile(r"^v[0-9]+$|[0-9]+d?$")
"""The parts of a name beside its words, as the 2d of pool2d, the v2 of matmul_v2 and the 2 of reshape2."""


@dataclass(slots=True)
class NamedLayer:
    """Ops whose results carry one name, as ``linear_1`` of a product ``linear_1.tmp_0`` and its bias ``linear_1.tmp_1``; mostly one op."""

    name: str
    ops: list[Op] = field(default_factory=list["Op"])
    words: set[str] = field(default_factory=set[str])
    """The words that select it."""

    @property
    def outputs(self) -> list[Variable]:
        """Return the results of its last op, without values kept for gradients and statistics."""
        return _main_results(self.ops[-1])

    @property
    def inputs(self) -> list[Variable]:
        """Return its inputs: neither persistable nor made by itself."""
        result_names = {n for op in self.ops for n in op.output_names()}
        variables: dict[str, Variable] = {}
        for op in self.ops:
            for name in op.input_names():
                variable = op.block.find(name) if name not in result_names else None
                if variable is not None and not variable.persistable and variable.kind in TENSOR_KINDS:
                    variables[name] = variable
        return list(variables.values())


def layers_of(program: Program) -> list[NamedLayer]:
    """Return the layers of the global block, in execution order."""
    out: list[NamedLayer] = []
    by_name: dict[str, NamedLayer] = {}
    for op in program.global_block.ops:
        results = _main_results(op) if op.is_run else []
        if not results:
            continue
        name = results[0].name.rsplit(".tmp", 1)[0]
        layer = by_name.get(name)
        if layer is None:
            layer = by_name[name] = NamedLayer(name)
            out.append(layer)
        layer.ops.append(op)
        layer.words |= {op.type, *_words(op.type), *_words(name), name}
    return out


def outputs_of(program: Program, words: str) -> list[Variable]:
    """Return the variables selected by words; see `Program.outputs_of`."""
    block = program.global_block
    stripped = words.strip()
    if stripped in block.vars:
        return [block.vars[stripped]]
    is_before, place, word = _parsed(stripped)
    layers = layers_of(program)
    matches = [layer for layer in layers if word in layer.words]
    if not matches:
        raise SchemaError(f"no layer answers to {word!r}, of {words!r}; the last ones are\n{listing(layers)}")
    if place is None and len(matches) > 1:
        raise SchemaError(f"{len(matches)} layers answer to {word!r}: say which, as 'last {word}'; they are\n{listing(layers, matches)}")
    index = place or 0
    if not -len(matches) <= index < len(matches):
        raise SchemaError(f"only {len(matches)} layers answer to {word!r}, of {words!r}; they are\n{listing(layers, matches)}")
    layer = matches[index]
    out = layer.inputs if is_before else layer.outputs
    if is_before and len(out) != 1:
        names = ", ".join(map(str, out)) or "none"
        raise SchemaError(f"what stands before {layer.name} is not one variable: {names}; give the name of one")
    return out


def with_words(layers: Sequence[NamedLayer]) -> list[tuple[NamedLayer, str]]:
    """Return each layer with words for it: counted from the end among its kind, or else the name of its result."""
    counts: dict[str, int] = {}
    out: list[tuple[NamedLayer, str]] = []
    for layer in reversed(layers):
        for one in layer.words:
            counts[one] = counts.get(one, 0) + 1
        word = _kind(layer)
        place = counts.get(word, len(_ORDINALS) + 1)
        out.append((layer, _from_the_end(place, word) if place <= len(_ORDINALS) else layer.outputs[0].name))
    return out[::-1]


def listing(layers: Sequence[NamedLayer], some: Sequence[NamedLayer] | None = None) -> str:
    """List the last of some layers (by default all), a line for each: its words, and its results."""
    chosen = {id(layer) for layer in (layers if some is None else some)}
    rows = [(words, layer) for layer, words in with_words(layers) if id(layer) in chosen]
    last_rows = rows[-_SHOWN:]
    width = max((len(words) for words, _ in last_rows), default=0)
    lines = [f"    {words:{width}}  {', '.join(map(str, layer.outputs))}" for words, layer in last_rows]
    return "\n".join(([f"    ({len(rows) - len(last_rows)} before these)"] if len(rows) > len(last_rows) else []) + lines) or "    none"


def _from_the_end(place: int, word: str) -> str:
    return f"last {word}" if place == 1 else f"{_ORDINALS[place - 1]} last {word}"


def _parsed(words: str) -> tuple[bool, int | None, str]:
    """Parse words: True for the layer before, the number among several (from 0, or from -1 backwards), and the word itself."""
    left = words.split()
    is_before = bool(left) and left[0] == "before"
    left = left[is_before:]
    place: int | None = None
    if len(left) > 1 and left[0] in _ORDINALS:
        place = _ORDINALS.index(left[0])
        left = left[1:]
    if len(left) > 1 and left[0] == "last":
        place = -1 - (place or 0)
        left = left[1:]
    if len(left) != 1:
        raise SchemaError(
            f"a layer is selected by words such as 'last pool', 'second last conv', 'before last linear', or by the name of a variable; seen {words[:100]!r}"
        )
    return is_before, place, left[0]


def _pieces(name: str) -> list[str]:
    return [short for piece in re.split(r"[._/]", name) if (short := _BESIDE.sub("", piece))]


def _words(name: str) -> set[str]:
    """Return the words in a name, one and several in a row: ``max_pool2d_with_index`` has max, pool, max_pool and so on."""
    pieces = _pieces(name)[:_LONGEST]
    return {"_".join(pieces[first:last]) for first in range(len(pieces)) for last in range(first + 1, len(pieces) + 1)}


def _kind(layer: NamedLayer) -> str:
    """Return a person's word: the type of its op, or the name of a layer of several."""
    pieces = _pieces(layer.name) if len(layer.ops) > 1 else []
    return "_".join(pieces or _pieces(layer.ops[-1].type)).removeprefix("elementwise_") or layer.ops[-1].type


def _main_results(op: Op) -> list[Variable]:
    """Return the non-persistable tensors of the first result slot with any."""
    slots = [r.name for r in op.operator.schema.results if not r.optional] if op.operator is not None else list(op.outputs)
    for slot in slots:
        names = [n for n in op.outputs.get(slot, ()) if n and n != EMPTY]
        variables = [v for n in names if (v := op.block.find(n)) is not None and not v.persistable and v.kind in TENSOR_KINDS]
        if variables:
            return variables
    return []
