"""The command, as a user types it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.commanded import call

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.arrays import write_results

SOURCE = Path(fs.__file__).parents[1]


def described() -> fs.Program:
    images = layer.data("images", shape=["batch", 12])
    hidden = layer.fc(images, 5, "relu")
    layer.fc(hidden, 3)
    return fs.default_main_program()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.pdmodel"
    described().save(path)
    return path


@pytest.fixture
def ready(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A network with parameters, saved for use, and the weight that it multiplies by."""
    x = layer.data("x", shape=["batch", 4])
    out = layer.fc(x, 2, bias=False)
    scope = fs.Scope()
    weight = np.arange(8, dtype=np.float32).reshape(4, 2)
    scope.set("fc_0.w_0", weight)
    fs.save_inference_model(tmp_path / "ready", [x], [out], scope=scope)
    return tmp_path / "ready.pdmodel", weight


def test_version() -> None:
    assert call("--version") == (0, f"foreshape {fs.__version__}\n", "")


def test_the_tail_is_shown_with_words(model: Path) -> None:
    code, out, _ = call("show", model, "--tail")
    assert code == 0 and "the last 2 of 2 layers" in out and "before last fc" in out
    assert [line.split()[:4] for line in out.splitlines() if "fc" in line][:2] == [["second", "last", "fc", "fc,"], ["last", "fc", "fc,", "add"]]
    code, out, _ = call("show", model, "--tail", "--json")
    assert code == 0 and [one["words"] for one in json.loads(out)] == ["second last fc", "last fc"]


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "foreshape", "--version"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert (done.returncode, done.stdout) == (0, f"foreshape {fs.__version__}\n"), done.stderr


def test_show_tells_ops_shapes_types_bytes_and_totals(model: Path) -> None:
    code, out, _ = call("show", model)
    assert code == 0
    for words in ("images", "f32[batch, 12]", "48*batch", "fc_0.w_0", "f32[12, 5]", "240", "mul", "relu", "f32[batch, 3]", "test_cli.py:",
                  "5 ops in 1 block", "parameters: 4 with 83 numbers, 332 bytes", "inputs: 48*batch bytes",
                  "results, all together: 84*batch bytes"):  # fmt: skip
        assert words in out, words


def test_show_as_json(model: Path) -> None:
    code, out, _ = call("show", model, "--json")
    facts = json.loads(out)
    assert code == 0
    assert [o["type"] for o in facts["blocks"][0]["ops"]] == ["mul", "elementwise_add", "relu", "mul", "elementwise_add"]
    assert facts["blocks"][0]["ops"][0]["results"][0] == {
        "name": "fc_0.tmp_0", "kind": "LOD_TENSOR", "dtype": "fp32", "shape": ["batch", 5], "lod": None, "bytes": "20*batch", "certain": True,
    }  # fmt: skip
    assert facts["totals"]["parameter_elements"] == 83
    assert facts["totals"]["result_bytes"] == "84*batch"
    assert facts["errors"] == [] and facts["unknown_operators"] == {}


def test_show_with_another_shape_saves_it(model: Path, tmp_path: Path) -> None:
    code, out, _ = call("show", model, "--shape", "images=8,12", "--output", tmp_path / "eight.pdmodel")
    assert code == 0
    assert "f32[8, 3]" in out and "results, all together: 672 bytes" in out
    assert fs.load_program(tmp_path / "eight.pdmodel").var("fc_1.tmp_1").dims == [8, 3]


def test_a_shape_that_does_not_fit_is_an_error(model: Path) -> None:
    code, out, err = call("show", model, "--shape", "images=8,13")
    assert (code, out) == (1, "")
    assert err.startswith("ShapeError: fc (mul): ") and "Traceback" not in err
    code, out, err = call("check", model, "--shape", "images=8,13")
    assert code == 1 and out.startswith("ShapeError: fc (mul): ") and "1 error, 0 open guards, 0 unknown operators" in out


@pytest.mark.parametrize("shape", ["images", "images=", "=3", "images=8,x y", "images=8,,3"])
def test_a_shape_that_is_none_is_a_mistake_in_the_command(model: Path, shape: str) -> None:
    code, _, err = call("show", model, "--shape", shape)
    assert code == 2 and "--shape" in err


def test_check_of_a_right_program(model: Path) -> None:
    code, out, err = call("check", model)
    assert (code, err) == (0, "") and [line.rstrip() for line in out.splitlines()] == [
        "images: [batch, 12]",
        "operators",
        "",
        " op                      count   support",
        " ───────────────────────────────────────",
        " add (elementwise_add)   2       yes",
        " fc (mul)                2       yes",
        " relu                    1       yes",
        "",
        "parameters: 4 with 83 numbers, 332 bytes",
        "0 errors, 0 open guards, 0 unknown operators",
    ]


def test_check_lists_open_guards_and_unknown_operators(tmp_path: Path) -> None:
    a, b = layer.data("a", shape=["n", 3]), layer.data("b", shape=["m", 3])
    _ = a + b
    program = fs.default_main_program()
    text = str(program).replace("order", "# order") + "\nOut=c?: f32[n, 3] = no_such_operator(X=a) {}\n"
    fs.Program.parse(text).save(tmp_path / "open.pdmodel")
    code, out, _ = call("check", tmp_path / "open.pdmodel")
    assert code == 1  # of an unknown operator
    assert "a: [n, 3]\nb: [m, 3]\ntogether: m and n: equal, or one of them 1\nsmallest sizes: a [1, 3]; b [1, 3]\n" in out
    assert "open until values are fed" not in out and "1 open guard," in out
    assert "open until values are fed: elementwise_add: " in call("check", tmp_path / "open.pdmodel", "--guards")[1]
    assert "\nthe operator 'no_such_operator' is not known here (op 1 of block 0)\n" in out
    code, out, _ = call("check", tmp_path / "open.pdmodel", "--json")
    facts = json.loads(out)
    assert facts["ok"] is False and facts["unknown_operators"] == {"no_such_operator": 1}
    assert facts["guards"][0]["condition"] == "n == m, or one of them is 1"
    assert facts["inputs"][0] == {"name": "a", "dims": ["n", "3"], "conditions": {"n": "any"}, "words": "a: [n, 3]", "smallest": [1, 3]}
    assert facts["together"] == ["m and n: equal, or one of them 1"] and facts["known_in_the_run"] == []


def test_check_of_a_wrong_program_says_each_error_and_ends_with_1(model: Path, tmp_path: Path) -> None:
    wrong = str(fs.load_program(model)).replace("f32[12, 5]", "f32[13, 5]").replace("f32[5, 3]", "f32[6, 3]")
    fs.Program.parse(wrong).save(tmp_path / "wrong.pdmodel")
    code, out, _ = call("check", tmp_path / "wrong.pdmodel")
    assert code == 1
    assert out.count("ShapeError: fc (mul): ") >= 1 and "Traceback" not in out
    code, out, _ = call("check", tmp_path / "wrong.pdmodel", "--json")
    assert code == 1 and json.loads(out)["errors"][0]["error"] == "ShapeError"


def test_what_is_no_program_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.pdmodel").write_bytes(b"\xff\xff")
    for command in ("show", "check"):
        code, out, err = call(command, tmp_path / "x.pdmodel")
        assert (code, out) == (1, "") and err.startswith("FormatError: ")
        assert call(command, tmp_path / "absent")[0] == 1


def test_control_characters_and_markup_in_names_are_shown_escaped(tmp_path: Path) -> None:
    name = "a\x1b[31m\x07\u202e[bold]x[/bold][link=http://x]:smile:"
    x = layer.data(name, shape=[2, 3])
    layer.mean(x)
    fs.default_main_program().save(tmp_path / "evil.pdmodel")
    for args in (("show",), ("check",), ("show", "--json"), ("check", "--shape", "y=3"), ("plan",), ("plan", "--json")):
        code, out, err = call(args[0], tmp_path / "evil.pdmodel", *args[1:])
        for text in (out, err):
            assert not any(c in text for c in "\x1b\x07\u202e")
        if args == ("show",):
            assert code == 0 and "\\u001b[31m" in out and "[bold]x[/bold][link=http://x]:smile:" in out


def trained_net() -> Path:
    return Path(__file__).parents[1] / "corpus" / "transformer_adamw" / "main.pdmodel"


def test_plan_tells_the_peak_the_formula_what_it_is_for_and_who(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreshape.machine.kernels.products.prefers_onednn", lambda: False)
    code, out, err = call("plan", model, "--batch", 1000)
    assert (code, err) == (0, "")
    for words in ("peak for batch = 1,000: 78.4 KiB (80,332 bytes)", "formula: 332 B + 80 B*batch", "the peak is at op 4 of 5, elementwise_add  ",
                  "arena: 78.1 KiB (80,000 bytes), the lower bound; besides, kept between runs: 332 bytes", "parameters", "59.8 %", "images",
                  "f32[batch, 12]", "48,000", "temporaries", "test_cli.py:", "fetched: fc_1.tmp_1"):  # fmt: skip
        assert words in out, words
    code, out, _ = call("plan", model, "--batch", 1000, "--json")
    facts = json.loads(out)
    assert code == 0 and facts["peak"] == 80_332 == sum(facts["breakdown"].values()) == sum(a["bytes"] for a in facts["alive"])
    assert facts["sizes"] == {"batch": 1000} and facts["fits"] is None and facts["lower_bound"] == facts["arena"] == 80_000 and facts["op"] == "elementwise_add"
    code, out, _ = call("plan", model, "--batch", 1000, "--fetch", "fc_0.tmp_2", "--json")
    assert json.loads(out)["fetch"] == ["fc_0.tmp_2"] and json.loads(out)["held"] == 260


def test_plan_names_the_symbols_that_have_no_value(model: Path) -> None:
    code, out, err = call("plan", model)
    assert (code, out) == (1, "") and err == "MemoryPlanError: the memory depends on batch: give --batch=...\n"
    code, _, err = call("plan", trained_net())
    assert code == 1 and err.endswith("depends on x.0, x.1, y.0: give --batch=... (which sets x.0, y.0) and --set x.1=...\n")
    code, _, err = call("plan", trained_net(), "--batch", 8)
    assert code == 1 and err.endswith("depends on x.1: give --set x.1=...\n")
    code, _, err = call("plan", trained_net(), "--within", "1GiB")
    assert code == 1 and err.endswith("to find the largest, give all of them but the batch: --set x.1=...\n")
    code, _, err = call("plan", model, "--batch", 8, "--set", "words=3")
    assert code == 1 and "does not depend on words; it depends on batch" in err
    code, _, err = call("plan", model, "--batch", 8, "--fetch", "nothing")
    assert code == 1 and err.startswith("SchemaError: there is no variable 'nothing'")


def test_plan_finds_the_largest_batch_within_a_limit(model: Path) -> None:
    code, out, _ = call("plan", model, "--within", "1MB")
    assert code == 0 and out.startswith("largest within 976.6 KiB (1,000,000 bytes): batch = 12,495\npeak for batch = 12,495: ")
    facts = json.loads(call("plan", model, "--within", "1MB", "--json")[1])
    assert facts["largest"] == {"batch": 12_495} and facts["fits"] is True and facts["peak"] <= 1_000_000 < facts["peak"] + 80
    assert call("plan", model, "--within", "1MB", "--batch", 12_495)[0] == 0
    code, out, _ = call("plan", model, "--within", "1MB", "--batch", 12_496)
    assert code == 1 and "does not fit within 976.6 KiB (1,000,000 bytes): 12 bytes too much" in out
    code, out, err = call("plan", model, "--within", "350")
    assert (code, out) == (1, "") and err == "MemoryPlanError: with batch = 1 the program needs 412 B, which is more than 350 B\n"
    facts = json.loads(call("plan", trained_net(), "--set", "x.1=128", "--within", "2GiB", "--json")[1])
    assert set(facts["largest"]) == {"x.0", "y.0"} and len(set(facts["largest"].values())) == 1
    longest = json.loads(call("plan", trained_net(), "--batch", 8, "--within", "2GiB", "--json")[1])
    assert set(longest["largest"]) == {"x.1"} and longest["fits"] and longest["formula"].startswith("max(")


@pytest.mark.parametrize("args", [["--set", "batch"], ["--set", "batch=-1"], ["--set", "batch=1.5"], ["--batch", "-1"], ["--batch", "x"],
                                  ["--batch", "2", "--plot", "plan.exe"]])  # fmt: skip
def test_plan_refuses_options_that_are_none(model: Path, args: list[str]) -> None:
    code, _, err = call("plan", model, *args)
    assert code == 2 and args[-2] in err


def test_plan_draws_and_writes_a_page(model: Path, tmp_path: Path) -> None:
    code, _, err = call("plan", model, "--batch", 64, "--plot", tmp_path / "plan.svg", "--html", tmp_path / "plan.html")
    assert (code, err) == (0, "")
    assert (tmp_path / "plan.svg").read_bytes().startswith(b"<?xml") and "fc_0.tmp_1" in (tmp_path / "plan.html").read_text()
    code, _, err = call("plan", model, "--batch", 64, "--html", model / "plan.html")
    assert code == 1 and "Not a directory" in err and "Traceback" not in err
    assert call("plan", model, "--batch", 64, "--within", "nonsense")[0] == 1


def test_run_computes_from_npy_to_npy(ready: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    model, weight = ready
    x = np.random.RandomState(0).standard_normal((3, 4)).astype(np.float32)
    np.save(tmp_path / "in.npy", x)
    code, out, err = call("run", model, "--params", model.with_suffix(".pdiparams"), "--feed", f"x={tmp_path / 'in.npy'}", "--out", tmp_path / "results")
    assert code == 0, err
    files = list((tmp_path / "results").iterdir())
    assert len(files) == 1 and "float32[3, 2]" in out
    np.testing.assert_allclose(np.load(files[0]), x @ weight, rtol=1e-5)
    code, out, err = call("run", model, "--feed", f"x={tmp_path / 'in.npy'}", "--out", tmp_path / "results", "--profile")
    assert (code, err) == (0, "")
    assert "batch = 3" in out and "by what is computed" in out and "fc" in out
    assert ("in bf16" in out) == (fs.Executor(frozen=True, precision="auto").precision == "bf16")


def test_a_page_does_not_take_the_place_of_its_model(model: Path) -> None:
    before = model.read_bytes()
    (model.parent / "again.pdmodel").symlink_to(model)
    (model.parent / "net.html").hardlink_to(model)
    for args in (["report", model, "--html", model], ["report", model, "--html", model.parent / "again.pdmodel"], ["report", model],
                 ["plan", model, "--batch", 1, "--html", model]):  # fmt: skip
        code, _, err = call(*args)
        assert code == 2 and "is the model itself, which the page would replace: name another file" in " ".join(err.replace("\u2502", " ").split())
        assert model.read_bytes() == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full disk")
def test_a_page_that_cannot_be_written_is_named(model: Path) -> None:
    for args in (["report", model], ["plan", model, "--batch", 1]):
        code, _, err = call(*args, "--html", "/dev/full")
        assert (code, err) == (1, "FormatError: '/dev/full' cannot be written: No space left on device\n")


def test_run_names_the_files_that_are_not_what_they_should_be(ready: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("in.npy", np.zeros((3, 4), np.float32))
    np.save("str.npy", np.array(["a", "b"]))
    code, _, err = call("run", ready[0], "--params", "in.npy", "--feed", "x=in.npy")
    assert code == 1 and err.startswith("FormatError: in.npy: no file of parameters: it is an array (.npy): numpy.load opens it")
    code, _, err = call("run", ready[0], "--feed", "x=str.npy")
    assert (code, err) == (1, "FormatError: str.npy: not a .npy file of numbers: it holds texts, '<U1'\n")


def test_run_tells_a_wrong_feed_in_words(ready: tuple[Path, np.ndarray], tmp_path: Path) -> None:
    model, _ = ready
    np.save(tmp_path / "in.npy", np.zeros((3, 5), np.float32))
    code, _, err = call("run", model, "--feed", f"x={tmp_path / 'in.npy'}", "--out", tmp_path)
    assert code == 1 and err.startswith("FeedError: ") and "Traceback" not in err
    code, _, err = call("run", model, "--out", tmp_path)
    assert code == 1 and err.startswith("FeedError: ")
    assert call("run", model, "--feed", "x", "--out", tmp_path)[0] == 2


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (os.mkdir, ("unpickled",))


def test_run_never_unpickles(ready: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = io.BytesIO()
    np.save(file, np.array([_Evil()], dtype=object), allow_pickle=True)
    (tmp_path / "evil.npy").write_bytes(file.getvalue())
    code, _, err = call("run", ready[0], "--feed", "x=evil.npy", "--out", tmp_path)
    assert code == 1 and err.startswith("FormatError: evil.npy: not a .npy file")
    assert not (tmp_path / "unpickled").exists()


def test_names_of_results_keep_their_letters(tmp_path: Path) -> None:
    names = ["模型.tmp_1", "网络.tmp_1", "e\u0301", "é", "É", "a/b", "a\nb", "a\ud800", "CON", "..", "x" * 300, "模" * 300, "-rf"]
    written = [Path(path).name.removesuffix(".npy") for path, _ in write_results(tmp_path, names, [np.ones(1)] * len(names))]
    assert written == ["模型.tmp_1", "网络.tmp_1", "e\u0301", "é-2", "É-3", "a_b", "a_b-2", "a_", "_CON", "result", "x" * 200, "模" * 66, "rf"]
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(f"{name}.npy" for name in written)


def test_a_result_with_a_hostile_name_stays_in_its_folder(tmp_path: Path) -> None:
    x = layer.data("x", shape=[2])
    out = fs.default_main_program().global_block.append_op("relu", {"X": x}, {"Out": "../../etc/passwd"})
    path = tmp_path / "net.pdmodel"
    out.block.program.save(path)
    np.save(tmp_path / "in.npy", np.array([-1, 2], np.float32))
    code, _, err = call("run", path, "--feed", f"x={tmp_path / 'in.npy'}", "--fetch", "../../etc/passwd", "--out", tmp_path / "results")
    assert code == 0, err
    assert [f.name for f in (tmp_path / "results").iterdir()] == ["_.._etc_passwd.npy"]


SCRIPT = """
import sys
import helper
from foreshape import layer
x = layer.data("x", shape=["batch", helper.FEATURES])
if sys.argv[1] == "shape":
    layer.mean(layer.data("x", shape=[3]))
if sys.argv[1] == "bug":
    helper.divide(1, 0)
if sys.argv[1] == "leave":
    sys.exit(7)
print("trained", sys.argv[1:])
"""


def test_train_runs_a_script_and_tells_its_mistakes(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("FEATURES = 4\ndef divide(a, b):\n    return a / b\n")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    before = list(sys.path)
    with fs.program_guard(fs.Program(), fs.Program()):
        code, out, err = call("train", script, "well", "--epochs", "3")
    assert (code, out, err) == (0, "trained ['well', '--epochs', '3']\n", "")
    with fs.program_guard(fs.Program(), fs.Program()):
        code, _, err = call("train", script, "shape")
    assert code == 1 and err.startswith("SchemaError: ") and "script.py:5" in err and "Traceback" not in err
    with fs.program_guard(fs.Program(), fs.Program()):
        code, _, err = call("train", script, "bug")
    assert code == 1
    assert err == "ZeroDivisionError: division by zero\n    script.py:9    helper.divide(1, 0)\n    helper.py:3    return a / b\n"
    with fs.program_guard(fs.Program(), fs.Program()):
        assert call("train", script, "leave")[0] == 7
    assert call("train", tmp_path / "absent.py")[0] == 2
    (tmp_path / "broken.py").write_text("x = (1\n")
    code, _, err = call("train", tmp_path / "broken.py")
    assert code == 1 and "broken.py:1: not Python" in err
    assert sys.path == before
    sys.modules.pop("helper", None)


@pytest.mark.long
def test_the_command_as_a_process_needs_no_torch_to_show(model: Path) -> None:
    probe = "import sys; sys.modules['torch'] = None; from foreshape.apps.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run([sys.executable, "-c", probe, "show", str(model)], capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert "f32[batch, 3]" in done.stdout and done.stderr == ""
    done = subprocess.run([sys.executable, "-c", probe, "plan", str(model), "--batch", "3"], capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == 0 and done.stderr == "" and "peak for batch = 3: 572 bytes" in done.stdout, done.stderr
    probe = probe.replace("['torch']", "['matplotlib']")
    done = subprocess.run([sys.executable, "-c", probe, "plan", str(model), "--batch", "3", "--plot", "plan.png"], capture_output=True, text=True,
                          env=environment, timeout=1200)  # fmt: skip
    assert done.returncode == 1 and done.stderr == "ExecutionError: a drawing needs the package matplotlib: pip install 'foreshape[train]'\n"
    done = subprocess.run([sys.executable, "-m", "foreshape.apps.cli", "check", str(model.parent / "absent")], capture_output=True, text=True, env=environment,
                          timeout=1200)  # fmt: skip
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("FormatError: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--set", "--shape"])
def test_one_option_sets_shapes_of_inputs_and_open_sizes(model: Path, option: str) -> None:
    for command, given in (("show", "images=8,12"), ("show", "batch=8"), ("check", "batch=8")):
        code, out, err = call(command, model, option, given)
        assert (code, err) == (0, "") and "8, 12" in out, out
    whole = json.loads(call("plan", model, "--batch", 8, "--json")[1])
    for given in ("images=8,12", "batch=8"):
        assert json.loads(call("plan", model, option, given, "--json")[1])["peak"] == whole["peak"]
    code, _, err = call("show", model, option, "words=3")
    assert code == 1 and err.startswith("SchemaError: 'words' is no input, and no open size of one; the inputs are: images; the sizes: batch")
