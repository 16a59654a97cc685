"""What holds for the whole house: what is imported when, that describing needs no torch, and how long files are."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of it fails, as where it is not installed
import foreshape as fs
from foreshape import layer

main, startup = fs.Program(), fs.Program()
with fs.program_guard(main, startup):
    x = layer.data("x", shape=["batch", 1, 28, 28])
    y = layer.data("y", shape=["batch", 1], dtype="int64")
    h = layer.pool2d(layer.conv2d(x, 8, 5, activation="relu"), 2, stride=2)
    loss = layer.mean(layer.cross_entropy(layer.fc(h, 10, activation="softmax"), y))
    fs.optimizer.Adam(0.01).minimize(loss)
again = fs.Program.parse(str(main))
again = fs.load_program(main.to_bytes())
again.forget()
again.infer()
assert str(again.var(loss.name).shape) == "[]"
again.with_feed_shapes({"x": [8, 1, 28, 28], "y": [8, 1]})
print(again.explain(h.name))
plan = fs.plan(main, loss)
assert plan.largest("batch", within="1 GiB") > 1000 and plan.arena(batch=8) >= plan.lower_bound(batch=8)
try:
    fs.Executor()
except fs.ExecutionError as error:
    assert "PyTorch" in str(error), error
else:
    raise AssertionError("an executor without torch")
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_describing_saving_and_printing_need_no_torch() -> None:
    assert "batch" in run(WITHOUT_TORCH)


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = "torch", "numpy", "google.protobuf", "rich", "typer", "matplotlib", "sklearn"
    code = f"import sys, foreshape; print([m for m in {heavy!r} if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_describing_imports_no_torch() -> None:
    code = "import sys, foreshape as fs; from foreshape import layer; layer.fc(layer.data('x', input_size=3), 2); print('torch' in sys.modules)"
    assert run(code).strip() == "False"


def test_every_public_name_is_there_and_the_package_lists_each_once_and_nothing_else() -> None:
    code = "import foreshape as fs; from foreshape.core.lazy_names import lazy_names as lazy; before = dir(fs)\n"
    code += "[getattr(fs, n) for n in (*lazy(fs._EXPORTS), *fs._ROOMS, *fs.__all__, *before)]\n"
    code += "print(before == dir(fs) == sorted(fs.__all__), len(before), len({id(getattr(fs, n)) for n in before}))"
    same, number, objects = run(code).split()
    assert same == "True" and int(number) == int(objects) > 100


def test_the_map_of_the_house_has_each_room_in_the_order_of_imports() -> None:
    house, *wings = [c for c in LINTER["contracts"] if c["type"] == "layers"]
    _, _, text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## The map of the house\n")
    rooms: dict[str, list[str]] = {}
    for part in text.partition("\n## ")[0].split("\n### ")[1:]:
        title, _, table = part.partition("\n")
        cells = re.findall(r"^\| (`[^|]*) \|", table, re.M)
        rooms[title.strip("`/")] = [name.removesuffix("/").removesuffix(".py") for cell in cells for name in re.findall("`([^`]+)`", cell)]
    top = rooms.pop("The top")
    layers = [name for layer in house["layers"][:0:-1] for name in layer.split(" : ")]
    assert [name for name in layers if name in rooms] == list(rooms) and {*layers} == {*rooms, *top}
    assert [name for name in layers if name not in rooms] == top
    for contract in wings:
        wing = contract.get("containers", ["foreshape.core"])[0].removeprefix("foreshape.")
        inner = [layer.removeprefix("foreshape.core.") for layer in contract["layers"][::-1] if layer != "foreshape.errors"]
        assert rooms[wing] == inner
        folder = ROOT / "src" / "foreshape" / wing
        assert {p.stem for p in folder.iterdir() if p.stem[0] != "_"} == {*inner}, "each room has its place"


@pytest.mark.parametrize(("folder", "most"), [("src", 700), ("tests", 500)])
def test_no_file_is_too_long_to_be_read_at_once(folder: str, most: int) -> None:
    lines = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in (ROOT / folder).rglob("*.py")}
    assert lines and {name: n for name, n in lines.items() if n > most} == {}


def test_no_public_function_has_the_name_of_a_file_beside_it() -> None:
    """Who checks types takes ``fs.predict`` for the file where both are called so."""
    import foreshape as fs
    from foreshape import layer, optimizer
    from foreshape.core.lazy_names import lazy_names

    names = lazy_names("foreshape.exports").items()
    rooms = {source: room.partition(".")[2] for name, (room, source) in names if not isinstance(getattr(fs, name), ModuleType)}
    for room in (layer, optimizer):
        folder = room.__name__.partition(".")[2]
        rooms |= {f"{folder}.{n}": folder for n in room.__all__ if not isinstance(getattr(room, n), ModuleType)}
    assert len(rooms) > 400
    files = {room: {path.stem for path in (ROOT / "src" / "foreshape" / room.replace(".", "/")).glob("*")} for room in rooms.values()}
    assert [name for name, room in rooms.items() if name.rpartition(".")[2] in files[room]] == []
