"""``foreshape show FILE --tail``: the last layers, with words to select them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from foreshape.apps.cli.output import console, print_plain, printing
from foreshape.apps.cli.show import new_row, new_table, variable_facts
from foreshape.language.operator.registry import layer_name
from foreshape.language.program import Program
from foreshape.language.views.layer_lookup import NamedLayer, layers_of, with_words

_SHOWN: Final = 16


def tail_facts(program: Program) -> list[dict[str, Any]]:
    """Return the last layers for JSON, in their order."""
    return [
        {"words": words, "name": layer.name, "ops": [op.type for op in layer.ops], "results": [variable_facts(v) for v in layer.outputs]}
        for layer, words in with_words(layers_of(program))[-_SHOWN:]
    ]


def print_tail(program: Program) -> None:
    """Print a line for each of the last layers: the words to select it, its ops, and its results."""
    layers = with_words(layers_of(program))
    table = new_table(f"the last {min(_SHOWN, len(layers))} of {len(layers)} layers", "words", "ops", "result", "type and shape")
    for layer, words in layers[-_SHOWN:]:
        for position, variable in enumerate(layer.outputs):
            new_row(table, *((words, _ops_of(layer)) if position == 0 else ("", "")), variable.name, variable.spec.text() + ("" if variable.known else " ?"))
    with printing():
        console().print(table)
        print_plain("the input of a layer is selected with before, as in: before " + (layers[-1][1] if layers else "last softmax"))


def _ops_of(layer: NamedLayer) -> str:
    return ", ".join(f"{count} {type}" if count > 1 else type for type, count in Counter(layer_name(op.type) for op in layer.ops).items())
