"""The rows of operators that are one to one in other formats: they name what is here, once, and none stands beside a function that does the same."""

from __future__ import annotations

from importlib import resources

import pytest
from support.harness import sampled
from support.onnx_cases import cases, is_wanted, node_of, results
from support.plain_samples import differences

from foreshape.interop.forms import rows, rules
from foreshape.language.operator.registry import find

LINES = resources.files("foreshape.interop.forms").joinpath("operators.txt").read_text().splitlines()
TYPES = [line.split("; ")[0] for line in LINES]
PARTS = ("pir ", "onnx ", "from onnx ", "to onnx ", "from torch ", "to torch ")


def test_lines_are_sorted_and_name_operators_once() -> None:
    assert sorted(TYPES) == TYPES and len(set(TYPES)) == len(TYPES) > 350
    assert [type for type in TYPES if find(type) is None] == []


def test_parts_have_their_order() -> None:
    wrong: list[str] = []
    for line in LINES:
        kinds = [next((at for at, kind in enumerate(PARTS) if part.startswith(kind)), -1) for part in line.split("; ")[1:]]
        wrong += [line] if not kinds or -1 in kinds or kinds != sorted(kinds) else []
    assert not wrong


def test_a_name_of_another_format_stands_in_one_line() -> None:
    for kind in PARTS[:5]:
        names = [name for line in LINES for part in line.split("; ")[1:] if part.startswith(kind) for name in _names(part[len(kind) :], kind)]
        assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})


def _names(text: str, kind: str) -> list[str]:
    return text.split(" | ")[0].split() if kind == "pir " else [text.partition("(")[0]] if kind != "to onnx " else []


def test_signatures_name_slots_and_attributes_that_are_here() -> None:
    wrong: list[str] = []
    for type in TYPES:
        schema, row = find(type).schema, rows.row(type)  # pyright: ignore[reportOptionalMemberAccess]
        for direction, signature in row.signatures.items():
            wrong += [f"{type}: {direction}: no operand {slot}" for slot in signature.slots or () if slot not in schema.operand_names]
            wrong += [f"{type}: {direction}: no attribute {a.attribute}" for a in signature.arguments if a.attribute not in schema.attributes]
            required = [o.name for o in schema.operands if not o.optional]
            if signature.slots is not None:
                wrong += [f"{type}: {direction}: {slot} is missing" for slot in required if slot not in signature.slots]
    assert not wrong


@pytest.mark.parametrize("direction", ["to onnx", "to torch"])
def test_a_row_stands_beside_no_function_to_write_the_same(direction: str) -> None:
    functions = rules._onnx_writers if direction == "to onnx" else rules._torch_writers
    assert rules.types_in_onnx() and sorted(set(rows.types_to(direction)) & set(functions)) == []


def test_a_row_stands_beside_no_function_to_read_the_same() -> None:
    assert [name for name in rows.names_from_onnx() if rules._onnx_readers.get(("", name)) or rules.onnx_reader("", name, 1) is None] == []
    assert [name for name in rules._torch_readers if rows.row_from_torch(name) is not None] == []


def test_each_row_of_torch_code_computes_as_its_operator() -> None:
    """The first and the last sample of each, with usual and unusual attributes; all of them are run by the long tests of plain code."""
    types = set(rows.types_to("to torch"))
    samples = {cls.type: (cls, sample) for _, cls, sample in reversed(sampled()) if cls.type in types}
    assert len(samples) > 90
    chosen = [*samples.values(), *{cls.type: (cls, sample) for _, cls, sample in sampled() if cls.type in types}.values()]
    assert [(cls.type, words) for cls, sample in chosen if (words := differences(cls, sample))] == []


def test_each_node_with_a_row_gives_what_onnx_wants() -> None:
    names = set(rows.names_from_onnx())
    checked = {name: case for name, case in cases().items() if node_of(case).operator in names}
    assert len(checked) > 60
    assert [name for name, case in checked.items() if not all(is_wanted(case, at, got) for at, got in enumerate(results(case)))] == []
