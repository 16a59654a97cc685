"""Where a reader finds an operator: in the reference, and by `foreshape ops`."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

from typer.testing import CliRunner

import foreshape.language.ops
from foreshape.apps.cli.commands import app
from foreshape.apps.cli.operators import facts

ROOT = Path(__file__).parents[2]
REFERENCE = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs/operators").glob("*.md"))
ALL = facts(None)


def test_each_operator_is_in_the_reference_with_its_file() -> None:
    for one in ALL:
        entry = REFERENCE.split(f"\n## {one['operator']}\n", 1)
        assert len(entry) == 2, f"{one['operator']} has no entry"
        assert f"- file: `{one['file']}`" in entry[1].split("\n## ", 1)[0], one
        assert f'"{one["operator"]}"' in (ROOT / "src/foreshape" / one["file"]).read_text(encoding="utf-8"), one
        assert one["help"], one


def test_each_family_has_a_page_of_help_and_nothing_lies_beside_them() -> None:
    folder = Path(inspect.getfile(foreshape.language.ops)).parent
    assert [p.name for p in folder.glob("*.py")] == ["__init__.py"]
    for family in {f["family"] for f in ALL}:
        assert importlib.import_module(f"foreshape.language.ops.{family}").__doc__


def test_operators_are_listed_by_a_word() -> None:
    runner = CliRunner()
    table = runner.invoke(app, ["ops", "CONV"])
    assert table.exit_code == 0 and "conv2d_transpose" in table.output and "softmax" not in table.output
    found = {f["operator"]: f for f in json.loads(runner.invoke(app, ["ops", "--json"]).output)}
    assert len(found) == len(ALL) > 200
    assert found["sequence_pool"]["ragged"] and not found["relu"]["ragged"]
    assert found["sum"]["sparse"] and not found["conv2d"]["sparse"]
    assert found["conv2d"]["differentiable"] and not found["accuracy"]["differentiable"]
    assert "no operator has 'nosuch'" in runner.invoke(app, ["ops", "nosuch"]).output
