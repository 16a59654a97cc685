"""The page of a network: what is in it, read without a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import pictured
from support.commanded import call
from support.html_pages import Page

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory.records import CLASSES
from foreshape.language.operator.registry import shown_type
from foreshape.runtime.report import report_page
from foreshape.runtime.report.facts import facts
from foreshape.runtime.report.texts import BATCHES, over_batches

CORPUS = Path(__file__).parents[1] / "corpus"


def load(name: str) -> fs.Program:
    return fs.load_program(CORPUS / name / "main.pdmodel")


def at(size: Any, batch: int) -> int:
    if size is None or isinstance(size, int):
        return size or 0
    return size[0] + size[1] * batch if isinstance(size, list) else size["at"][BATCHES.index(batch)]


@pytest.mark.quick_cases("resnet50")
@pytest.mark.parametrize("name", ["resnet50", "transformer_adamw", "while_loop"])
def test_the_page_has_every_op_its_shapes_and_its_place(name: str) -> None:
    program = load(name)
    data = json.loads(json.dumps(facts(program, name)))
    text = data["texts"].__getitem__
    program.refresh()
    ops = [op for block in program.blocks for op in block.ops]
    assert [text(op[0]) for op in data["ops"]] == [shown_type(op.type) for op in ops]
    for op, row in zip(ops, data["ops"], strict=True):
        assert [[text(data["values"][v][0]) for v in names] for _, names in row[8]] == [list(n) for n in op.outputs.values() if n]
        for (_, names), given in zip(row[7], (n for n in op.inputs.values() if n), strict=True):
            assert [text(data["values"][v][1]) for v in names] == [op.block.var(n).spec.text() for n in given]
    forward = [row for op, row in zip(ops, data["ops"], strict=True) if not op.role & 0x13 and op.type not in ("feed", "fetch")]
    assert all(row[3] >= 0 for row in forward)
    seen: set[int] = set()

    def look(boxes: list[Any]) -> None:
        for box in boxes:
            seen.add(box[0])
            if box[9]:
                look(box[9][0])

    for drawing in data["drawings"]:
        look(drawing["boxes"])
    assert set(range(len(data["layers"]))) <= seen  # each layer is a box of some drawing
    assert {n for n, row in enumerate(data["layers"]) if row[4] < 0} == set()


def test_the_memory_and_the_work_are_those_of_the_plan_at_every_batch() -> None:
    program = load("resnet50")
    data = facts(program, "x")
    plan = fs.plan(program)
    for batch in (1, 32, 4096):
        line = [0] * (len(plan.ops) + 1)
        for first, last, _, _, size in data["memory"]["buffers"]:
            line[first] += at(size, batch)
            line[last + 1] -= at(size, batch)
        total, most = 0, 0
        for change in line:
            total += change
            most = max(most, total)
        held = sum(at(size, batch) for _, _, size in data["memory"]["held"])
        assert most + held == plan.peak(batch=batch)
        assert sum(at(op[9], batch) for op in data["ops"]) == program.summary(batch=batch).total.work
    assert [c for c, _ in data["memory"]["classes"]] == list(CLASSES)


def test_a_size_that_is_no_line_over_the_batch_has_its_value_at_each() -> None:
    assert over_batches(lambda b: 7) == 7 and over_batches(lambda b: 3 * b + 2) == [2, 3] and over_batches(lambda b: None) is None
    assert over_batches(lambda b: max(b, 100)) == {"at": [max(b, 100) for b in BATCHES]}


def made(data: Any, value: Any) -> set[str]:
    """How the sizes of a value are made, with the names of what its op reads put into the form that alike ops share."""
    text, op = data["texts"].__getitem__, data["ops"][value[3]]
    reads = list(dict.fromkeys(v for _, names in op[7] for v in names))
    result = [v for _, names in op[8] for v in names].index(data["values"].index(value))
    out: set[str] = set()
    for at, pieces, places, sources, _ in data["forms"][op[12]][result]:
        names = [f"{text(data['values'][reads[n]][0])}{('', '.count', '.value')[part]}[{axis}]" for n, part, axis in (sources[p] for p in places)]
        out.add(f"{text(value[0])}[{at}] = " + "".join(text(p) + n for p, n in zip(pieces, [*names, ""], strict=True)))
    return out


def test_where_a_shape_comes_from_is_what_explain_says() -> None:
    program = load("resnet50")
    data = facts(program, "x")
    text = data["texts"].__getitem__
    by_name = {text(v[0]): v for v in data["values"]}
    steps = made(data, by_name["pool2d_0.tmp_0"])
    told = program.explain("pool2d_0.tmp_0")
    assert steps == {"pool2d_0.tmp_0[0] = relu_0.tmp_0[0]", "pool2d_0.tmp_0[1] = relu_0.tmp_0[1]", "pool2d_0.tmp_0[2] = ceil(relu_0.tmp_0[2] / 2)",
                     "pool2d_0.tmp_0[3] = ceil(relu_0.tmp_0[3] / 2)"} and all(s in told for s in steps)  # fmt: skip
    later = made(data, by_name["pool2d_1.tmp_0"])  # an op that is alike to another one is told with its own names
    assert "pool2d_1.tmp_0[0] = relu_48.tmp_0[0]" in later
    assert len(data["forms"]) < len(data["ops"]) / 2


def test_the_page_is_one_file_that_fetches_nothing_and_runs_only_its_own_script() -> None:
    text = report_page(load("lenet_bn_adam"), "lenet")
    page = Page(text)
    assert not {"img", "link", "iframe", "object"} & set(page.tags) and "https://" not in text and "@import" not in text
    assert re.findall(r"http://[^\"]*", text) == ["http://www.w3.org/2000/svg"]  # a name of elements, which nothing fetches
    assert not [a for a, _ in page.found if a == "src" or a.startswith("on")] and all(v and v.startswith("#") for a, v in page.found if a == "href")
    policy = next(v for a, v in page.found if a == "content" and v and "default-src" in v)
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not [w for w in ("innerHTML", "document.write", "eval(", "STYLE */", "SCRIPT */", '"DATA"') if w in text]


def test_names_from_a_file_are_only_data_in_the_page() -> None:
    program = pictured.hostile()
    page, plain = Page(report_page(program, pictured.HOSTILE)), Page(report_page(load("lenet_bn_adam"), "x"))
    assert page.tags == plain.tags and page.found == plain.found
    assert not set(json.dumps(json.loads(page.scripts[0]), ensure_ascii=False)) & set("\x1b\u202e\ud83d")


def test_the_page_s_script_is_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")
    (tmp_path / "page.js").write_text(Page(report_page(fs.Program(), "x")).scripts[1], encoding="utf-8")
    done = subprocess.run([node, "--check", str(tmp_path / "page.js")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_network_that_is_wrong_or_not_known_has_a_page_that_says_so() -> None:
    wrong = facts(fs.Program.parse("block 0\ninput x: f32[4, 5]\ninput y: f32[3, 2]\nz: f32[4, 2] = mul(X=x, Y=y)\n"), "x")
    later = facts(fs.Program.parse("block 0\ninput x: f32[4, 5]\ninput y: f32[3, 2]\nw: f32[4, 5] = relu(X=x)\nz: f32[4, 2] = mul(X=w, Y=y)\n"), "x")
    assert [op[12] for op in later["ops"]] == [None, -1] and len(later["errors"]) == 1  # no rule is asked; the page compares sizes
    assert "ShapeError: fc (mul): " in wrong["texts"][wrong["errors"][0]] and wrong["memory"].keys() == {"why"}
    unknown = facts(fs.Program.parse("block 0\ninput x: f32[4, 5]\nOut=z: f32[4, 5] = unheard_of(X=x)\nw: f32[4, 5] = relu(X=z)\n"), "x")
    assert "1 op of unheard_of, which is not known" in unknown["texts"] and "memory cannot be planned" in unknown["texts"][unknown["memory"]["why"]]
    assert facts(fs.Program(), "x")["ops"] == []


def test_the_command_writes_the_page_and_the_summary(tmp_path: Path) -> None:
    layer.fc(layer.data("x", shape=["batch", 12]), 5, "relu")
    fs.default_main_program().save(tmp_path / "net.pdmodel")

    code, out, _ = call("report", tmp_path / "net.pdmodel")
    assert code == 0 and out.startswith(f"{tmp_path / 'net.html'}: ") and (tmp_path / "net.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert call("report", tmp_path / "net.pdmodel", "--html", tmp_path / "other.html", "--shape", "x=3,12")[0] == 0
    assert "f32[3, 5]" in (tmp_path / "other.html").read_text(encoding="utf-8")
    code, out, _ = call("show", tmp_path / "net.pdmodel", "--summary", "--batch", 2)
    assert code == 0 and out == str(fs.load_program(tmp_path / "net.pdmodel").summary(batch=2)) + "\n"
    code, out, _ = call("show", tmp_path / "net.pdmodel", "--summary", "--json")
    assert code == 0 and json.loads(out)["layers"][0] == {
        "name": "fc_0", "depth": 0, "operators": "fc, add, relu", "times": 1, "output": "[batch, 5]", "layers_within": 0, "parameters": 65,
        "parameter_bytes": 260, "result_bytes": 60, "work": 60}  # fmt: skip
    assert call("report", tmp_path / "none.pdmodel")[0] == 1 and call("report", tmp_path / "net.pdmodel", "--html", tmp_path / "net.pdmodel" / "x.html")[0] == 1
