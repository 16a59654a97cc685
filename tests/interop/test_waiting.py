"""Large parameter files: looked through when they are opened, and read tensor by tensor when these are used."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.interop import waiting

SOURCE = Path(fs.__file__).parents[1]


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network whose parameter file counts as a large one."""
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    with fs.program_guard(main, startup):
        x = layer.data("x", shape=["batch", 4])
        out = layer.fc(layer.fc(x, 5, "relu"), 3)
    fs.Executor(seed=2).run(startup, scope=scope)
    fs.save_inference_model(tmp_path / "net", [x], [out], program=main, scope=scope)
    monkeypatch.setattr(waiting, "LARGE", 1)
    return tmp_path / "net"


def held(scope: fs.Scope) -> set[str]:
    return set(scope._values)


X = np.arange(8, dtype="float32").reshape(2, 4)


def test_tensors_are_read_when_they_are_used(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fs.load_inference_model(saved, scope=fs.Scope())
    names = sorted(v.name for v in model.program.global_block.vars.values() if v.persistable and v.spec.dims is not None)
    assert model.scope.names() == names and not held(model.scope) and all(n in model.scope for n in names)
    assert model.scope.get(names[0]).shape == (5,) and held(model.scope) == {names[0]}
    (seen,) = model.run(X).values()
    assert held(model.scope) == set(names)
    one = fs.load_inference_model(saved, scope=fs.Scope())
    os.replace(tmp_path / "net.pdiparams", tmp_path / "elsewhere")  # what has the file open has it still
    (tmp_path / "net.pdiparams").write_bytes(b"another")
    np.testing.assert_array_equal(next(iter(one.run(X).values())), seen)
    os.replace(tmp_path / "elsewhere", tmp_path / "net.pdiparams")
    monkeypatch.setattr(waiting, "LARGE", 1 << 30)
    np.testing.assert_array_equal(next(iter(fs.load_inference_model(saved, scope=fs.Scope()).run(X).values())), seen)


def test_a_file_between_is_read_at_once_into_the_tensors_themselves(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late = fs.load_inference_model(saved, scope=fs.Scope())
    monkeypatch.setattr(waiting, "LARGE", 1 << 30)
    small = fs.load_inference_model(saved, scope=fs.Scope())
    monkeypatch.setattr(waiting, "DIRECT", 1)
    between = fs.load_inference_model(saved, scope=fs.Scope())
    assert held(between.scope) == set(between.scope.names()) == set(small.scope.names())
    for name in small.scope.names():
        assert between.scope.tensor(name).data_ptr() % 64 == 0
        np.testing.assert_array_equal(between.scope.get(name), small.scope.get(name))
        np.testing.assert_array_equal(between.scope.get(name), late.scope.get(name))


def test_a_file_that_is_changed_meanwhile_is_an_error_with_the_name(saved: Path, tmp_path: Path) -> None:
    params = tmp_path / "net.pdiparams"
    whole = params.read_bytes()
    for change in (lambda: os.truncate(params, 10), lambda: params.write_bytes(b"\0" * len(whole))):
        params.write_bytes(whole)
        os.utime(params, ns=(0, 0))
        model = fs.load_inference_model(saved, scope=fs.Scope())
        change()
        with pytest.raises(fs.FormatError, match=r"net.pdiparams was changed after it was opened, and the parameter 'fc_\d.\w_0' is not in memory"):
            model.run(X)
    params.write_bytes(whole[:-1])
    with pytest.raises(fs.FormatError, match=r"fc_1\.w_0"):
        fs.load_inference_model(saved, scope=fs.Scope())
    params.write_bytes(whole)
    assert fs.load_inference_model(saved, scope=fs.Scope()).run(X)


def test_a_folder_of_files_is_opened_again_file_by_file(saved: Path, tmp_path: Path) -> None:
    from foreshape.interop.convert import convert_parameters

    convert_parameters(tmp_path / "net.pdmodel", tmp_path / "net.pdiparams", f"{tmp_path}/apart/")
    model = fs.load_inference_model(saved, scope=fs.Scope(), params=f"{tmp_path}/apart")
    assert not held(model.scope)
    np.testing.assert_array_equal(*(next(iter(m.run(X).values())) for m in (model, fs.load_inference_model(saved, scope=fs.Scope()))))
    model = fs.load_inference_model(saved, scope=fs.Scope(), params=f"{tmp_path}/apart")
    os.truncate(tmp_path / "apart" / "fc_1.w_0", 40)
    with pytest.raises(fs.FormatError, match=r"fc_1\.w_0"):
        model.run(X)


def test_a_value_that_waits_is_made_once_and_can_be_set_and_removed() -> None:
    import torch

    scope, made = fs.Scope(), []

    def make() -> torch.Tensor:
        made.append(1)
        return torch.ones(3)

    scope.defer("a", make)
    found: list[torch.Tensor] = []
    threads = [Thread(target=lambda: found.append(scope.tensor("a"))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 1 and all(f is found[0] for f in found)
    scope.defer("a", make)
    scope.set("a", np.zeros(2, "float32"))
    assert scope.get("a").tolist() == [0, 0] and len(made) == 1
    scope.defer("b", make)
    scope.remove("b")
    assert "b" not in scope and scope.names() == ["a"]


@pytest.mark.long
def test_opening_a_large_file_takes_no_memory_for_it(tmp_path: Path) -> None:
    """Resident memory of a process that opens 512 MiB, looks, and then uses one tensor of 64."""
    program = textwrap.dedent("""
        import numpy as np, resource, sys
        import torch
        import foreshape as fs
        from foreshape import layer
        from foreshape.interop import write_parameters
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize() / 2**20
        path = sys.argv[1]
        if sys.argv[2] == "write":
            x = layer.data("x", shape=["batch", 4096])
            outs = [layer.fc(x, 4096, bias=False) for _ in range(8)]
            scope = fs.Scope()
            for v in fs.default_main_program().parameters():
                scope.set(v.name, np.ones((4096, 4096), "float32"))
            fs.save_inference_model(path, [x], outs, scope=scope)
        else:
            torch.ones(1) + 1
            before = resident()
            model = fs.load_inference_model(path, scope=fs.Scope())
            print(model, model.program.feeds, len(str(model.program)))
            looked = resident()
            assert model.scope.tensor("fc_3.w_0").sum() == 4096 * 4096
            print("took", looked - before, resident() - before)
    """)
    said = ""
    for what in ("write", "look"):
        done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "large"), what], capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"})  # fmt: skip
        said = done.stdout
    looked, used = map(float, said.split("took")[1].split())
    assert (tmp_path / "large.pdiparams").stat().st_size >= 512 * 2**20
    assert looked < 32 and used < 64 + 48, said
