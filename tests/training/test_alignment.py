"""Where memory begins: persistables where torch's own would, however they came; what `train` is fed likewise, so that bits stay equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels.pages import ALIGNMENT, is_aligned
from foreshape.runtime.feeding.feed import aligned

OFFSETS = (4, 8, 16, 36)
"""Bytes past an aligned address, where arrays may begin."""


def placed(array: Any, past: int) -> Any:
    """A copy of an array that begins so many bytes past an aligned address."""
    array = np.asarray(array)
    memory = np.empty(array.nbytes + 2 * ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT + past
    out = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def all_aligned(scope: fs.Scope) -> list[str]:
    assert scope.names()
    return [n for n in scope.names() if not is_aligned(scope.tensor(n))]


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


FORMS: dict[str, Callable[[Any], Any]] = {
    "an array": lambda a: a,
    "a read-only array": read_only,
    "a reversed array": lambda a: a[::-1],
    "of another byte order": lambda a: a.astype(">f4"),
    "a tensor": torch.from_numpy,
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("past", OFFSETS)
def test_what_is_set_or_stored_is_aligned(form: str, past: int) -> None:
    scope = fs.Scope()
    given = FORMS[form](placed(np.arange(15, dtype=np.float32).reshape(5, 3), past))
    scope.set("set", given)
    scope.store("stored", torch.from_numpy(placed(np.ones(7, np.float32), past)))
    assert all_aligned(scope) == []
    np.testing.assert_array_equal(scope.get("set"), np.asarray(given))


EXAMPLES, FEATURES, BATCH = 33, 64, 7


def network(width: int = 33) -> tuple[fs.Program, fs.Program, Any, Any]:
    main, startup = fs.Program(), fs.Program()
    main.random_seed = startup.random_seed = 5
    with fs.program_guard(main, startup):
        x, words = layer.data("x", FEATURES), layer.data("words", 7, lod_level=1)
        h = layer.fc(x, width, "relu") + layer.fc(layer.sequence_pool(words, "sum"), width)
        out = layer.fc(h, 1) + layer.fc(x, 1)  # a product with a vector, which some kernels add up from where the rows begin
        cost = layer.square(out - 1.0)
    return main, startup, cost, out


def data() -> tuple[Any, list[Any]]:
    rng = np.random.RandomState(2)
    lengths = rng.randint(1, 4, EXAMPLES).tolist()
    return rng.randn(EXAMPLES, FEATURES).astype(np.float32), [rng.randn(n, 7).astype(np.float32) for n in lengths]


def in_arrays(past: int) -> Any:
    x, words = data()
    return {"x": placed(x, past), "words": fs.LoDTensor(placed(np.concatenate(words), past), [[len(w) for w in words]])}


def in_batches(past: int) -> Any:
    x, words = data()
    for at in range(0, EXAMPLES, BATCH):
        some = words[at : at + BATCH]
        yield {"x": placed(x[at : at + BATCH], past), "words": fs.LoDTensor(placed(np.concatenate(some), past), [[len(w) for w in some]])}


def in_tensors(past: int) -> Any:
    for batch in in_batches(past):
        yield {"x": torch.from_numpy(batch["x"]), "words": batch["words"]}


def trained(source: Any, **options: Any) -> tuple[list[bytes], fs.Scope]:
    _, startup, cost, _ = network()
    scope = fs.Scope()
    options = {"epochs": 2, "batch_size": BATCH, "shuffle": False, "progress": False, "startup": startup, "scope": scope, **options}
    fs.train(cost, source, optimizer=fs.optimizer.Adam(0.01), **options)
    return [scope.get(n).tobytes() for n in scope.names()], scope


FED: dict[str, Callable[[int], Any]] = {"arrays": in_arrays, "batches": lambda past: lambda: in_batches(past), "tensors": lambda past: lambda: in_tensors(past)}


@pytest.mark.quick_cases("arrays")
@pytest.mark.parametrize("form", FED)
def test_where_fed_arrays_begin_changes_no_bit_of_a_training(form: str) -> None:
    source, executor = FED[form], fs.Executor()
    want, _ = trained(source(0), executor=executor)
    for past in OFFSETS:
        assert trained(source(past))[0] == want, f"{past} bytes past an aligned address"
    assert executor.align_feeds is False  # which only the training needs


def test_what_kernels_are_given_is_aligned() -> None:
    main, _, _, out = network()
    for batch in in_batches(4):
        given, _ = fs.Executor().step(main, [out]).feeder.tensors(batch)
        assert not is_aligned(given[0])
        assert all(is_aligned(t) for t in aligned(given) if isinstance(t, torch.Tensor))


def test_a_training_leaves_and_resumes_with_what_is_aligned(tmp_path: Path) -> None:
    want, scope = trained(in_arrays(4), checkpoint=tmp_path)
    assert all_aligned(scope) == []
    again, resumed = trained(in_arrays(36), checkpoint=tmp_path)
    assert again == want and all_aligned(resumed) == []


def test_a_model_that_is_opened_is_aligned(tmp_path: Path) -> None:
    main, startup, _, out = network()
    scope, executor = fs.Scope(), fs.Executor(seed=1)
    executor.run(startup, scope=scope)
    feeds = [main.global_block.var("x"), main.global_block.var("words")]
    fs.save_inference_model(tmp_path / "m", feeds, [out], executor, scope=scope)
    opened = fs.Scope()
    fs.load_inference_model(tmp_path / "m", executor, opened)
    assert opened.names() and all_aligned(opened) == []


def test_a_constant_is_aligned() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        constant = fs.Variable("c", shape=[3, 5], data_type=fs.FP32, value=2)
        x = layer.data("x", shape=["batch", 3])
        out = layer.matmul(x, constant)
    scope = fs.Scope()
    fs.Executor().run(main, {"x": np.ones((2, 3), np.float32)}, [out], scope)
    assert all(is_aligned(scope.tensor(n)) for n in scope.names())
