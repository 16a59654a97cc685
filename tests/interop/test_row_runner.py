"""Ragged networks without torch give what they give on torch, for texts of any length."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest
from support.counted import TracedMemory

import foreshape as fs
from foreshape import layer
from foreshape.interop.row_program import StepsUnknown
from foreshape.interop.row_runner import RowRunner, chunks_of
from foreshape.machine.kernels import row_kernels
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


@pytest.mark.quick_cases("2-causal", "1-rotary, shared heads, gates and rms norms")
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


def places_of(x):
    """Return 0, 1, ... up to the rows of the longest text, the padded texts, and the rows of each."""
    padded, lengths = layer.sequence_pad(x, 0.0)
    return layer.range(0, layer.slice(layer.shape(padded), [0], [1], [2]), 1, "int32"), padded, lengths


def bias_by_distance(x):
    """Attention with learned numbers for buckets of distances, with a slope for each head, and within a window."""
    places, _, _ = places_of(x)
    places = layer.cast(places, "float32")
    distances = layer.unsqueeze(places, [0]) - layer.unsqueeze(places, [1])
    count = layer.shape(distances)
    bucket = layer.cast(layer.clip(layer.abs(distances), 0.0, 19.0) + 20.0 * layer.cast(distances > 0.0, "float32"), "int64")
    table = layer.create_parameter([40, 4], "fp32", "buckets")
    picked = layer.reshape(layer.gather(table, layer.reshape(bucket, [-1])), layer.concat([count, layer.fill_constant([1], "int32", 4)], 0))
    learned = layer.transpose(picked, [2, 0, 1])
    slopes = layer.reshape(layer.assign(np.array([0.5, 0.25, 0.125, 0.0625], "float32")), [4, 1, 1])
    sloped = layer.unsqueeze(layer.abs(distances) * -1.0, [0]) * slopes
    window = layer.unsqueeze(layer.relu(layer.abs(distances) - 8.0) * -1e9, [0])
    causal = layer.unsqueeze(layer.where(distances > 0.0, layer.fill_like(distances, -1e9), layer.fill_like(distances, 0.0)), [0])
    out = []
    for bias in (learned, sloped, window, causal):
        q, k, v = (layer.fc(x, WIDTH) for _ in range(3))
        x = layer.layer_norm(x + layer.sequence_attention(q, k, v, 4, bias=bias))
        out.append(x)
    return [*out, layer.sequence_pool(x, "average")]


def padded_scores(x):
    """Scores of padded texts with a part of each row by its distance to a key, as in disentangled attention; packed again in two ways."""
    places, _, lengths = places_of(x)
    places = layer.cast(places, "int64")
    count = layer.shape(lengths)
    size = layer.shape(places)
    heads = [layer.transpose(layer.reshape(layer.sequence_pad(layer.fc(x, WIDTH), 0.0)[0], [0, 0, 4, 8]), [0, 2, 1, 3]) for _ in range(3)]
    q, k, v = heads
    scores = layer.matmul(q, k, transpose_y=True) / 3.0
    near = layer.minimum(layer.abs(layer.unsqueeze(places, [0]) - layer.unsqueeze(places, [1])), layer.fill_constant([1], "int64", 5))
    by_place = layer.matmul(q, layer.reshape(layer.create_parameter([6, 8], "fp32", "places"), [1, 1, 6, 8]), transpose_y=True)
    every = layer.expand(layer.unsqueeze(near, [0, 1]), [count, 4, size, size])
    scores = scores + layer.take_along_axis(by_place, every, -1)
    mask = layer.cast(layer.sequence_mask(lengths, size, "int64"), "bool")
    scores = layer.where(layer.unsqueeze(mask, [1, 2]), scores, layer.fill_like(scores, -1e9))
    mixed = layer.reshape(layer.transpose(layer.matmul(layer.softmax(scores), v), [0, 2, 1, 3]), [0, 0, WIDTH])
    unpadded = layer.lod_reset(layer.sequence_unpad(mixed, lengths), x)
    first = layer.cast(layer.range(0, count, 1, "int32"), "int64") * layer.cast(size, "int64")
    numbers = layer.reshape(layer.sequence_expand_as(layer.reshape(first, [-1, 1]), x), [-1]) + layer.cast(layer.position_numbers(x), "int64")
    gathered = layer.gather(layer.reshape(mixed, [-1, WIDTH]), numbers)
    return [unpadded, gathered, layer.sequence_pool(unpadded, "sum")]


def convolution_over_time(x):
    _, padded, lengths = places_of(x)
    images = layer.unsqueeze(layer.transpose(padded, [0, 2, 1]), [2])
    out = []
    for groups, width, dilation in ((1, 3, 1), (4, 5, 1), (WIDTH, 3, 2)):
        reach = dilation * (width - 1) // 2
        y = layer.conv2d(images, WIDTH, [1, width], padding=[0, reach], dilation=[1, dilation], groups=groups)
        rows = layer.sequence_unpad(layer.transpose(layer.squeeze(y, [2]), [0, 2, 1]), lengths)
        out.append(layer.lod_reset(rows, x))
    return [*out, layer.sequence_pool(out[0], "max")]


NETWORKS = {
    "a softmax in sequences": softmax_pooling,
    "a batch norm with moving statistics": frozen_norm,
    "small steps": small_steps,
    "a bias by distance": bias_by_distance,
    "padded scores": padded_scores,
    "a convolution over time": convolution_over_time,
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("threads", [1, 2])
def test_parts_equal_those_on_torch(network, threads):
    with fs.program_guard(main := fs.Program(), startup := fs.Program()):
        x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [WORDS, WIDTH])
        results = NETWORKS[network](x)
    is_padded = network in ("a bias by distance", "padded scores", "a convolution over time")
    every = [n for n in LENGTHS if any(n) or not is_padded]  # torch refuses padded texts that are all empty
    check(main, results, *started(main, startup), threads, [*every, [700, 3]])


@pytest.mark.parametrize("network", NETWORKS)
def test_no_text_reaches_another_in_parts(network):
    with fs.program_guard(main := fs.Program(), startup := fs.Program()):
        x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [WORDS, WIDTH], weight="table")
        results = NETWORKS[network](x)
    _, parameters = started(main, startup)
    parameters["table"][99] = np.nan
    runner = RowRunner(main, results, parameters, 1)
    texts = [np.arange(1, 6), np.array([7, 99, 8]), np.arange(20, 31), np.arange(40, 45)]
    together = runner.run({"input_ids": np.concatenate(texts)}, [0, 5, 8, 19, 24])
    for index, rows in ((0, slice(0, 5)), (2, slice(8, 19)), (3, slice(19, 24))):
        alone = runner.run({"input_ids": texts[index]}, [0, len(texts[index])])
        for variable in results:
            beside = together[variable.name][rows if variable.spec.lod is not None else slice(index, index + 1)]
            assert np.isfinite(beside).all()
            np.testing.assert_allclose(beside, alone[variable.name], rtol=1e-5, atol=1e-6, err_msg=variable.name)


@pytest.mark.parametrize("network", NETWORKS)
def test_memory_of_parts_is_bounded(network):
    with fs.program_guard(main := fs.Program(), startup := fs.Program()):
        x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [WORDS, WIDTH])
        results = NETWORKS[network](x)
    runner = RowRunner(main, results, started(main, startup)[1], 1)
    for lengths in ([300, 7], [9] * 40, [30, 1, 500, 3, 64]):
        ids, begins = fed(lengths)
        runner.run({"input_ids": ids}, begins)
        runner._free.clear()
        with TracedMemory() as memory:
            runner.run({"input_ids": ids}, begins)
        bound = runner.nbytes_of_run(len(lengths), sum(lengths), max(lengths))
        assert memory.peak <= bound + (64 << 10), lengths  # and small objects of Python


@pytest.mark.parametrize("network", NETWORKS)
def test_memory_of_a_worker_goes_without_the_collector(network):
    with fs.program_guard(main := fs.Program(), startup := fs.Program()):
        x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [WORDS, WIDTH])
        results = NETWORKS[network](x)
    runner = RowRunner(main, results, started(main, startup)[1], 1)
    ids, begins = fed([30, 7])
    gc.disable()
    try:
        runner.run({"input_ids": ids}, begins)
        worker = weakref.ref(runner._free.pop())
        assert worker() is None  # a circle of references would hold its arrays for many texts
    finally:
        gc.enable()


@pytest.mark.parametrize("mixed", [
    lambda x: layer.sequence_expand_as(layer.reshape(layer.reduce_mean(layer.sequence_pad(x, 0.0)[0], [0, 1]), [1, WIDTH]), x),
    lambda x: layer.lod_reset(layer.sequence_unpad(layer.softmax(places_of(x)[1], axis=0), places_of(x)[2]), x),
    lambda x: layer.reduce_mean(x, [0], True) + x,
])  # fmt: skip
def test_what_joins_texts_is_refused(mixed):
    with fs.program_guard(main := fs.Program(), fs.Program()):
        x = layer.embedding(layer.data("input_ids", ["rows"], "int64", lod_level=1), [WORDS, WIDTH], weight="table")
        y = mixed(x)
    with pytest.raises(StepsUnknown, match=r"several texts|for these operands"):
        RowRunner(main, [y], {"table": np.zeros((WORDS, WIDTH), "float32")}, 1)


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


def test_prepared_calls_follow_their_memory(monkeypatch):
    monkeypatch.setattr(row_kernels, "CALLS", 30)
    program, results, _, parameters = encoder(rotary=True)
    runner, numbers = RowRunner(program, results, parameters, 2), np.random.default_rng(0)
    lengths = [5, 5, 40, 5, 200, 5, 40, 1500, 5, 5, *numbers.integers(1, 300, 30).tolist()]  # memory grows, and goes back behind the longest
    for step, length in enumerate(lengths):
        if step % 11 == 10:
            runner.store.forget()
        if step == 15:
            runner.rest()
        ids, begins = fed([length])
        ids = ids % (WORDS - 1 - step)  # other words each time: a call on old memory gives an old answer
        fresh = RowRunner(program, results, parameters, 1).run({"input_ids": ids}, begins)
        for name, array in runner.run({"input_ids": ids}, begins).items():
            np.testing.assert_allclose(array, fresh[name], rtol=1e-5, atol=1e-5, err_msg=f"{name}, text {step} of {length} words")
    assert all(0 < sum(map(len, worker.calls.values())) <= 30 for worker in runner._free)


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
    assert not alone and chunks_of(lengths[:4], 2)[0] == [0, 2, 3, 1]  # each is more than half of itself and the shorter ones; the last one has no other beside
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


def test_weights_packed_for_kernels_are_kept_once():
    program, results, _, parameters = encoder()
    constants = RowRunner(program, results, parameters, 1)._program.constants
    tables = [array for array in parameters.values() if array.shape[0] in (WORDS, 512)]
    assert len(tables) == 2 and sum(array.nbytes for array in constants.values()) < sum(array.nbytes for array in tables) + 4096
