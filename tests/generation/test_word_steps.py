"""Steps of one new word in machine code: the scores of the executor, whatever the threads, the texts and the kinds of networks."""

from __future__ import annotations

import json
import multiprocessing
import threading
from typing import Any

import decoders
import numpy as np
import pytest
from support.some import each

import foreshape as fs
from foreshape import layer
from foreshape.apps.generation import word_step
from foreshape.machine.kernels import word_loop
from foreshape.machine.kernels.instructions import SWITCH

TOLD = json.loads(decoders.FILE.read_text())
needs_numba = pytest.mark.skipif(not word_loop.can_compile(), reason="numba is not installed")


def model_of(told: dict[str, Any], **settings: Any) -> fs.LanguageModel:
    state = {name: decoders.value_of(name, dims) for name, dims in told["state"].items()}
    return fs.language_model(told["config"], state, **{"users": 5, "context": 40, **settings})


def written(model: fs.LanguageModel) -> list[np.ndarray]:
    """Return the scores of steps of one, three and five texts, with prompts of different lengths before them, at places in another order."""
    random = np.random.RandomState(3)
    held = dict.fromkeys(range(model.users), 0)
    for slot, length in ((3, 9), (0, 1), (4, 17), (1, 4), (2, 30)):
        model.run([random.randint(8, 50, length).tolist()], [slot], [0])
        held[slot] = length
    out: list[np.ndarray] = []
    for slots in ([3], [4, 0, 2], [1], [2, 0, 1, 4, 3], [0, 1, 2, 3, 4]):
        scores = model.run([[int(random.randint(8, 50))] for _ in slots], slots, [held[slot] for slot in slots])
        out.append(scores.numpy().copy())
        for slot in slots:
            held[slot] += 1
    return out


@needs_numba
@pytest.mark.parametrize("name", each(4, TOLD))
def test_scores_are_the_executors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(TOLD[name])
    found = written(model)
    assert model._step is not None
    monkeypatch.setenv(SWITCH, "torch")
    plain = model_of(TOLD[name])
    expected = written(plain)
    assert plain._step is None
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5 * float(np.abs(theirs).max()))


@needs_numba
@pytest.mark.parametrize("name", ["Gemma 3", "GPT-J"])
def test_each_number_of_threads_computes_the_same_bits(name: str) -> None:
    alone = written(model_of(TOLD[name], threads=1))
    for threads in (2, 3, 5):
        for _ in range(3):
            assert all(np.array_equal(a, b) for a, b in zip(written(model_of(TOLD[name], threads=threads)), alone, strict=True))


@needs_numba
def test_texts_side_by_side_do_not_change_each_other() -> None:
    model = model_of(TOLD["Qwen 3"])
    prompts = [[9, 10, 11], [30], [8, 9, 8, 9, 8, 9], [12, 44]]
    together = fs.generate(model, prompts, 20)
    assert together == [fs.generate(model, [prompt], 20)[0] for prompt in prompts]


@needs_numba
def test_several_threads_share_a_model() -> None:
    model = model_of(TOLD["Mistral"], threads=2)
    expected = [fs.generate(model_of(TOLD["Mistral"]), [[9 + n]], 12) for n in range(4)]
    for slot in range(4):
        model.run([[9 + slot]], [slot], [0])
    results: dict[int, list[int]] = {}

    def write(slot: int) -> None:
        words, word = list[int](), expected[slot][0][0]
        for held in range(1, 12):
            words.append(word)
            word = int(model.run([[word]], [slot], [held])[0].argmax())
        results[slot] = [*words, word]

    threads = [threading.Thread(target=write, args=(slot,)) for slot in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[slot] for slot in range(4)] == [text[0][:12] for text in expected]


def _write_in_child(model: fs.LanguageModel, results: Any) -> None:
    results.put(fs.generate(model, [[9, 10]], 6))


@needs_numba
@pytest.mark.long
def test_a_forked_process_has_threads_of_its_own() -> None:
    model = model_of(TOLD["Mistral"], threads=2)
    expected = fs.generate(model, [[9, 10]], 6)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_write_in_child, args=(model, results))
    child.start()
    assert results.get(timeout=60) == expected
    child.join()


@needs_numba
@pytest.mark.parametrize(
    ("words", "slots", "held", "says"),
    [
        ([[50]], [0], [3], "50"),
        ([[-1], [9]], [0, 1], [3, 3], "-1"),
        ([[9]], [5], [3], r"in \[0, 5\)"),
        ([[9], [9]], [1, 1], [3, 3], "two texts have one place"),
        ([[9]], [0], [40], "the cache has 40 rows"),
    ],
)
def test_wrong_numbers_are_the_executors_errors(words: list[list[int]], slots: list[int], held: list[int], says: str) -> None:
    for threads in (1, 3):
        model = model_of(TOLD["Mistral"], threads=threads)
        before = fs.generate(model, [[9, 10, 11]], 4)
        with pytest.raises(fs.ForeshapeError, match=says):
            model.run(words, slots, held)
        assert fs.generate(model, [[9, 10, 11]], 4) == before


def _small(function: Any) -> fs.LanguageModel:
    fs.reset()
    words = layer.data("words", ["rows"], "int64", lod_level=1)
    cache = layer.attention_cache(words)
    x = layer.transformer_encoder(layer.embedding(words, [40, 32]), layers=1, heads=4, causal=True, rotary=True, cache=cache)
    scores = layer.fc(layer.sequence_last_step(function(x)), 40)
    fs.Executor(seed=1).run(fs.default_startup_program())
    return fs.LanguageModel(words, scores, cache, users=2, context=16)


@needs_numba
def test_a_network_with_another_op_is_run_by_its_executor() -> None:
    plain = _small(lambda x: x)
    fs.generate(plain, [[1, 2, 3]], 3)
    assert plain._step is not None
    other = _small(layer.softsign)
    assert len(fs.generate(other, [[1, 2, 3]], 3)[0]) == 3
    assert other._step is None
    with pytest.raises(word_step.NoWordStep, match="softsign has no instructions"):
        names = other.words.name, other.cache.slots.name, other.cache.held.name, other.scores.name
        values = {v.name: other.scope.tensor(v.name) for v in other.program.global_block.vars.values() if v.persistable}
        word_step.WordStep(other.program, names, values, 2, 16, 1)


def _counting(x: Any) -> Any:
    layer.increment(layer.create_parameter([1], "float32", "count", initializer=layer.Constant(0.0), trainable=False))
    return x


@needs_numba
@pytest.mark.parametrize("change", [_counting, lambda x: layer.print(x, summarize=1)], ids=["a state", "a printed value"])
def test_a_network_that_does_more_than_to_compute_is_run_by_its_executor(change: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """Its state is moved, and its values are printed, once in each run."""
    model = _small(change)
    model.run([[1, 2]], [0], [0])
    capfd.readouterr()
    model.run([[3]], [0], [2])
    model.run([[4]], [0], [3])
    assert model._step is None
    if change is _counting:
        assert float(model.scope.get("count")[0]) == 3
    else:
        assert capfd.readouterr().out.strip()


@needs_numba
def test_sizes_that_only_one_text_has_are_no_step_of_several() -> None:
    """A parameter of one row is added to the rows of a single text, and refused for more: the executor says so."""
    model = _small(lambda x: x)
    step = model._step if model._step is not None else (model.run([[1]], [0], [0]), model._step)[1]
    assert step is not None

    def refused(rows: int) -> Any:
        raise word_step.NoWordStep("not of so many rows")

    step._table = refused
    expected = model.run([[5]], [1], [0]).numpy()
    found = model.run([[5], [7]], [1, 0], [0, 0]).numpy()
    np.testing.assert_allclose(found[:1], expected, rtol=1e-4, atol=1e-5)


@needs_numba
def test_new_weights_are_met() -> None:
    model = model_of(TOLD["Mistral"])
    first = fs.generate(model, [[9, 10, 11]], 6)
    name = next(v.name for v in model.program.global_block.vars.values() if v.name.endswith("mlp.outer.weight"))
    model.scope.set(name, -3 * model.scope.get(name))
    fresh = model_of(TOLD["Mistral"])
    fresh.scope.set(name, -3 * fresh.scope.get(name))
    assert fs.generate(model, [[9, 10, 11]], 6) == fs.generate(fresh, [[9, 10, 11]], 6) != first
