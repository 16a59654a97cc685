"""The command ``embed``: its files, kills at any moment, bad lines, full disks."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from model_folders import TEXTS, VOCABULARY, write_model, write_tokenizer
from support.onnx_writer import Graph, model, node, tensor, value
from typer.testing import CliRunner

import foreshape as fs
from foreshape.apps.cli.commands import app
from foreshape.apps.serving.served_embedder import Embedders, ServedEmbedder
from foreshape.apps.serving.served_model import Opening
from foreshape.apps.serving.served_network import Networks
from foreshape.apps.serving.server_limits import ServerLimits

COMMAND = [sys.executable, "-m", "foreshape", "embed"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", {"pooling_mode": "mean"}, "Normalize")


def run(*words: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
    done = CliRunner().invoke(app, ["embed", *map(str, words)], input=stdin)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(words, done.exit_code, *(" ".join(text.split()) for text in (done.stdout, done.stderr)))


def write_lines(file: Path, texts: list[str]) -> Path:
    file.write_text("".join(json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(texts)))
    return file


def some_texts(count: int) -> list[str]:
    chance, words = random.Random(3), ("the", "ship", "left", "harbour", "at", "dawn", "a", "row")
    return [" ".join(chance.choices(words, k=chance.randint(0, 20))) for _ in range(count)]


@pytest.mark.long
def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    texts, out, again = write_lines(tmp_path / "t.jsonl", some_texts(1500)), tmp_path / "a.npy", tmp_path / "b.npy"
    whole = run(folder, texts, "--out", out, "--memory", "2GiB")
    assert whole.returncode == 0 and "1500 vectors of 16 columns" in whole.stdout, whole.stderr
    journal, part = tmp_path / "b.npy.journal", tmp_path / "b.npy.part"
    process = subprocess.Popen([*COMMAND, folder, texts, "--out", again, "--memory", "2GiB"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not journal.exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rows = json.loads(journal.read_text())["rows"]
    assert 0 < rows < 1500
    with open(part, "ab") as file:
        file.write(b"half a row that no note knows of")
    last = run(folder, texts, "--out", again, "--memory", "2GiB")
    assert last.returncode == 0 and f"{rows} of them from the run before" in last.stdout
    assert again.read_bytes() == out.read_bytes()
    assert sorted(p.name for p in tmp_path.glob("b.*")) == ["b.npy"]
    vectors = np.load(out)
    np.testing.assert_allclose(vectors[:40], fs.Embedder(folder).encode(some_texts(1500)[:40]), atol=1e-6)


def test_lines_of_text_of_the_standard_input_and_a_column(folder: Path, tmp_path: Path) -> None:
    want = fs.Embedder(folder).encode(TEXTS)
    (tmp_path / "t.txt").write_bytes("\r\n".join(TEXTS).encode())
    assert run(folder, tmp_path / "t.txt", "--out", tmp_path / "a.npy").returncode == 0
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), want, atol=1e-6)
    assert run(folder, "-", "--out", tmp_path / "c.npy", "--dims", 4, "--normalize", stdin="\n".join(TEXTS).encode()).returncode == 0
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), fs.Embedder(folder).encode(TEXTS, dims=4, normalize=True), atol=1e-6)
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"number": [*range(len(TEXTS))], "words": TEXTS}), tmp_path / "t.parquet")
    done = run(folder, tmp_path / "t.parquet", "--out", tmp_path / "a.parquet", "--text-field", "words")
    assert done.returncode == 0, done.stderr
    table = parquet.read_table(tmp_path / "a.parquet")
    np.testing.assert_allclose(np.stack(table["vector"].to_numpy(zero_copy_only=False)), want, atol=1e-6)
    refused = run(folder, tmp_path / "t.parquet", "--out", tmp_path / "b.parquet")
    assert refused.returncode == 1 and "no column 'text'; it has number, words" in refused.stderr


def test_bad_lines_are_named_and_left_out_only_if_asked(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_bytes(b'{"text": "dawn"}\n{"txt": "a"}\n{"text": 3}\n\n\xff\n{"text": "\\ud800"}\n' + b"[" * 5000 + b'\n"a ship"\n')
    refused = run(folder, file, "--out", tmp_path / "a.npy")
    assert refused.returncode == 1 and not (tmp_path / "a.npy").exists()
    for words in (
        "6 bad lines",
        "line 2: no field 'text'; it has 'txt'",
        "line 3: text must be a text; it is int",
        "line 4: an empty line",
        "line 5: no UTF-8 at byte 1",
        "line 6: half a pair",
        "and 1 others",
    ):
        assert words in refused.stderr, refused.stderr
    skipped = run(folder, file, "--out", tmp_path / "a.npy", "--skip-bad-lines")
    assert skipped.returncode == 0 and "2 vectors" in skipped.stdout and "6 bad lines left out" in skipped.stdout
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), fs.Embedder(folder).encode(["dawn", "a ship"]), atol=1e-6)


def test_a_full_disk_and_parts_of_other_commands_are_told(folder: Path, tmp_path: Path) -> None:
    texts, out = write_lines(tmp_path / "t.jsonl", some_texts(700)), tmp_path / "a.npy"

    usual, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20000, limits[1]))
    try:
        full = run(folder, texts, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, usual)
    assert full.returncode == 1 and "the disk is full" in full.stderr and "Traceback" not in full.stderr
    other = run(folder, texts, "--out", out, "--normalize")
    assert other.returncode == 1 and "the part of another command, with normalize False" in other.stderr
    write_lines(tmp_path / "t.jsonl", ["other", *some_texts(700)[1:]])
    changed = run(folder, texts, "--out", out)
    assert changed.returncode == 1 and "the rows of other texts" in changed.stderr
    write_lines(tmp_path / "t.jsonl", some_texts(700))
    whole = run(folder, texts, "--out", out)
    assert whole.returncode == 0 and "256 of them from the run before" in whole.stdout
    np.testing.assert_allclose(np.load(out), fs.Embedder(folder).encode(some_texts(700)), atol=1e-6)


def test_other_files_are_refused(folder: Path, tmp_path: Path) -> None:
    texts = write_lines(tmp_path / "t.jsonl", ["a"])
    for source, name, expected in [
        (texts, "a.csv", "as .npy or .parquet"),
        ("no.txt", "a.npy", "there is no file"),
        ("model", "a.npy", "must be in a file .txt"),
    ]:
        refused = run(folder, tmp_path / source, "--out", tmp_path / name)
        assert refused.returncode == 1 and expected in refused.stderr


def test_rows_of_a_quantized_file_get_scales_of_their_own_on_request(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    table, weights = chance.normal(0, 1, (len(VOCABULARY), 8)).astype("float32"), chance.integers(-100, 100, (8, 4)).astype("int8")
    nodes = [node("Gather", "table input_ids", "h"), node("DynamicQuantizeLinear", "h", "q s z"), node("MatMulInteger", "q w z", "sums"),
             node("Cast", "sums", "floats", to=1), node("Mul", "floats s", "rows"), node("Cast", "attention_mask", "m", to=1),
             node("Unsqueeze", "m two", "mask"), node("Mul", "rows mask", "own"), node("ReduceSum", "own one", "out", keepdims=0)]  # fmt: skip
    inputs = [value(name, "int64", ["texts", "time"]) for name in ("input_ids", "attention_mask")]
    tensors = [tensor("table", table), tensor("w", weights), tensor("one", np.int64([1])), tensor("two", np.int64([2]))]
    file = tmp_path / "model.onnx"
    file.write_bytes(model(Graph(nodes, inputs, [value("out", "float32", None)], tensors), 21))
    write_tokenizer(tmp_path)
    with pytest.raises(fs.UnpadError, match=r"row_scales=True \(--row-scales\)"):
        fs.Embedder(file)
    network = fs.Embedder(file, row_scales=True)
    vectors = network.encode(TEXTS)
    for text, vector in zip(network.tokenize(TEXTS), vectors, strict=True):
        rows = table[text.ids]
        step = (rows.max(1, keepdims=True, initial=0.0) - rows.min(1, keepdims=True, initial=0.0)) / np.float32(255)
        np.testing.assert_allclose(vector, (np.round(rows / step) * step @ weights.astype("float32")).sum(0), rtol=1e-4, atol=1e-3)
    texts, out = write_lines(tmp_path / "t.jsonl", TEXTS), tmp_path / "a.npy"
    refused = run(file, texts, "--out", out)
    assert refused.returncode == 1 and "--row-scales" in refused.stderr
    assert run(file, texts, "--out", out, "--row-scales").returncode == 0
    np.testing.assert_array_equal(np.load(out), vectors)
    opening = Opening(1 << 30, ServerLimits(), lambda *_: None)
    with closing(Embedders(Networks(), 1, True).opened(str(file), opening)) as served:
        assert isinstance(served, ServedEmbedder) and served.width == 4
    with pytest.raises(fs.errors.SchemaError, match=r"row_scales must be for an \.onnx file"):
        fs.Embedder(write_model(tmp_path / "folder", {"pooling_mode": "mean"}), row_scales=True)
