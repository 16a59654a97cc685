"""Every result of every op of a network that is frozen: fetched by itself, kept in the scope, read by another op. They are what the plain ones are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.some import each

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels.onednn_library import SWITCH, library

IMAGES = np.random.default_rng(2).standard_normal((2, 3, 6, 5)).astype("float32")
ROWS = IMAGES.reshape(2, 90)


def of_images(x: Any) -> Any:
    y = layer.batch_norm(layer.conv2d(x, 4, 3, padding=1), is_test=True)
    y = layer.dropout(layer.relu(y), 0.25, is_test=True, implementation="downgrade_in_infer")
    y = layer.batch_norm(layer.batch_norm(layer.concat([y, x], 1), is_test=True), use_global_stats=True)
    return layer.fc(layer.flatten(layer.group_norm(layer.conv2d_transpose(y, 4, 2), 2)), 5)


def of_rows(x: Any) -> Any:
    y = layer.batch_norm(layer.fc(x, 40, activation="relu"), is_test=True)
    y = layer.layer_norm(layer.dropout(layer.reshape(y, [0, 8, 5]), 0.5, is_test=True), begin_norm_axis=2)
    return layer.softmax(layer.fc(layer.unsqueeze(layer.squeeze(layer.unsqueeze(y, [1]), [1]), [2]), 3, flatten_last=1))


NETWORKS: dict[str, tuple[Any, Any]] = {"images": (of_images, IMAGES), "rows": (of_rows, ROWS)}


def described(name: str) -> tuple[fs.Program, Any]:
    describe, x = NETWORKS[name]
    with fs.program() as program:
        out = describe(layer.data("x", shape=["batch", *x.shape[1:]]))
    return program, out


def results(program: fs.Program) -> list[tuple[int, str, str]]:
    """The op's number, the slot and the name of each result."""
    return [(at, slot, n) for at, op in enumerate(program.global_block.ops) for slot, names in op.outputs.items() for n in names]


@pytest.fixture(autouse=True, params=["library", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setenv(SWITCH, "torch")
    elif library() is None:
        pytest.skip("oneDNN's library is not installed for this machine")


@pytest.mark.quick_cases("library-rows-kept and read", "torch-rows-kept and read")
@pytest.mark.parametrize("how", each(4, ("kept and read", "kept", "read", "fetched")))
@pytest.mark.parametrize("name", NETWORKS)
def test_any_result_of_any_op(name: str, how: str) -> None:
    scope = fs.Scope()
    first, _ = described(name)
    fs.Executor(seed=1).run(first.startup, scope=scope)
    for at, slot, result in results(first):
        program, out = described(name)
        variable = program.global_block.var(result)
        if how.startswith("kept") and variable.persistable:
            continue  # the moving statistics
        if "read" in how:
            with fs.program_guard(program, program.startup):
                out = layer.reduce_sum(layer.exp(layer.scale(layer.cast(variable, "float32"), 0.1)))
        variable.persistable |= how.startswith("kept")
        fetch = [result] if how == "fetched" else [out.name]
        found: list[Any] = []
        for frozen in (False, True):
            own = fs.Scope()
            for n in scope.names():
                own.set(n, scope.get(n))
            made = fs.Executor(frozen=frozen).run(program, {"x": NETWORKS[name][1]}, fetch, own)
            held = own.get(result) if how.startswith("kept") and result in own else np.zeros(0)
            found.append([*made, held])
        for plain, seen in zip(*found, strict=True):
            np.testing.assert_allclose(seen, plain, rtol=1e-4, atol=1e-5, err_msg=f"{slot} of op {at} of {name}, {how}")
