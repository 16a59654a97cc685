"""The table of operators names what is here, and fits the programs that PaddlePaddle 3 wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from differences import UNKNOWN
from support.paddle3 import cases

from foreshape.interop.forms.rows import pir_columns
from foreshape.interop.forms.rules import modules_with, pir_operators
from foreshape.interop.pir import table
from foreshape.interop.pir.pir_graph import IGNORED, plain
from foreshape.interop.pir.table import TableRow, row_of
from foreshape.language.operator.registry import find

OPERAND = re.compile(r"-|~|\w+(/\w+)?(@\w+)?|@\w+")
RESULT = re.compile(r"-|[\w-]+")
ATTRIBUTE = re.compile(r'\w+>\w+|\w+[!=](\*|true|false|\{\}|"\w*"|-?\d+|-?\d+\.\d+(e-?\d+)?)')


def ops_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    regions = [document["program"]["regions"][0]]
    while regions:
        for op in regions.pop()["blocks"][0]["ops"]:
            yield op
            regions += op.get("regions", ())


@pytest.fixture(scope="module")
def written() -> dict[str, list[dict[str, Any]]]:
    """The ops of all programs, by operator."""
    out: dict[str, list[dict[str, Any]]] = {}
    for file in ("operators", "networks", "twins"):
        for case in cases(file).values():
            for op in ops_of(case.document):
                if op["#"].startswith("1."):
                    out.setdefault(op["#"][2:], []).append(op)
    return out


def rows() -> list[tuple[str, TableRow]]:
    return [(name, row) for name in table.operators() if (row := row_of(name)) is not None]


def test_columns_are_well_formed() -> None:
    wrong: list[str] = []
    for name, text in pir_columns().items():
        parts = [part.split() for part in text.split("|")]
        good = len(parts) in (1, 3, 4) and len(parts[0]) == 1 and all(RESULT.fullmatch(w) for w in (parts[2] if len(parts) > 1 else ()))
        good = good and all(OPERAND.fullmatch(w) for w in (parts[1] if len(parts) > 1 else ()))
        wrong += [] if good and all(ATTRIBUTE.fullmatch(w) for w in (parts[3] if len(parts) > 3 else ())) else [f"{name}: {text}"]
    assert not wrong
    assert len(table.operators()) > 350


def test_rows_name_operators_slots_and_attributes_that_are_here() -> None:
    wrong: list[str] = []
    for name, row in rows():
        operator = find(row.type)
        if operator is None:
            wrong.append(f"{name}: no operator {row.type}")
            continue
        schema = operator.schema
        operands, results = {s.name for s in schema.operands}, {s.name for s in schema.results}
        wrong += [f"{name}: no operand {s}" for of in row.operands for s in (of.slot, of.many) if s and s not in operands]
        wrong += [f"{name}: no attribute {of.attribute}" for of in row.operands if of.attribute and of.attribute not in schema.attributes]
        wrong += [f"{name}: no result {s}" for s in row.results if s and s not in results]
        wrong += [f"{name}: no attribute {a}" for a in row.renamed.values() if a not in schema.attributes]
        wrong += [f"{name}: no attribute {a}" for a in row.fixed if a not in schema.attributes]
        wrong += [f"{name}: {a} has two meanings" for a in row.only if a in row.renamed]
        slots = [s for of in row.operands for s in {of.slot, of.many} if s]
        wrong += [f"{name}: a slot twice" for listed in (slots, [r for r in row.results if r]) if len(set(listed)) != len(listed)]
    assert not wrong


def test_required_operands_and_results_have_their_place() -> None:
    """What an operator here cannot do without is in its row."""
    wrong: list[str] = []
    for name, row in rows():
        operator = find(row.type)
        assert operator is not None
        has = {s for of in row.operands for s in (of.slot, of.many)}
        wrong += [f"{name}: {s.name} of {row.type} is not given" for s in operator.schema.operands if not s.optional and s.name not in has]
    assert not wrong


def test_rows_have_as_many_operands_and_results_as_the_programs(written: dict[str, list[dict[str, Any]]]) -> None:
    wrong: set[str] = set()
    checked = 0
    for name, ops in written.items():
        row = row_of(name)
        if row is None or f"pd_op.{name}" in pir_operators():
            continue
        for op in ops:
            checked += 1
            given = len(op["I"])
            if given != len(row.operands):
                wrong.add(f"{name}: {given} operands, and {len(row.operands)} in the table")
            made = len(op["O"])
            if made != len(row.results):
                wrong.add(f"{name}: {made} results, and {len(row.results)} in the table")
    assert not wrong and checked > 3000


def test_attributes_of_the_programs_have_a_meaning(written: dict[str, list[dict[str, Any]]]) -> None:
    wrong: set[str] = set()
    for name, ops in written.items():
        row = row_of(name)
        if row is None or f"pd_op.{name}" in pir_operators():
            continue
        operator = find(row.type)
        assert operator is not None
        for op in ops:
            for attribute in op["A"]:
                there = attribute["N"]
                if there not in IGNORED and there not in row.only and row.renamed.get(there, there) not in operator.schema.attributes:
                    wrong.add(f"{name}: {there} = {plain(attribute['AT'])}")
    assert not wrong


def test_each_operator_of_the_programs_has_a_row_or_a_rule(written: dict[str, list[dict[str, Any]]]) -> None:
    assert {f"pd_op.{name}" for name in written if row_of(name) is None and f"pd_op.{name}" not in pir_operators()} == set(UNKNOWN.values())


def test_every_function_names_its_operator_where_its_file_is_found_by() -> None:
    functions = {name.removeprefix("pd_op."): function for name, function in pir_operators().items() if ".forms." in function.__module__}
    assert len(functions) > 30
    lost = [name for name, function in functions.items() if function.__module__ not in modules_with("from_pir", name)]
    assert not lost, "their decorators must have the names written out"
