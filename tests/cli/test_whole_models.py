"""The command with networks of which not all is known here: unknown operators, operators of one's own, what `check` finds in a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.commanded import call

import foreshape as fs
from foreshape import layer
from foreshape.language.operator import registry


def rows_of(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


OPERATORS = """
import torch
from foreshape.language.operator import FLOATING, NOT_DIFFERENTIABLE, Operator, attribute, operand, result, AttrType

class Thrice(Operator):
    \'\'\'Out = factor X.\'\'\'
    type = "thrice"
    gradient = NOT_DIFFERENTIABLE
    X = operand(FLOATING)
    Out = result()
    factor = attribute(AttrType.FLOAT, 3.0)

    def infer_shape(self, X):
        return X

    def kernel(self, X):
        return self.factor * X
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """relu, then two operators that nobody knows, one of them twice; and one that lies beside them."""
    x = layer.data("x", shape=["batch", 3])
    hidden = layer.relu(x)
    fs.save_inference_model(tmp_path / "net", [x], [hidden], scope=fs.Scope())
    text = str(fs.load_program(tmp_path / "net.pdmodel"))
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "fetch(" in line)
    read = hidden.name
    lines[at:at] = [
        f"Out=a?: f32[batch, 3] = thrice(X={read}) {{}}", "Out=b?: f32[batch, 3] = thrice(X=a) {}", "Out=c?: f32[batch, 3] = nobodys(X=b) {}",
        "Out=d?: f32[batch, 3] = relu(X=c) {}", f"Out=e: f32[batch, 3] = tanh(X={read}) {{}}",
    ]  # fmt: skip
    lines = ["# " + line if line.startswith("order") else line for line in lines]
    path = tmp_path / "whole.pdmodel"
    fs.Program.parse("\n".join(lines) + "\n").save(path)
    return path


@pytest.fixture
def operators(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "ops_of_a_test.py"
    file.write_text(OPERATORS)
    yield file
    sys.modules.pop("ops_of_a_test", None)
    for type in ("thrice", "thrice_grad"):
        registry._registry.pop(type, None)


def test_show_and_check_go_on_after_operators_that_are_not_known(path: Path) -> None:
    code, out, _ = call("show", path)
    assert code == 0
    assert "the operator 'thrice' is not known here (2 ops, the first is op 3 of block 0); results that depend on it are marked ?" in out
    assert "the operator 'nobodys' is not known here (op 5 of block 0); results that depend on it are marked ?" in out
    rows = {line.split()[2]: line for line in out.splitlines() if len(line.split()) > 3 and line.split()[0].isdecimal()}
    assert "f32[batch, 3] ?" in rows["d"] and "?" not in rows["e"] and "f32[batch, 3]" in rows["e"]
    code, out, _ = call("check", path)
    assert code == 1
    assert ["thrice", "2", "not", "known"] in rows_of(out) and ["tanh", "1", "yes"] in rows_of(out)
    assert "of unknown shape, since they depend on these operators: 4 variables\n0 errors, 0 open guards, 2 unknown operators\n" in out
    facts = json.loads(call("check", path, "--json")[1])
    assert facts["unknown_operators"] == {"nobodys": 1, "thrice": 2} and facts["uncertain_variables"] == 4
    assert facts["unknown"][0] == {"type": "thrice", "count": 2, "first": "op 3 of block 0", "reason": None}


def test_run_and_plan_refuse_all_of_them_at_once(path: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    code, out, err = call("run", path, "--feed", f"x={tmp_path / 'x.npy'}", "--fetch", "d", "--out", tmp_path / "out")
    listed = ("2 operators are not known here:\n    'thrice' is not known here (2 ops, the first is op 3 of block 0)\n"
              "    'nobodys' is not known here (op 5 of block 0)\n")  # fmt: skip
    assert (code, out, err) == (1, "", f"ExecutionError: the program cannot run: {listed}")
    assert not (tmp_path / "out").exists()
    assert call("plan", path, "--fetch", "d") == (1, "", f"MemoryPlanError: the memory cannot be planned: {listed}")
    code, out, _ = call("run", path, "--feed", f"x={tmp_path / 'x.npy'}", "--fetch", "e", "--out", tmp_path / "out")  # which needs none of them
    assert code == 0 and np.allclose(np.load(tmp_path / "out" / "e.npy"), np.tanh(1.0))


def test_an_operator_of_ones_own_makes_it_known(path: Path, operators: Path, tmp_path: Path) -> None:
    assert "the operator 'thrice' is not known" in call("check", path)[1]  # what was read before must not be taken for what it is now
    code, out, _ = call("check", path, "--operators", operators)
    assert code == 1 and ["thrice", "2", "yes"] in rows_of(out) and "1 unknown operator\n" in out
    code, out, _ = call("show", path, "--operators", operators)
    assert code == 0 and "thrice' is not known" not in out
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    code, out, err = call("run", path, "--operators", operators, "--feed", f"x={tmp_path / 'x.npy'}", "--fetch", "b", "--out", tmp_path / "out")
    assert code == 0, err
    assert np.array_equal(np.load(tmp_path / "out" / "b.npy"), np.full((2, 3), 9, np.float32))
    code, out, err = call("plan", path, "--operators", operators, "--fetch", "b", "--batch", "2")
    assert code == 0 and "peak for batch = 2" in out, err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = (1\n", "mine_of_a_test.py:1: not Python: '(' was never closed"),
        ("import nothing_of_that_name\n", "ModuleNotFoundError: No module named 'nothing_of_that_name'\n    mine_of_a_test.py:1    import nothing"),
        ("x = 1\n", "mine_of_a_test.py defines no operator: a subclass of foreshape.Operator with a type"),
        ("raise SystemExit(3)\n", "cannot be imported: it exits with 3"),
        ("import foreshape as fs\nclass Bad(fs.Operator):\n    type = 'bad'\n", "cannot be imported: SchemaError: "),
    ],
)
def test_mistakes_in_the_file_are_told_in_words(path: Path, tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "mine_of_a_test.py"
    file.write_text(text)
    before = list(sys.path)
    code, out, err = call("check", path, "--operators", file)
    assert (code, out) == (1, "") and says in err and "Traceback" not in err
    assert sys.path == before
    sys.modules.pop("mine_of_a_test", None)


def test_files_that_cannot_be_such_a_module_are_refused(path: Path, tmp_path: Path) -> None:
    code, _, err = call("check", path, "--operators", tmp_path / "absent.py")
    assert code == 2 and "there is no such file" in err
    (tmp_path / "json.py").write_text("x = 1\n")
    code, _, err = call("check", path, "--operators", tmp_path / "json.py")
    assert code == 1 and "a module named json is already imported" in err and sys.modules["json"] is json


def test_convert_writes_what_run_reads(tmp_path: Path) -> None:
    x = layer.data("x", shape=["batch", 4])
    scope = fs.Scope()
    scope.set("fc_0.w_0", np.arange(8, dtype=np.float32).reshape(4, 2))
    fs.save_inference_model(tmp_path / "net", [x], [layer.fc(x, 2, bias=False)], scope=scope)
    model, there, back = tmp_path / "net.pdmodel", tmp_path / "net.safetensors", tmp_path / "again.pdiparams"
    assert call("convert", model, tmp_path / "net.pdiparams", there) == (0, f"{there}: 1 parameter, 32 bytes\n", "")
    assert call("convert", model, there, back) == (0, f"{back}: 1 parameter, 32 bytes\n", "")
    assert back.read_bytes() == (tmp_path / "net.pdiparams").read_bytes()
    code, out, err = call("convert", model, there, tmp_path / "net.txt")
    assert (code, out) == (1, "") and "a file that ends in .safetensors or .pdiparams, or to a folder" in err
