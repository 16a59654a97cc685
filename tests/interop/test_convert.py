"""Parameters from one form of file to another, whole or not at all; large files are looked at without being read."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape.core.spec import BF16, BOOL, DTYPES, FP32, Spec
from foreshape.core.spec import LOD_TENSOR as DENSE
from foreshape.interop import convert_parameters, load_safetensors, open_parameters, read_parameters, write_parameters

SOURCE = Path(fs.__file__).parents[1]
TYPES = [d for d in DTYPES if d.name in ("bool", "uint8", "int8", "int16", "int32", "int64", "fp16", "bf16", "fp32", "fp64")]


def described(path, types=TYPES, dims=(2, 3)):
    """A program with a parameter of each element type, and values for them."""
    program, values = fs.Program(), {}
    for at, of in enumerate(TYPES):
        if of not in types:
            continue
        program.global_block.create_variable(f"block/{of.name}", Spec(DENSE, of, (*dims, at)), persistable=True)
        numbers = np.arange(at * 6).reshape(*dims, at) % (2 if of is BOOL else 7)
        values[f"block/{of.name}"] = numbers.astype(np.float32 if of is BF16 else of.numpy_name)
    program.save(path)
    return values, {f"block/{of.name}": of for of in types}


@pytest.fixture
def files(tmp_path):
    values, types = described(tmp_path / "m.pdmodel")
    write_parameters(tmp_path / "p.pdiparams", values, types)
    return tmp_path, values


def test_all_element_types_there_and_back_by_every_way(files):
    folder, values = files
    assert len(values) == 10
    model, first = folder / "m.pdmodel", folder / "p.pdiparams"
    convert_parameters(model, first, folder / "s.safetensors")
    scope = fs.Scope()
    assert load_safetensors(folder / "s.safetensors", scope) == sorted(values)
    for name, value in values.items():
        assert np.array_equal(scope.tensor(name).float().numpy(), value.astype(np.float32)), name
    convert_parameters(model, folder / "s.safetensors", f"{folder / 'each'}/")
    assert sorted(p.name for p in (folder / "each" / "block").iterdir()) == sorted(n.removeprefix("block/") for n in values)
    seen = read_parameters(folder / "each", values)
    assert all(np.array_equal(seen[n], v) and seen[n].dtype == v.dtype for n, v in values.items())
    convert_parameters(model, folder / "each", folder / "t.safetensors")
    convert_parameters(model, folder / "t.safetensors", folder / "q.pdiparams")
    assert (folder / "t.safetensors").read_bytes() == (folder / "s.safetensors").read_bytes()
    assert (folder / "q.pdiparams").read_bytes() == first.read_bytes()


def test_a_folder_keeps_what_else_it_has(files):
    folder, values = files
    (folder / "each").mkdir()
    (folder / "each" / "__model__").write_bytes((folder / "m.pdmodel").read_bytes())
    convert_parameters(folder / "m.pdmodel", folder / "p.pdiparams", folder / "each")
    assert sorted(os.listdir(folder / "each")) == ["__model__", "block"]
    assert np.array_equal(read_parameters(folder / "each", values)["block/fp32"], values["block/fp32"])


@pytest.mark.parametrize("target", ["x.safetensors", "x.pdiparams", "x/"])
def test_a_file_that_is_cut_off_is_refused_with_the_tensors_name_and_nothing_is_written(files, target):
    folder, _ = files
    cut = folder / "cut.pdiparams"
    cut.write_bytes((folder / "p.pdiparams").read_bytes()[:-1])
    before = sorted(os.listdir(folder))
    with pytest.raises(fs.FormatError, match=r"the parameter 'block/uint8', at byte \d+: uint8\[2, 3, \d\] takes \d+ bytes, and \d+ are left"):
        convert_parameters(folder / "m.pdmodel", cut, f"{folder}/{target}")
    assert sorted(os.listdir(folder)) == before


def test_missing_surplus_and_wrong_parameters_are_named(files):
    folder, values = files
    convert_parameters(folder / "m.pdmodel", folder / "p.pdiparams", folder / "s.safetensors")
    convert_parameters(folder / "m.pdmodel", folder / "p.pdiparams", f"{folder / 'each'}/")
    fewer = folder / "fewer.pdmodel"
    described(fewer, [t for t in TYPES if t is not FP32])
    with pytest.raises(fs.FormatError, match=r"has, and the program has not, parameter 'block/fp32'"):
        convert_parameters(fewer, folder / "s.safetensors", folder / "x.pdiparams")
    convert_parameters(fewer, folder / "each", folder / "less.safetensors")
    with pytest.raises(fs.FormatError, match=r"has no parameter 'block/fp32'"):
        convert_parameters(folder / "m.pdmodel", folder / "less.safetensors", folder / "x.pdiparams")
    (folder / "each" / "block" / "fp32").unlink()
    with pytest.raises(fs.FormatError, match=r"block/fp32' cannot be read: No such file"):
        convert_parameters(folder / "m.pdmodel", folder / "each", folder / "x.pdiparams")
    other = folder / "other.pdmodel"
    described(other, TYPES, (3, 2))
    for source in ("s.safetensors", "p.pdiparams"):
        with pytest.raises(fs.FormatError, match=r"the parameter 'block/\w+'.*: the program says .*\[3, 2, \d\], and the file has .*\[2, 3, \d\]"):
            convert_parameters(other, folder / source, folder / "x.pdiparams")
    assert not (folder / "x.pdiparams").exists() and set(values)


def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path):
    program = fs.Program()
    program.global_block.create_variable("../out", Spec(DENSE, FP32, (1,)), persistable=True)
    program.save(tmp_path / "m.pdmodel")
    write_parameters(tmp_path / "p.pdiparams", {"../out": np.ones(1, np.float32)})
    with pytest.raises(fs.FormatError, match="leads out of the folder"):
        convert_parameters(tmp_path / "m.pdmodel", tmp_path / "p.pdiparams", f"{tmp_path / 'deep'}/")
    assert not (tmp_path / "out").exists() and not (tmp_path / "deep").exists()


def test_a_file_is_not_written_over_itself(files):
    folder, _ = files
    with pytest.raises(fs.FormatError, match="are not written to where they are read from"):
        convert_parameters(folder / "m.pdmodel", folder / "p.pdiparams", folder / "p.pdiparams")


_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from foreshape.interop import convert_parameters
model, first = sys.argv[1:]
convert_parameters(model, first, "a.safetensors")
convert_parameters(model, "a.safetensors", "each/")
convert_parameters(model, "each", "last.pdiparams")
"""


def test_what_is_installed_without_extras_converts(files):
    folder, _ = files
    given = [sys.executable, "-c", _WITHOUT_TORCH, str(folder / "m.pdmodel"), str(folder / "p.pdiparams")]
    done = subprocess.run(given, capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(SOURCE)})
    assert done.returncode == 0, done.stderr
    assert (folder / "last.pdiparams").read_bytes() == (folder / "p.pdiparams").read_bytes()


_LOOK = """
import resource, sys
from foreshape.interop import open_parameters, read_parameters
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
found = open_parameters(sys.argv[1], ["a", "b"])
print({n: (o.dtype.name, o.dims) for n, o in found.items()})
print(float(read_parameters(sys.argv[1], ["a", "b"])["b"][-1, -1]))
print("KiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="files with holes, and a limit on a process's own memory")
def test_two_gigabytes_are_looked_at_without_being_read(tmp_path):
    write_parameters(tmp_path / "a", {"a": np.zeros((1, 4), np.float32)})
    write_parameters(tmp_path / "b", {"b": np.full((2, 2), 7, np.float32)})
    from foreshape.language.wire.tensors import encode_tensor_desc

    head = (tmp_path / "a").read_bytes()[: -4 * 4]
    small, large = encode_tensor_desc(FP32, (1, 4)), encode_tensor_desc(FP32, (2**15, 2**14))
    head = head[: -len(small) - 4] + len(large).to_bytes(4, "little") + large
    with open(tmp_path / "p.pdiparams", "wb") as file:
        file.write(head)
        file.seek(2**31, os.SEEK_CUR)
        file.write((tmp_path / "b").read_bytes())
    done = subprocess.run([sys.executable, "-c", _LOOK, str(tmp_path / "p.pdiparams")], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(SOURCE)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    facts, last, used = done.stdout.splitlines()
    assert facts == "{'a': ('fp32', (32768, 16384)), 'b': ('fp32', (2, 2))}" and last == "7.0"
    assert int(used.split()[1]) < 128 * 1024


def test_what_is_opened_has_the_files_bytes(files):
    folder, values = files
    found = open_parameters(folder / "p.pdiparams", values)
    assert bytes(found["block/fp32"].data) == values["block/fp32"].tobytes() and found["block/fp32"].data.readonly
    assert len(found["block/bf16"].data) == 2 * values["block/bf16"].size
