"""Beam search against exhaustive search, and against what PaddlePaddle 2.6.2 gave for the same operands."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError

END = 0
Step = tuple[Sequence[int], Sequence[float], list[list[int]]]


def select(
    pre_ids: Any, pre_scores: Any, ids: Any, scores: Any, lengths: list[list[int]] | None, beam_size: int, end_id: int = END, accumulated: bool = True,
    level: int = 0,
) -> tuple[LoDTensor, LoDTensor, Any]:  # fmt: skip
    """One step, run as a program."""
    scores = np.asarray(scores, np.float32)
    width = scores.shape[1]
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        levels = len(lengths or ())
        a = layer.data("pre_ids", shape=["rows", 1], dtype="int64")
        b = layer.data("pre_scores", shape=["rows", 1])
        c = None if ids is None else layer.data("ids", shape=["rows", width], dtype="int64")
        d = layer.data("scores", shape=["rows", width], lod_level=levels)
        out = layer.beam_search(a, b, c, d, beam_size, end_id, level, is_accumulated=accumulated, return_parent_idx=True)
    feed: dict[str, Any] = {"pre_ids": np.asarray(pre_ids, np.int64).reshape(-1, 1), "pre_scores": np.asarray(pre_scores, np.float32).reshape(-1, 1)}
    feed["scores"] = scores if lengths is None else LoDTensor(scores, lengths)
    if ids is not None:
        feed["ids"] = np.asarray(ids, np.int64).reshape(-1, width)
    return tuple(fs.Executor().run(program, feed, list(out), fs.Scope()))  # type: ignore[return-value]


def decode(steps: Sequence[Step], beam_size: int, end_id: int = END) -> tuple[LoDTensor, LoDTensor]:
    """The sentences of these steps, run as a program."""
    program = fs.Program()
    feed: dict[str, Any] = {}
    with fs.program_guard(program, fs.Program()):
        arrays: list[fs.Variable] = []
        for kind, of in (("ids", "int64"), ("scores", "fp32")):
            inputs = [layer.data(f"{kind}{k}", shape=[-1, 1], dtype=of, lod_level=2) for k in range(len(steps))]
            arrays.append(layer.create_array(of))
            for k, one in enumerate(inputs):
                layer.array_write(one, layer.fill_constant([1], "int64", k), arrays[-1])
        out = layer.beam_search_decode(*arrays, beam_size, end_id)
    for k, (ids, scores, lengths) in enumerate(steps):
        feed[f"ids{k}"] = LoDTensor(np.asarray(ids, np.int64).reshape(-1, 1), lengths)
        feed[f"scores{k}"] = LoDTensor(np.asarray(scores, np.float32).reshape(-1, 1), lengths)
    ids, scores = fs.Executor().run(program, feed, list(out), fs.Scope())
    return ids, scores


def flat(value: LoDTensor) -> list[Any]:
    return [round(float(x), 5) for x in np.asarray(value).reshape(-1)]


# --- one step, as PaddlePaddle 2.6.2 gave it

IDS = [[4, 2, 5], [2, 1, 3], [3, 5, 2], [8, 2, 1]]
SCORES = [[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.9, 0.5, 0.1], [0.7, 0.5, 0.1]]
BEFORE = [0.1, 0.2, 0.3, 0.4]
TWO = [[2, 2], [1, 1, 1, 1]]

STEPS: dict[str, tuple[dict[str, Any], list[int], list[float], list[int], list[list[int]]]] = {
    "plain": ({"pre_ids": [1, 2, 3, 4], "pre_scores": BEFORE}, [4, 2, 3, 8], [0.5, 0.6, 0.9, 0.7], [0, 1, 2, 3], [[2, 2], [1, 1, 1, 1]]),
    "one-has-ended": ({"pre_ids": [1, 0, 3, 4], "pre_scores": BEFORE}, [4, 2, 3, 8], [0.5, 0.3, 0.9, 0.7], [0, 0, 2, 3], [[2, 2], [2, 0, 1, 1]]),
    "a-source-has-ended": ({"pre_ids": [1, 0, 0, 0], "pre_scores": [0.1, 0.55, 0.3, 0.4]}, [4, 0], [0.5, 0.55], [0, 1], [[2, 2], [1, 1, 0, 0]]),
    "some-end-now": (
        {"pre_ids": [1, 0, 3, 0], "pre_scores": [0.1, 0.9, 0.3, 0.99], "ids": [[4, 0, 5], [2, 1, 3], [0, 5, 2], [8, 2, 1]],
         "scores": [[0.5, 0.8, 0.2], [0.6, 0.3, 0.1], [0.9, 0.5, 0.1], [0.7, 0.5, 0.1]]},
        [0, 0, 0, 0], [0.8, 0.9, 0.9, 0.99], [0, 1, 2, 3], [[2, 2], [1, 1, 1, 1]],
    ),
    "probabilities-of-words": (
        {"pre_ids": [1, 0, 3, 4], "pre_scores": [-0.1, -0.2, -0.3, -0.4], "ids": None, "accumulated": False,
         "scores": [[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.9, 0.05, 0.05], [0.7, 0.2, 0.1]]},
        [0, 0, 0, 0], [-0.79315, -0.2, -0.40536, -0.75668], [0, 1, 2, 3], [[2, 2], [1, 1, 1, 1]],
    ),
    "the-first-step": (
        {"pre_ids": [1, 1], "pre_scores": [0, 0], "ids": IDS[:2], "scores": SCORES[:2], "lengths": [[1, 1], [1, 1]]},
        [4, 2, 2, 1], [0.5, 0.3, 0.6, 0.3], [0, 0, 1, 1], [[1, 1], [2, 2]],
    ),
    "equal-scores": (
        {"pre_ids": [1, 2], "pre_scores": [0, 0], "ids": IDS[:2], "scores": [[0.5] * 3] * 2, "lengths": [[2], [1, 1]], "beam_size": 3},
        [2, 1, 3], [0.5, 0.5, 0.5], [1, 1, 1], [[2], [0, 3]],
    ),
    "a-source-without-prefixes": (
        {"pre_ids": [1, 2], "pre_scores": [0, 0], "ids": IDS[:2], "scores": [[0.5, 0.4, 0.3], [0.2, 0.6, 0.7]], "lengths": [[2, 0], [1, 1]], "beam_size": 3},
        [4, 3, 1], [0.5, 0.7, 0.6], [0, 1, 1], [[2, 0], [1, 2]],
    ),
    "a-wide-beam": (
        {"pre_ids": [1], "pre_scores": [0], "ids": [[4, 2]], "scores": [[0.5, 0.4]], "lengths": [[1], [1]], "beam_size": 4},
        [4, 2], [0.5, 0.4], [0, 0], [[1], [2]],
    ),
    "levels-between": (
        {"pre_ids": [1, 2, 5], "pre_scores": [0, 0, 0], "ids": [[4, 2], [1, 3], [6, 7]], "scores": [[0.5, 0.4], [0.3, 0.2], [0.9, 0.1]],
         "lengths": [[1, 1], [2, 1]]},
        [4, 2, 6, 7], [0.5, 0.4, 0.9, 0.1], [0, 0, 2, 2], [[2, 1], [2, 0, 2]],
    ),
    "another-level": (
        {"pre_ids": [1, 2, 5], "pre_scores": [0, 0, 0], "ids": [[4, 2], [1, 3], [6, 7]], "scores": [[0.5, 0.4], [0.3, 0.2], [0.9, 0.1]],
         "lengths": [[1, 1], [2, 1]], "level": 1},
        [4, 2, 6, 7], [0.5, 0.4, 0.9, 0.1], [0, 0, 2, 2], [[2, 1], [2, 0, 2]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_what_paddlepaddle_gave(name: str) -> None:
    given, ids, scores, parents, lengths = STEPS[name]
    got_ids, got_scores, got_parents = select(**({"ids": IDS, "scores": SCORES, "lengths": TWO, "beam_size": 2} | given))
    assert np.asarray(got_ids).tolist() == [[i] for i in ids]
    assert flat(got_scores) == scores
    assert got_parents.tolist() == parents and got_parents.dtype == np.int32
    assert got_ids.sequence_lengths == got_scores.sequence_lengths == lengths


def test_without_offsets_all_prefixes_are_of_one_source() -> None:
    ids, _, parents = select([1, 2, 3, 4], BEFORE, IDS, SCORES, None, 3)
    assert np.asarray(ids).tolist() == [[2], [3], [8]] and parents.tolist() == [1, 2, 3] and ids.sequence_lengths == [[4], [0, 1, 1, 1]]


# --- the sentences, as PaddlePaddle 2.6.2 gave them

SENTENCES: dict[str, tuple[list[Step], list[int], list[float], list[list[int]]]] = {
    "one-source": (
        [([0], [0.0], [[1], [1]]), ([2, 3], [0.2, 0.3], [[1], [2]]), ([4, 5], [0.4, 0.5], [[2], [1, 1]]), ([1, 6], [0.9, 0.6], [[2], [1, 1]])],
        [0, 2, 4, 1, 0, 3, 5, 6], [0.0, 0.2, 0.4, 0.9, 0.0, 0.3, 0.5, 0.6], [[2], [4, 4]],
    ),
    "one-ends-before": (
        [([0, 0], [0.0, 0.0], [[1, 1], [1, 1]]), ([2, 3, 1, 4], [0.2, 0.3, 0.4, 0.5], [[1, 1], [2, 2]]),
         ([4, 5, 1, 1], [0.4, 0.5, 0.4, 0.6], [[2, 2], [1, 1, 1, 1]]), ([1, 6], [0.9, 0.6], [[2, 2], [2, 0, 0, 0]])],
        [0, 2, 4, 1, 0, 2, 4, 6, 0, 4, 1, 0, 1], [0.0, 0.2, 0.4, 0.9, 0.0, 0.2, 0.4, 0.6, 0.0, 0.5, 0.6, 0.0, 0.4], [[2, 2], [4, 4, 3, 2]],
    ),
    "prefixes-are-dropped": (
        [([0, 0], [0.0, 0.0], [[1, 1], [1, 1]]), ([2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4], [[1, 1], [2, 2]]),
         ([3, 1, 5, 4], [0.5, 0.6, 0.7, 0.8], [[2, 2], [0, 2, 1, 1]]), ([7, 1, 8, 9], [1.0, 0.6, 1.2, 1.1], [[2, 2], [1, 1, 2, 0]])],
        [0, 3, 3, 7, 0, 3, 1, 0, 4, 5, 8, 0, 4, 5, 9],
        [0.0, 0.2, 0.5, 1.0, 0.0, 0.2, 0.6, 0.0, 0.3, 0.7, 1.2, 0.0, 0.3, 0.7, 1.1], [[2, 2], [4, 3, 4, 4]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SENTENCES)
def test_the_sentences_are_those_of_paddlepaddle(name: str) -> None:
    steps, words, scores, lengths = SENTENCES[name]
    got, values = decode(steps, 2, end_id=1)
    assert flat(got) == words and flat(values) == scores and np.asarray(got).ndim == 1
    assert got.sequence_lengths == values.sequence_lengths == lengths


def test_where_fewer_were_kept_the_last_sentences_are_empty() -> None:
    got, _ = decode([([7, 8, 9], [0.1, 0.3, 0.2], [[1, 0, 1], [1, 2]])], 3)
    assert got.sequence_lengths == [[3, 3, 3], [1, 0, 0, 0, 0, 0, 1, 1, 0]] and flat(got) == [7, 8, 9]


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ([([1, 2, 3], [0.1, 0.2, 0.3], [[1], [3]])], "a source keeps at most beam_size = 2 rows; at step 0 one has 3"),
        ([([1], [0.1], [[1], [1]]), ([1, 2], [0.1, 0.2], [[2], [1, 1]])], "step 1 has more prefixes than step 0 kept, 1"),
    ],
)
def test_steps_that_do_not_fit_are_refused(steps: list[Step], says: str) -> None:
    with pytest.raises(ExecutionError) as caught:
        decode(steps, 2)
    assert says in str(caught.value)


def test_arrays_that_do_not_fit_are_refused() -> None:
    """What a loop may have written, and no description can know."""
    import torch

    from foreshape.core.values.tensor_array import TensorArray
    from foreshape.language.ops import Offsets, get

    operator = get("beam_search_decode").with_values({"beam_size": 2, "end_id": END})

    def array(*elements: tuple[list[int], list[list[int]] | None], of: Any = torch.int64) -> TensorArray:
        out = TensorArray()
        for at, (numbers, lengths) in enumerate(elements):
            where = None if lengths is None else Offsets.of_lengths(*(torch.tensor(level) for level in lengths))
            out.write(at, torch.tensor(numbers, dtype=of), where)
        return out

    one, two = ([1], [[1], [1]]), ([1, 2], [[1, 1], [1, 1]])
    for ids, scores, says in (
        (array(), array(), "they have 0 and 0"),
        (array(one), array(one, one), "they have 1 and 2"),
        (array(one, two), array(one, two), "all steps must have as many sources; step 0 has 1, the next one 2"),
        (array(([1], None)), array(one), "ragged in 2 levels at every step; at step 0"),
        (array(([1], [[1]])), array(one), "ragged in 2 levels at every step; at step 0"),
        (array(one), array(two), "at step 0 Ids is [1]"),
    ):
        with pytest.raises(ExecutionError) as caught:
            type(operator).kernel(operator, ids, scores)
        assert says in str(caught.value)


# --- against exhaustive search


def search(first: np.ndarray, then: np.ndarray, beam_size: int, steps: int) -> list[list[tuple[float, list[int]]]]:
    """The sentences that a beam search finds, where a word's probability depends on the word before, and for each source differs."""
    sources, words = first.shape
    kept: list[Step] = []
    pre_ids, pre_scores = np.full(sources, -1), np.zeros(sources)
    probabilities, lengths = first, [[1] * sources, [1] * sources]
    for _ in range(steps):
        if not len(pre_ids):
            break
        ids, scores, _ = select(pre_ids, pre_scores, None, probabilities, lengths, beam_size, accumulated=False)
        kept.append((np.asarray(ids).reshape(-1).tolist(), np.asarray(scores).reshape(-1).tolist(), ids.sequence_lengths))
        pre_ids, pre_scores = np.asarray(ids).reshape(-1), np.asarray(scores).reshape(-1)
        of_source = np.repeat(np.arange(sources), counts(ids.sequence_lengths))
        lengths = [np.bincount(of_source, minlength=sources).tolist(), [1] * len(pre_ids)]
        probabilities = then[of_source, pre_ids] if len(pre_ids) else np.zeros((0, words))
    found, values = decode(kept, beam_size)
    return [[(float(s[-1]), w.tolist()) for w, s in zip(ws, ss, strict=True) if len(w)] for ws, ss in zip(found.to_list(), values.to_list(), strict=True)]


def counts(lengths: list[list[int]]) -> list[int]:
    """How many rows each source has."""
    ends = np.cumsum([0, *lengths[1]])[np.cumsum([0, *lengths[0]])]
    return np.diff(ends).tolist()


def exhaustive(first: np.ndarray, then: np.ndarray, steps: int) -> list[tuple[float, list[int]]]:
    """Every sentence of one source with its score, the best first."""
    words = len(first)
    out: dict[tuple[int, ...], float] = {}
    for sentence in itertools.product(range(words), repeat=steps):
        cut = sentence[: sentence.index(END) + 1] if END in sentence else sentence
        score, before = 0.0, -1
        for word in cut:
            score += np.log(first[word] if before < 0 else then[before, word])
            before = word
        out[cut] = score
    return sorted(((s, list(w)) for w, s in out.items()), reverse=True)


@pytest.mark.parametrize(("words", "steps", "sources"), [(3, 3, 2), (4, 3, 1), (2, 4, 3)])
def test_a_beam_that_is_wide_enough_finds_the_best_of_all_sentences(words: int, steps: int, sources: int) -> None:
    rng = np.random.RandomState(words * steps)
    first, then = rng.dirichlet(np.ones(words), sources), rng.dirichlet(np.ones(words), (sources, words))
    beam_size = words**steps
    found = search(first, then, beam_size, steps)
    for source in range(sources):
        want = exhaustive(first[source], then[source], steps)
        assert len(found[source]) == len(want)
        np.testing.assert_allclose([s for s, _ in found[source]], [s for s, _ in want], rtol=1e-4, atol=1e-5)
        assert [w for _, w in found[source]] == [w for _, w in want]


def test_a_narrow_beam_is_the_beam_search_of_a_few_lines() -> None:
    rng = np.random.RandomState(5)
    words, steps, sources, beam_size = 6, 5, 4, 3
    first, then = rng.dirichlet(np.ones(words), sources), rng.dirichlet(np.ones(words), (sources, words))
    found = search(first, then, beam_size, steps)
    for source in range(sources):
        beam: list[tuple[float, list[int]]] = [(0.0, [])]
        for _ in range(steps):
            grown: list[tuple[float, list[int]]] = []
            for score, sentence in beam:
                if sentence and sentence[-1] == END:
                    grown.append((score, sentence))
                else:
                    chances = then[source, sentence[-1]] if sentence else first[source]
                    grown += [(score + float(np.log(p)), [*sentence, w]) for w, p in enumerate(chances)]
            beam = sorted(grown, reverse=True)[:beam_size]
        np.testing.assert_allclose([s for s, _ in found[source]], [s for s, _ in beam], rtol=1e-4, atol=1e-5)
        assert [w for _, w in found[source]] == [w for _, w in beam]


def test_the_sentences_of_dense_beams_are_those_of_paddlepaddle() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        inputs = [layer.data(n, shape=[-1, 2, 2], dtype="int64") for n in ("ids", "parents")]
        out = layer.gather_tree(*inputs)
    ids = np.array([[[2, 2], [6, 1]], [[3, 9], [6, 1]], [[0, 1], [9, 0]]])
    parents = np.array([[[0, 0], [1, 1]], [[1, 0], [1, 0]], [[0, 0], [0, 1]]])
    got = fs.Executor().run(program, {"ids": ids, "parents": parents}, [out], fs.Scope())[0]
    assert got.tolist() == [[[2, 2], [1, 6]], [[3, 3], [6, 1]], [[0, 1], [9, 0]]]
    with pytest.raises(ExecutionError, match=r"Parents must be in \[0, 2\), the places of a beam; seen 0 to 2"):
        fs.Executor().run(program, {"ids": ids, "parents": parents * 2}, [out], fs.Scope())


def test_a_loop_decodes_ragged_beams() -> None:
    """The program that a user writes: a loop that reads what was kept, grows it, and writes what is kept now."""
    words, beam_size, steps = 5, 3, 6
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):

        def body(at: Any, ids: Any, scores: Any) -> tuple[Any, Any, Any]:
            pre_ids, pre_scores = layer.array_read(ids, at), layer.array_read(scores, at)
            chances = layer.softmax(layer.embedding(layer.squeeze(pre_ids, [1]), [words, words], weight="table"))
            found_ids, found_scores = layer.beam_search(pre_ids, pre_scores, None, chances, beam_size, END, is_accumulated=False)
            layer.array_write(found_ids, at + 1, ids)
            layer.array_write(found_scores, at + 1, scores)
            return at + 1, ids, scores

        first = [layer.data("ids", shape=[-1, 1], dtype="int64", lod_level=2), layer.data("scores", shape=[-1, 1], lod_level=2)]
        layer.create_parameter([words, words], fs.FP32, "table")
        start = layer.fill_constant([1], "int64", 0)
        arrays = [layer.array_write(x, start) for x in first]
        _, *arrays = layer.while_loop(lambda at, *_: layer.less_than(at, layer.fill_constant([1], "int64", steps)), body, [start, *arrays])
        out = layer.beam_search_decode(*arrays, beam_size, END)
    assert out[0].spec.lod is not None and [str(c) for c in out[0].spec.lod.counts] == ["batch", "3*batch"]
    rng = np.random.RandomState(1)
    logits = 2 * rng.standard_normal((words, words)).astype(np.float32)
    scope = fs.Scope()
    scope.set("table", logits)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    starts, executor = [2, 3, 1, 4], fs.Executor()
    feed = {"ids": LoDTensor(np.array(starts)[:, None], [[1] * 4] * 2), "scores": LoDTensor(np.zeros((4, 1), np.float32), [[1] * 4] * 2)}
    found, values = executor.run(main, feed, list(out), scope)
    for source, start_word in enumerate(starts):
        beam: list[tuple[float, list[int]]] = [(0.0, [start_word])]
        for _ in range(steps):
            grown = [(s, w) for s, w in beam if w[-1] == END]
            grown += [(s + float(np.log(p)), [*w, k]) for s, w in beam if w[-1] != END for k, p in enumerate(chances[w[-1]])]
            beam = sorted(grown, reverse=True)[:beam_size]
        assert [w.tolist() for w in found.to_list()[source]] == [w for _, w in beam]
        np.testing.assert_allclose([s[-1] for s in values.to_list()[source]], [s for s, _ in beam], rtol=1e-4)


@pytest.mark.parametrize("tagged", [False, True])
def test_the_best_path_is_the_best_of_all_paths(tagged: bool) -> None:
    rng = np.random.RandomState(4)
    scores, transition, lengths = rng.randn(4, 4, 3).astype("float32"), rng.randn(3, 3).astype("float32"), [4, 1, 3, 2]
    with fs.program_guard(fs.Program(), fs.Program()):
        inputs = layer.data("e", shape=["batch", 4, 3]), layer.data("t", shape=[3, 3]), layer.data("n", shape=["batch"], dtype="int64")
        fetch = list(layer.viterbi_decode(*inputs, include_bos_eos_tag=tagged))
        sums, paths = fs.Executor(check=True).run(feed={"e": scores, "t": transition, "n": np.array(lengths)}, fetch=fetch, scope=fs.Scope())
    for e, n, total, path in zip(scores, lengths, sums, paths, strict=True):

        def value(tags: Any, e: Any = e, n: int = n) -> float:
            begin_and_end = transition[-1][tags[0]] + transition[-2][tags[n - 1]] if tagged else 0.0
            return float(sum(e[t, tag] for t, tag in enumerate(tags)) + sum(transition[a, b] for a, b in itertools.pairwise(tags)) + begin_and_end)

        best = max(itertools.product(range(3), repeat=n), key=value)
        np.testing.assert_allclose(total, value(best), rtol=1e-5)
        assert path.tolist() == [*best, *([0] * (4 - n))]
