"""What a program of PaddlePaddle 3 is when it is opened: names, order, symbols, scopes; and what is said of ops that are not known."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commanded import call
from support.paddle3 import cases
from support.pir_files import Json, attribute, document, dtype, ending, feed, fetch, file, full, op, parameter, region, several, tensor

import foreshape as fs
from foreshape.interop import write_parameters

X = tensor([-1, 3])


def opened(tmp_path: Path, data: bytes, values: dict[str, Any] | None = None) -> fs.InferenceModel:
    (tmp_path / "inference.json").write_bytes(data)
    if values:
        write_parameters(tmp_path / "inference.pdiparams", values)
    return fs.load_inference_model(tmp_path, scope=fs.Scope())


# --- feeds, fetches, names


def test_feeds_stand_in_the_order_of_the_file_and_those_of_old_programs_in_that_of_their_columns(tmp_path: Path) -> None:
    ops = [feed(1, "b", X), feed(2, "a", X), op("add", [1, 2], [(3, X)]), fetch(4, 3, "out", X)]
    assert opened(tmp_path, file(*ops)).feeds == ["b", "a"]
    old = [op("feed", (), [(n, X)], name=name, col=column) for n, name, column in ((1, "b", 1), (2, "a", 0))]
    assert opened(tmp_path, file(*old, *ops[2:])).feeds == ["a", "b"]


def test_fetches_stand_in_the_order_of_their_columns_under_the_names_of_the_file(tmp_path: Path) -> None:
    ops = [feed(1, "x", X), op("relu", [1], [(2, X)]), op("exp", [1], [(3, X)])]
    model = opened(tmp_path, file(*ops, fetch(4, 3, "second", X, 1), fetch(5, 2, "first", X, 0)))
    given = np.array([[-1.0, 0.0, 2.0]], "f4")
    assert [v.name for v in model.fetches] == ["first", "second"]
    found = model.run({"x": given})
    np.testing.assert_allclose(found["first"], np.maximum(given, 0))
    np.testing.assert_allclose(found["second"], np.exp(given), rtol=1e-6)


def test_a_feed_is_fetched_under_its_name_and_a_value_that_is_fetched_twice_is_computed_once(tmp_path: Path) -> None:
    ops = [feed(1, "x", X), op("relu", [1], [(2, X)]), fetch(3, 1, "x", X, 0), fetch(4, 2, "a", X, 1), fetch(5, 2, "b", X, 2)]
    model = opened(tmp_path, file(*ops))
    assert [v.name for v in model.fetches] == ["x", "a", "b"] and [o.type for o in model.program.all_ops()].count("relu") == 1
    found = list(model.run({"x": np.array([[-1.0, 0.0, 2.0]], "f4")}).values())
    np.testing.assert_array_equal(found, [[[-1, 0, 2]], [[0, 0, 2]], [[0, 0, 2]]])


@pytest.mark.parametrize("name", ["w", "x", "feed", "fetch", "relu_0.tmp_0", "taken"])
def test_a_fetch_whose_name_is_taken_gives_its_own_value(tmp_path: Path, name: str) -> None:
    """By a parameter, a feed, the holders of feeds and fetches, a value, or another fetch."""
    ops = [parameter(1, "w", tensor([3])), feed(2, "x", X), op("relu", [2], [(3, X)]), op("add", [3, 1], [(4, X)]), op("exp", [2], [(5, X)])]
    data = file(*ops, fetch(6, 4, name, X, 1), fetch(7, 5, "taken", X, 0), fetch(8, 3, "r", X, 2))
    model = opened(tmp_path, data, {"w": np.array([1, 2, 3], "f4")})
    given = np.array([[-1.0, 0.0, 2.0]], "f4")
    found = list(model.run({"x": given}).values()) if len({v.name for v in model.fetches}) == 3 else []
    assert len(found) == 3
    np.testing.assert_allclose(found[1], np.maximum(given, 0) + np.arange(1, 4))
    np.testing.assert_allclose(found[0], np.exp(given), rtol=1e-6)


def test_a_constant_a_parameter_and_an_element_of_a_list_are_fetched(tmp_path: Path) -> None:
    ops = [parameter(1, "w", tensor([3])), full(2, 7.0, (2,)), feed(3, "x", X), op("0.combine", [3, 1], [(4, several(X, tensor([3])))])]
    ops += [op("0.slice", [4], [(5, X)], index=0), fetch(6, 1, "a", tensor([3])), fetch(7, 2, "b", tensor([2]), 1), fetch(8, 5, "c", X, 2)]
    found = opened(tmp_path, file(*ops), {"w": np.array([1, 2, 3], "f4")}).run({"x": np.ones((1, 3), "f4")})
    assert {n: v.tolist() for n, v in found.items()} == {"a": [1, 2, 3], "b": [7, 7], "c": [[1, 1, 1]]}


def test_names_with_odd_characters_are_those_of_the_file(tmp_path: Path) -> None:
    names = ["x y", "é/ü", "a\nb", "0", "feed:0", "%", "名前"]
    data = file(*(feed(1 + at, n, X) for at, n in enumerate(names)), *(fetch(20 + at, 1 + at, f"out {n}", X, at) for at, n in enumerate(names)))
    model = opened(tmp_path, data)
    assert model.feeds == names and [v.name for v in model.fetches] == [f"out {n}" for n in names]
    found = model.run({n: np.full((1, 3), at, "f4") for at, n in enumerate(names)})
    assert [v[0, 0] for v in found.values()] == list(range(len(names)))


# --- dims, scopes, parameters


def test_open_dims_are_symbols_named_after_the_input(tmp_path: Path) -> None:
    model = opened(tmp_path, file(feed(1, "image", tensor([-1, 3, -2])), op("relu", [1], [(2, tensor([-7, 3, -1]))]), fetch(3, 2, "y", tensor([-1, 3, -1]))))
    assert [str(v) for v in model.fetches] == ["y: f32[image.0, 3, image.2]"]
    for sizes in ((1, 3, 4), (5, 3, 2)):
        assert model.run({"image": np.zeros(sizes, "f4")})["y"].shape == sizes


OPEN = [n for n, c in cases("networks").items() if n in ("mha_cross", "simple_rnn", "text_cnn", "cell_loop", "sdpa_causal", "no_parameters", "vision_lenet")]


@pytest.mark.parametrize("name", OPEN)
def test_networks_of_open_dims_take_other_sizes(name: str, tmp_path: Path) -> None:
    """Each element of a batch that is fed twice gives what it gave, in a plain and in a frozen run."""
    of = cases("networks")[name]
    model = opened(tmp_path, of.data, of.saved())
    first = {str(v.spec.known_dims[0]) for v in (model.program.global_block.vars[n] for n in model.feeds)}
    if not all(d.endswith(".0") for d in first):
        pytest.skip("its batch is of one size")
    twice = {n: np.concatenate([v, v]) for n, v in of.feed.items()}
    once, both = model.run(of.feed), model.run(twice)
    frozen = fs.Predictor(tmp_path).run(twice)
    for n in once:
        if both[n].shape[:1] == (2 * once[n].shape[0],) and both[n].shape[1:] == once[n].shape[1:]:
            np.testing.assert_allclose(both[n], np.concatenate([once[n], once[n]]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(frozen[n], both[n], rtol=1e-4, atol=1e-5)


def test_the_path_of_a_layer_is_the_scope_of_its_ops() -> None:
    ops = [
        feed(1, "x", X),
        op("relu", [1], [(2, X)], struct_name="/Net/ReLU 1/"),
        full(3, 2.0) | {"A": [*full(3, 2.0)["A"], {"N": "struct_name", "AT": attribute("/Net/C/")}]},
    ]
    ops += [op("add", [2, 3], [(4, X)], struct_name="/"), op("exp", [4], [(5, X)], struct_name="x" * 5000)]
    found = {o.type: o.attributes.values.get("op_namescope") for o in fs.load_program(file(*ops)).all_ops()}
    assert found == {"feed": None, "relu": "/Net/ReLU_1/", "fill_constant": "/Net/C/", "elementwise_add": None, "exp": None}


def test_parameters_are_trainable_or_not_and_saved_or_not(tmp_path: Path) -> None:
    shape = tensor([3])
    ops = [parameter(1, "w", shape), parameter(2, "mean", shape, trainable=0), parameter(3, "state", tensor([], "ui8"), saved=0, trainable=0)]
    ops += [{k: v for k, v in parameter(4, "plain", shape).items() if k != "OA"}, feed(5, "x", X), op("add", [5, 1], [(6, X)]), fetch(7, 6, "y", X)]
    values = {n: np.array([at, 0, 0], "f4") for at, n in enumerate(("mean", "plain", "w"))}
    model = opened(tmp_path, file(*ops), values)
    held = model.program.global_block.vars
    assert {n: (held[n].persistable, held[n].trainable, held[n].stop_gradient) for n in ("w", "mean", "state", "plain")} == {
        "w": (True, True, False), "mean": (True, False, True), "state": (False, False, True), "plain": (True, True, False),
    }  # fmt: skip
    assert sorted(model.scope.names()) == ["mean", "plain", "w"]
    np.testing.assert_array_equal(model.run({"x": np.zeros((1, 3), "f4")})["y"], [[2, 0, 0]])


def test_parameters_lie_in_the_order_of_their_names_as_code_points(tmp_path: Path) -> None:
    names = ["b", "B", "a_10", "a_9", "é", "a"]
    ops = [parameter(1 + at, n, tensor([1])) for at, n in enumerate(names)]
    ops += [fetch(20 + at, 1 + at, f"out {n}", tensor([1]), at) for at, n in enumerate(names)]
    from foreshape.interop.parameters import write_parameters as written

    written(tmp_path / "inference.pdiparams", {n: np.array([ord(n[0]) + len(n)], "f4") for n in sorted(names)})
    found = opened(tmp_path, file(*ops)).run({})
    assert [float(v[0]) for v in found.values()] == [ord(n[0]) + len(n) for n in names]


# --- ops that are not known


UNKNOWN = ["1.unheard_of", "3.my_op", "4.reshard", "-1.test", "x.y.z", "builtin.shadow_output", "cf.stack_create", "x.relu", "3.relu", "x.cast"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_op_that_is_not_known_is_shown_and_checked_around_and_refused_by_a_run(name: str, tmp_path: Path) -> None:
    full_name = {"1": "pd_op", "3": "custom_op", "4": "dist"}.get(name.partition(".")[0], name.partition(".")[0]) + "." + name.partition(".")[2]
    ops = [feed(1, "x", X), op("relu", [1], [(2, X)]), op(name, [2], [(3, X)], depth=3), op(name, [3], [(4, X)], depth=3), op("exp", [2], [(5, X)])]
    path = tmp_path / "inference.json"
    path.write_bytes(file(*ops, fetch(6, 4, "y", X), fetch(7, 5, "z", X, 1)))
    program = fs.load_program(path)
    unknown, errors = program.diagnose()
    assert [o.type for o in unknown] == [full_name] * 2 and not errors
    assert str(program.global_block.vars["z"]) == "z: f32[x.0, 3]"
    _, out, told = call("show", path)
    assert f"the operator '{full_name}' is not known here (2 ops, the first is op 2 of block 0)" in out + told
    code, out, told = call("check", path)
    assert code == 1 and re.search(rf"{re.escape(full_name)} +2 +", out) and "since they depend on these operators" in (out + told).replace("\n", " ")
    with pytest.raises(fs.ExecutionError, match=rf"{full_name}' is not known"):
        fs.Executor().run(program, {"x": np.zeros((1, 3), "f4")}, ["y", "z"], fs.Scope())


@pytest.mark.parametrize(("given", "named"), [
    (op("relu", [1], [(2, X)], unheard_of=1), "unheard_of = 1"),
    (op("repeat_interleave", [1], [(2, X)], repeats=2, axis=0, output_size=7), "output_size = 7"),
    (op("mean", [1], [(2, X)], axis=(1,), keepdim=False, unheard_of="x"), "unheard_of"),
    (op("cast", [1], [(2, X)], dtype=dtype("float64"), saturate=True), "saturate"),
])  # fmt: skip
def test_an_attribute_without_counterpart_is_refused_by_its_name(given: Json, named: str) -> None:
    program = fs.load_program(file(feed(1, "x", X), given, fetch(3, 2, "y", X)))
    _, (error,) = program.diagnose()
    assert named in str(error) and "has no counterpart" in str(error) and "ops[1]" in str(error)
    with pytest.raises(fs.ForeshapeError, match=named):
        fs.Executor().run(program, {"x": np.zeros((1, 3), "f4")}, ["y"], fs.Scope())


def test_attributes_that_mean_nothing_are_left_out() -> None:
    given = op("repeat_interleave", [1], [(2, X)], repeats=2, axis=0, output_size=-1, op_role=0, struct_name="/", op_callstack=["a", "b"])
    _, errors = fs.load_program(file(feed(1, "x", X), given)).diagnose()
    assert not errors


# --- versions, and files that are something else


def test_a_newer_version_opens_with_a_warning() -> None:
    with pytest.warns(fs.ForeshapeWarning, match="version 5, and 4 is the newest known here"):
        fs.load_program(file(feed(1, "x", X), version=5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in range(5):
            fs.load_program(file(feed(1, "x", X), version=version))


@pytest.mark.parametrize("void", ["NaN", "NAN", "nan"])
def test_numbers_that_are_none_are_read_in_any_case(void: str) -> None:
    data = file(
        full(1, {"#": "0.a_f64", "VD": void}, ()), full(2, {"#": "0.a_f64", "VD": "-INF"}, ()), fetch(3, 1, "a", tensor([])), fetch(4, 2, "b", tensor([]), 1)
    )
    a, b = fs.Executor().run(fs.load_program(data), {}, ["a", "b"], fs.Scope())
    assert np.isnan(a) and b == -np.inf


def test_a_file_is_told_by_its_content_also_where_it_is_indented(tmp_path: Path) -> None:
    whole = document(feed(1, "x", X), fetch(2, 1, "x", X))
    (tmp_path / "net.pdmodel").write_text(json.dumps(whole, indent=4))
    assert fs.load_inference_model(tmp_path / "net").feeds == ["x"]
    (tmp_path / "other.json").write_text('{"a": 1}')
    with pytest.raises(fs.FormatError, match="JSON"):
        fs.load_program(tmp_path / "other.json")


def test_values_captured_by_regions_and_given_by_both_branches_are_those_of_the_taken_one() -> None:
    one, scalar = tensor([1]), tensor([], "bool")
    ops = [feed(1, "x", one), full(2, 0.0), op("greater_than", [1, 2], [(3, scalar)]), full(4, 5.0)]
    inner = op("if", [3], [(8, one)], [region(ending(4)), region(ending(2))])
    ops += [
        op(
            "if",
            [3],
            [(5, one)],
            [region(inner, op("add", [8, 1], [(9, one)]), ending(9)), region(op("scale", [1, 4], [(6, one)], bias=0.0, bias_after_scale=True), ending(6))],
        )
    ]
    program = fs.load_program(file(*ops, fetch(7, 5, "y", one)))
    for given, wanted in ((2.0, 7.0), (-2.0, -10.0)):
        (found,) = fs.Executor().run(program, {"x": np.array([given], "f4")}, ["y"], fs.Scope())
        assert found.tolist() == [wanted]
