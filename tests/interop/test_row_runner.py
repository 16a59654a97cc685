"""Ragged networks without torch give what they give on torch, for texts of any length."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.interop.row_program import StepsUnknown
from foreshape.interop.row_runner import RowRunner, chunks_of
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.row_attention import rounded_length
from foreshape.machine.kernels.row_kernels import BLOCK, KERNEL_BYTES, blocks_of, covered, rounded_rows

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed")

WORDS, WIDTH = 100, 32
LENGTHS = [[5, 1, 33], [0, 7, 140, 3], [300], [130, 20, 0], [0], [8, 8, 16, 128]]


def started(program, startup):
    """Return a scope of random weights, and the parameters."""
    scope, executor, numbers = fs.Scope(), fs.Executor(), np.random.default_rng(1)
    executor.run(startup, scope=scope)
    parameters = {}
    for variable in program.parameters():
        value = np.asarray(scope[variable.name])
        parameters[variable.name] = (value + 0.1 * numbers.standard_normal(value.shape)).astype("float32")
        scope[variable.name] = parameters[variable.name]
    return scope, parameters


def encoder(rotary: bool = False, causal: bool = False, key_heads: int | None = None, norm: str = "layer", bias: bool = False):
    """Return a program of two layers with random weights, its results, its scope, and its parameters."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        ids = layer.data("input_ids", ["rows"], "int64", lod_level=1)
        x = layer.embedding(ids, [WORDS, WIDTH], padding_idx=3)
        if not rotary:
            x = x + layer.embedding(layer.cast(layer.position_numbers(x), "int64"), [512, WIDTH])
        added = layer.create_parameter([4, 400, 400], "fp32", "added") if bias else None
        for _ in range(2):
            if added is None:
                mixed = layer.multi_head_attention(x, heads=4, causal=causal, rotary=rotary, key_heads=key_heads)
            else:
                mixed = layer.sequence_attention(*(layer.fc(x, WIDTH) for _ in range(3)), 4, causal, bias=added)
            x = layer.layer_norm(x + mixed) if norm == "layer" else layer.rms_norm(x + mixed)
            inner = layer.fc(x, 48, "gelu") if norm == "layer" else layer.swish(layer.fc(x, 48)) * layer.fc(x, 48)
            x = layer.layer_norm(layer.fc(inner, WIDTH) + x)
        mean = layer.sequence_pool(x, "average")
        unit = mean / layer.sqrt(layer.reduce_sum(mean * mean, [1], True) + 1e-12)
        score = layer.fc(layer.fc(layer.sequence_pool(x, "first"), 20, "tanh"), 3)
        results = [x, mean, unit, score, layer.sequence_pool(x, "max"), layer.sequence_pool(x, "last")]
    return main, results, *started(main, startup)


def fed(lengths: list[int]):
    return np.random.default_rng(len(lengths)).integers(0, WORDS, sum(lengths)), [0, *np.cumsum(lengths).tolist()]


CASES = {
    "layer norms": {},
    "causal": {"causal": True},
    "rotary, shared heads, gates and rms norms": {"rotary": True, "key_heads": 2, "norm": "rms", "causal": True},
    "bias": {"bias": True},
}


def check(program, results, scope, parameters, threads, every=LENGTHS):
    """Compare results for texts of some lengths with those on torch, and those of texts beside others with those of each alone."""
    runner, executor = RowRunner(program, results, parameters, threads), fs.Executor()
    for lengths in every:
        ids, begins = fed(lengths)
        got = runner.run({"input_ids": ids}, begins)
        expected = executor.run(program, feed={"input_ids": fs.LoDTensor(ids, [lengths])}, fetch=results, scope=scope)
        for variable, array in zip(results, expected, strict=True):
            value = np.asarray(getattr(array, "data", array) if isinstance(array, fs.LoDTensor) else array)
            np.testing.assert_allclose(got[variable.name], value.reshape(got[variable.name].shape), rtol=1e-5, atol=1e-5, err_msg=f"{variable.name} {lengths}")
            for text in range(len(lengths) if len(lengths) > 1 else 0):
                part = slice(*begins[text : text + 2])
                alone = runner.run({"input_ids": ids[part]}, [0, lengths[text]], [variable.name])[variable.name]
                beside = got[variable.name][part if variable.spec.lod is not None else slice(text, text + 1)]
                np.testing.assert_allclose(alone, beside, rtol=1e-5, atol=1e-5, err_msg=f"{variable.name} {lengths}, text {text}")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_equal_those_on_torch(case, threads):
    check(*encoder(**CASES[case]), threads)


def softmax_pooling(x):
    scores = layer.fc(layer.fc(x, 16, "tanh"), 1)
    weights = layer.sequence_softmax(scores)
    return [weights, layer.sequence_pool(x * weights, "sum")]


def frozen_norm(x):
    y = layer.batch_norm(x, is_test=True, use_global_stats=True)
    return [y, layer.sequence_pool(layer.relu(y), "average")]


def small_steps(x):
    y = layer.abs(x) + 0.5
    places = layer.cast(layer.position_numbers(x), "int64")
    width = layer.fill_constant([1], "int64", 3)
    parts = [layer.pow(y, layer.abs(x)), layer.maximum(x, y - 0.7), layer.minimum(x, y), layer.exp(-y), layer.floor(4.0 * x), layer.ceil(4.0 * x)]
    parts += [layer.reduce_max(x, [1], True) * y, layer.reduce_min(x, [1], True) * y, layer.norm(x, 2, 1, True) * y, layer.sign(x)]
    parts += [layer.cast(layer.logical_and(x > 0.0, y < 0.6), "float32"), layer.cast(layer.logical_or(x > 0.0, y < 0.6), "float32")]
    return [*parts, (places - 7) / width]


NETWORKS = {"a softmax in sequences": softmax_pooling, "a batch norm with moving statistics": frozen_norm, "small steps": small_steps}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("threads", [1, 2])
def test_parts_equal_those_on_torch(network, threads):
    with fs.program_guard(main := fs.Program(), startup := fs.Program()):
        x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [WORDS, WIDTH])
        results = NETWORKS[network](x)
    check(main, results, *started(main, startup), threads, [*LENGTHS, [700, 3]])


def test_some_results_alone():
    program, results, _, parameters = encoder()
    runner = RowRunner(program, results, parameters, 1)
    ids, begins = fed([4, 9])
    every, one = runner.run({"input_ids": ids}, begins), runner.run({"input_ids": ids}, begins, [results[2].name])
    assert list(one) == [results[2].name]
    np.testing.assert_array_equal(one[results[2].name], every[results[2].name])


def test_no_text_reaches_another():
    """Each text gives the same beside others, though a kernel reads rows of its neighbour; also beside one that gives no numbers."""
    program, results, _, parameters = encoder()
    parameters["embedding_0.w_0"] = np.array(parameters["embedding_0.w_0"])
    parameters["embedding_0.w_0"][99] = np.nan
    runner, name = RowRunner(program, results, parameters, 1), results[1].name
    texts = [np.arange(1, 6), np.array([7, 99, 8]), np.arange(20, 31)]
    begins = [0, 5, 8, 19]
    together = runner.run({"input_ids": np.concatenate(texts)}, begins)[name]
    assert np.isnan(together[1]).all()
    for index in (0, 2):
        alone = runner.run({"input_ids": texts[index]}, [0, len(texts[index])])[name][0]
        np.testing.assert_allclose(together[index], alone, rtol=1e-5, atol=1e-6)


def test_kernels_are_bounded():
    program, results, _, parameters = encoder()
    runner = RowRunner(program, results, parameters, 1)
    runner.store._limit = 40 * KERNEL_BYTES
    for length in range(1, 300, 7):
        ids, begins = fed([length])
        runner.run({"input_ids": ids}, begins)
        assert runner.nbytes["kernels"] == runner.store.nbytes == KERNEL_BYTES * len(runner.store._kernels) <= 40 * KERNEL_BYTES


def test_memory_of_a_long_text_goes_back():
    program, results, _, parameters = encoder(rotary=True)
    runner = RowRunner(program, results, parameters, 1)
    ids, begins = fed([3000])
    runner.run({"input_ids": ids}, begins)
    assert runner.nbytes["values"] < 3000 * WIDTH * 4 * 8


@pytest.mark.parametrize("count", [*range(0, 40), 127, 128, 129, 130, 300, 370, 500, 513, 1000, 8192])
def test_blocks_cover_all_rows_in_few_sizes(count):
    blocks = blocks_of(count)
    assert all(rows == rounded_rows(rows) <= BLOCK for _, rows in blocks)
    assert [begin for begin, _ in blocks[1:]] == [begin + rows for begin, rows in blocks[:-1]]
    assert count <= covered(count) < max(count, 1) + max(16, min(count, BLOCK) // 16 + 1)
    assert len({rounded_length(n) for n in range(1, 8193)}) < 80 and rounded_length(max(count, 1)) >= count


def test_chunks_hold_every_text_once():
    lengths = np.array([300, 5, 128, 64, 64, 1, 0, 0, 17, 40])
    alone, chunks = chunks_of(lengths, 2)
    assert sorted([*alone, *(text for chunk in chunks for text in chunk)]) == list(range(len(lengths)))
    assert not alone and chunks_of(lengths[:4], 2)[0] == [0, 2, 3]  # each is more than half of itself and the shorter ones
    assert all(sum(lengths[chunk]) <= BLOCK or len(chunk) == 1 for chunk in chunks)


def test_an_id_outside_of_its_table_is_refused():
    program, results, _, parameters = encoder()
    runner = RowRunner(program, results, parameters, 1)
    with pytest.raises(fs.errors.ExecutionError, match=rf"an id must be in \[0, {WORDS}\)"):
        runner.run({"input_ids": np.array([1, WORDS])}, [0, 2])
    with pytest.raises(fs.errors.FeedError, match="input_ids"):
        runner.run({"input_ids": np.array([1.0, 2.0])}, [0, 2])
    with pytest.raises(fs.errors.FeedError, match="a feed"):
        runner.run({"ids": np.array([1, 2])}, [0, 2])
    assert np.isfinite(runner.run({"input_ids": np.array([1, 2])}, [0, 2])[results[0].name]).all()


def test_an_op_without_a_kernel_is_named():
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [WORDS, WIDTH], weight="table")
        y = layer.sequence_reverse(x)
        with pytest.raises(StepsUnknown, match="sequence_reverse"):
            RowRunner(fs.default_main_program(), [y], {"table": np.zeros((WORDS, WIDTH), "float32")}, 1)


WITHOUT_TORCH = """
import sys
import numpy as np
import foreshape as fs
from foreshape import layer
from foreshape.interop.row_runner import RowRunner
with fs.program_guard(fs.Program(), fs.Program()):
    x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [50, 16])
    x = layer.layer_norm(x + layer.multi_head_attention(x, heads=2, rotary=True))
    y = layer.sequence_pool(layer.fc(x, 8, "gelu"), "average")
    program = fs.default_main_program()
numbers = np.random.default_rng(0)
weights = {v.name: numbers.standard_normal(v.spec.known_dims).astype("float32") for v in program.parameters()}
out = RowRunner(program, [y], weights, 2).run({"input_ids": np.arange(30) % 50}, [0, 10, 30])[y.name]
assert out.shape == (2, 8) and np.isfinite(out).all()
assert "torch" not in sys.modules, "torch was imported"
"""


def test_an_answer_imports_no_torch():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, env=environment)
    assert run.returncode == 0, run.stderr
