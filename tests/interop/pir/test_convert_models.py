"""Networks of PaddlePaddle 3 as the pair of files of PaddlePaddle 2, and what that lacks; whatever opens a program takes its folder and its prefix."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call
from support.paddle3 import Case, cases

import foreshape as fs
from foreshape.interop import convert_model, convert_parameters, write_parameters
from foreshape.interop.convert_models import lacking, models_in

UNKNOWN = "integers"
"""A network with an operator that PaddlePaddle 2 lacks."""


def saved(name: str, folder: Path) -> Case:
    """Write a case as PaddlePaddle saves it, and return it."""
    of = cases("networks")[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "inference.json").write_bytes(of.data)
    if of.saved():
        write_parameters(folder / "inference.pdiparams", of.saved())
    return of


def answers(path: Path, of: Case) -> list[np.ndarray]:
    return list(fs.load_inference_model(path, scope=fs.Scope()).run(of.feed).values())


@pytest.mark.parametrize("name", ["text_cnn", "cell_loop", "no_parameters"])
def test_the_pair_computes_the_same(name: str, tmp_path: Path) -> None:
    of = saved(name, tmp_path / "in")
    found = convert_model(tmp_path / "in", tmp_path / "out.pdmodel")
    assert (found.model, found.lacking) == (str(tmp_path / "out.pdmodel"), []) and set(found.parameters) == set(of.saved())
    assert (tmp_path / "out.pdiparams").exists() == bool(of.saved()) == bool(found.params)
    if of.saved():
        assert (tmp_path / "out.pdiparams").read_bytes() == (tmp_path / "in" / "inference.pdiparams").read_bytes()
    for a, b in zip(answers(tmp_path / "in", of), answers(tmp_path / "out", of), strict=True):
        np.testing.assert_array_equal(a, b)


def test_beside_the_program_the_parameters_stay(tmp_path: Path) -> None:
    of = saved("text_cnn", tmp_path)
    before = (tmp_path / "inference.pdiparams").stat()
    assert call("convert", tmp_path / "inference.json", tmp_path / "inference.pdmodel")[0] == 0
    after = (tmp_path / "inference.pdiparams").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert len(answers(tmp_path / "inference.pdmodel", of)) == len(of.want)
    with pytest.raises(fs.FormatError, match="is not written to where it is read from"):
        convert_model(tmp_path / "inference.pdmodel", tmp_path / "inference.pdmodel")


def test_what_paddlepaddle_2_lacks_is_listed_and_written_only_by_force(tmp_path: Path) -> None:
    saved(UNKNOWN, tmp_path / "in")
    named = [one.words for one in lacking(fs.load_program(tmp_path / "in"))]
    assert any("bitwise_left_shift (op " in words for words in named)
    code, out, err = call("convert", tmp_path / "in", tmp_path / "out.pdmodel")
    assert (code, out) == (1, "") and "needs what PaddlePaddle 2.6.2 lacks, and is not written" in err
    assert all(f"\n    {words}" in err for words in named)
    assert not list(tmp_path.glob("out.*"))
    code, out, err = call("convert", tmp_path / "in", tmp_path / "out.pdmodel", "--force")
    assert code == 0 and out.startswith(f"{tmp_path / 'out.pdmodel'}: ")
    assert err.splitlines() == [f"note: PaddlePaddle 2.6.2 lacks {words}" for words in named]
    assert [one.words for one in lacking(fs.load_program(tmp_path / "out.pdmodel"))] == named


def test_slight_differences_are_told_and_written(tmp_path: Path) -> None:
    saved("math_a", tmp_path / "in")
    code, _, err = call("convert", tmp_path / "in", tmp_path / "out.pdmodel")
    assert code == 0
    assert err == "note: PaddlePaddle 2.6.2 lacks round with round_type = 0 (op 57 of block 0): there halves are rounded away from 0\n"


def test_a_folder_is_converted_in_one_pass(tmp_path: Path) -> None:
    saved("text_cnn", tmp_path / "in" / "a")
    saved(UNKNOWN, tmp_path / "in" / "b")
    saved("no_parameters", tmp_path / "in" / "c" / "deep")
    (tmp_path / "in" / "a" / "config.json").write_text('{"of": "something else"}')
    code, out, err = call("convert", tmp_path / "in", f"{tmp_path}/out/")
    assert code == 1 and len(out.splitlines()) == 2 and "1 of 3 models are not written" in err
    assert f"FormatError: {tmp_path}/in/b/inference.json needs what PaddlePaddle 2.6.2 lacks, and is not written" in err
    written = {str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*")}
    assert written == {"a/inference.pdmodel", "a/inference.pdiparams", "c/deep/inference.pdmodel"}
    (tmp_path / "in" / "b" / "inference.json").unlink()
    assert call("convert", tmp_path / "in", tmp_path / "again")[::2] == (0, "")  # a folder that is not there yet needs no slash
    one = tmp_path / "in" / "a"
    assert call("convert", one / "inference.json", f"{tmp_path}/single/")[::2] == (0, "")
    assert (tmp_path / "single" / "inference.pdmodel").read_bytes() == (tmp_path / "again" / "a" / "inference.pdmodel").read_bytes()


def test_folders_without_a_model_and_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    code, out, err = call("convert", tmp_path, f"{tmp_path}/out/")
    assert (code, out) == (1, "") and "there is no program in it" in err
    saved("no_parameters", tmp_path)
    convert_model(tmp_path, tmp_path / "inference.pdmodel")
    with pytest.raises(fs.FormatError, match=r"would both be written to inference\.pdmodel"):
        list(models_in(tmp_path))
    code, _, err = call("convert", tmp_path / "inference.json", tmp_path / "net.txt")
    assert code == 1 and "net.txt: a model is written to a file that ends in .pdmodel" in err
    code, _, err = call("convert", "a", "b", "c", "d")
    assert code == 2 and "3 paths follow MODEL: give the path to write" in err


def test_an_old_model_with_a_file_for_each_parameter_becomes_a_pair(tmp_path: Path) -> None:
    of = saved("text_cnn", tmp_path / "in")
    fs.load_program(tmp_path / "in").save(tmp_path / "__model__")
    convert_parameters(tmp_path / "in", None, tmp_path)
    assert call("convert", tmp_path, tmp_path / "pair.pdmodel")[::2] == (0, "")
    for a, b in zip(answers(tmp_path / "in", of), answers(tmp_path / "pair", of), strict=True):
        np.testing.assert_array_equal(a, b)


def test_parameters_go_to_safetensors_and_back(tmp_path: Path) -> None:
    of = saved("half_weights", tmp_path)
    there, back = tmp_path / "p.safetensors", tmp_path / "p.pdiparams"
    assert call("convert", tmp_path / "inference.json", there)[::2] == (0, "")
    assert call("convert", tmp_path, there, back)[::2] == (0, "")
    assert back.read_bytes() == (tmp_path / "inference.pdiparams").read_bytes()
    scope = fs.Scope()
    assert set(fs.load_safetensors(there, scope)) == set(of.saved())
    (tmp_path / "inference.pdiparams").unlink()
    assert call("convert", tmp_path, there, tmp_path / "net.pdmodel")[::2] == (0, "")
    assert (tmp_path / "net.pdiparams").read_bytes() == back.read_bytes()
    code, _, err = call("convert", tmp_path / "inference.json", tmp_path / "other.pdmodel")
    assert code == 1 and "inference.pdiparams' cannot be read: No such file" in err and not list(tmp_path.glob("other.*"))


OPENERS: dict[str, Callable[[Path, Path], Any]] = {
    "show": lambda path, _: call("show", path),
    "check": lambda path, _: call("check", path),
    "plan": lambda path, _: call("plan", path, "--batch", 2, "--set", "ids.1=9"),
    "report": lambda path, out: (call("report", path, "--html", out / "page.html")[0], "", ""),
    "convert": lambda path, out: call("convert", path, out / "again.pdmodel"),
    "load_program": lambda path, _: fs.load_program(path).to_bytes(),
    "load_inference_model": lambda path, _: fs.load_inference_model(path, scope=fs.Scope()).program.to_bytes(),
}


@pytest.mark.long_cases("report", "show", "plan")
@pytest.mark.parametrize("name", OPENERS)
def test_a_folder_and_a_prefix_are_taken_as_the_file_is(name: str, tmp_path: Path) -> None:
    saved("text_cnn", tmp_path / "new")
    (tmp_path / "old").mkdir()
    convert_model(tmp_path / "new", tmp_path / "old" / "net.pdmodel")
    for file in (tmp_path / "new" / "inference.json", tmp_path / "old" / "net.pdmodel"):
        first = OPENERS[name](file, tmp_path)
        assert first.__class__ is bytes or first[0] == 0, first
        for path in (file.parent, file.with_suffix("")):
            assert OPENERS[name](path, tmp_path) == first
