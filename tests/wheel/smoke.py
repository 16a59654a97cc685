"""What is tried in an environment that has the installed package and no clone: run by `check.py` with the extra that was installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np

import foreshape as fs
from foreshape import layer

EXTRA = sys.argv[1]


def command(*args: str) -> subprocess.CompletedProcess[str]:
    """The installed `foreshape`."""
    return subprocess.run([str(Path(sys.executable).with_name("foreshape")), *args], capture_output=True, text=True)


def describe() -> tuple[fs.Variable, fs.Variable, fs.Variable]:
    """Inputs, result and loss of a tiny network."""
    x = layer.data("x", shape=["batch", 4])
    label = layer.data("label", shape=["batch", 1], dtype="int64")
    scores = layer.softmax(layer.fc(layer.fc(x, 16, "tanh"), 2))
    assert str(scores.shape) == "[batch, 2]"
    try:
        layer.cross_entropy(scores, layer.data("wrong", shape=["batch", 3]))
    except fs.ShapeError as error:
        assert "smoke.py:" in str(error)
    else:
        raise AssertionError("a label of three classes is taken for two")
    return x, scores, layer.mean(layer.cross_entropy(scores, label))


def look(loss: fs.Variable) -> None:
    """Save the description, open it, plan it, and show it by the command."""
    fs.default_main_program().save("described.pdmodel")
    again = fs.load_program("described.pdmodel")
    again.forget()
    again.infer()
    assert again.var(loss.name).shape == loss.shape
    assert fs.plan(again, loss.name).largest("batch", within="1 MiB") > 100
    fs.plan(again, loss.name).write_page("plan.html", batch=8)  # has a file of data beside its code
    for args, words in ((("show", "described.pdmodel"), "f32[batch, 2]"), (("check", "described.pdmodel"), "0 errors"), (("ops", "conv2d"), "ops/nn/")):
        done = command(*args)
        assert done.returncode == 0 and words in done.stdout, done


def train(x: fs.Variable, scores: fs.Variable, loss: fs.Variable) -> None:
    """Train, save, open and use the network."""
    inputs = np.random.RandomState(0).standard_normal((200, 4)).astype("float32")
    labels = (inputs[:, :1] > 0).astype("int64")
    history = fs.train(loss, {"x": inputs, "label": labels}, optimizer=fs.optimizer.Adam(0.05), epochs=20, progress=False)
    fs.save_inference_model("net", [x], [scores])
    found = fs.load_inference_model("net", scope=fs.Scope()).run({"x": inputs})
    right = float((np.argmax(next(iter(found.values())), 1) == labels[:, 0]).mean())
    assert right > 0.9 and history.steps == 140, (right, history.steps)
    np.save("x.npy", inputs)
    done = command("run", "net.pdmodel", "--feed", "x=x.npy", "--out", "results")
    assert done.returncode == 0 and np.load(Path("results") / f"{scores.name}.npy").shape == (200, 2), done


def refuse(loss: fs.Variable) -> None:
    """Ask for everything that needs PyTorch; each time an error says what to install."""
    try:
        fs.train(loss, {"x": np.zeros((2, 4), "float32"), "label": np.zeros((2, 1), "int64")})
    except fs.ExecutionError as error:
        assert "pip install 'foreshape[run]'" in str(error), error
    else:
        raise AssertionError("a training without torch")
    refuses("run", ["run", "described.pdmodel"])


def refuses(extra: str, args: list[str]) -> None:
    """Run the command, which must name the extra that it lacks."""
    done = command(*args)
    assert done.returncode == 1 and f"pip install 'foreshape[{extra}]'" in done.stderr and "Traceback" not in done.stderr, done


def main() -> None:
    """All that this environment has."""
    assert "site-packages" in str(fs.__file__) and importlib.util.find_spec("tests") is None
    x, scores, loss = describe()
    look(loss)
    if EXTRA:
        train(x, scores, loss)
    else:
        refuse(loss)
    refuses("demo", ["demo"])
    drawing = ["plan", "described.pdmodel", "--batch", "2", "--plot", "plan.png"]
    if EXTRA == "[train]":
        done = command(*drawing)
        assert done.returncode == 0 and Path("plan.png").stat().st_size > 1000, done
    else:
        refuses("train", drawing)
    print(f"foreshape{EXTRA} works")


if __name__ == "__main__":
    main()
