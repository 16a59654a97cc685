"""Networks with a cache, and the blocks of today's language models: rows computed piece by piece, ragged and dense, are the same."""

from __future__ import annotations

import numpy as np
import pytest
from support.some import each

import foreshape as fs
from foreshape import layer

SETTINGS = {
    "GPT-2": {},
    "interleaved": {"rotary": True},
    "Llama": {
        "rotary": layer.Rotary(500.0, interleaved=False),
        "normalize": "rms",
        "gated": True,
        "activation": "silu",
        "key_heads": 2,
        "head_size": 6,
        "bias": False,
    },
    "one key head": {"rotary": layer.Rotary(rates=[1.0, 0.5, 0.25, 0.1]), "key_heads": 1, "norm": "post"},
    "Gemma 3": {"rotary": True, "norm": "both", "normalize": "rms", "query_norm": layer.QueryNorm(1e-5)},
    "OLMo 2": {"rotary": True, "norm": "result", "normalize": "rms", "query_norm": layer.QueryNorm(by_head=False), "key_heads": 2},
    "GPT-NeoX": {"rotary": True, "norm": "parallel"},
    "Gemma 2": {"each": [{"window": 4, "rotary": True}, {}], "score_cap": 0.2, "key_heads": 2},
}
LENGTHS = (7, 3, 11)


def described(settings, words, cache=None):
    h = layer.embedding(words, [50, 32], weight="table")
    return layer.transformer_encoder(h, 2, 4, causal=True, cache=cache, **settings)


@pytest.fixture(params=each(2, SETTINGS))
def settings(request):
    return SETTINGS[request.param]


@pytest.mark.quick_cases("GPT-2-True", "Gemma 3-True")
@pytest.mark.parametrize("frozen", [pytest.param(False, marks=pytest.mark.long), True])
def test_rows_in_pieces_are_the_rows_of_the_whole(settings, frozen):
    main, startup, whole, dense = (fs.Program() for _ in range(4))
    with fs.program_guard(main, startup):
        words = layer.data("words", ["rows"], "int64", lod_level=1)
        cache = layer.attention_cache(words)
        out = described(settings, words, cache)
    windowed = "score_cap" in settings  # no kernel of ragged rows without a cache has these
    if not windowed:
        with fs.program_guard(whole, fs.Program()):
            at_once = described(settings, layer.data("words", ["rows"], "int64", lod_level=1))
    with fs.program_guard(dense, fs.Program()):
        alone = described(settings, layer.data("words", ["batch", "time"], "int64"))
    executor, scope = fs.Executor(frozen=frozen), fs.Scope()
    fs.Executor(seed=1).run(startup, scope=scope)
    for kept in cache.kept:
        scope.set(kept.name, np.zeros((4, 20, kept.dims[-1]), "float32"))
    random = np.random.RandomState(0)
    texts = [random.randint(0, 50, n) for n in LENGTHS]
    want = np.concatenate([executor.run(dense, {"words": text[None]}, [alone], scope)[0][0] for text in texts])
    if not windowed:
        np.testing.assert_allclose(np.asarray(executor.run(whole, {"words": texts}, [at_once], scope)[0].data), want, atol=2e-5)
    held, found = [0, 0, 0], [[], [], []]
    for step in ((3, 1, 5), (1, 1, 1), (1, 1, 1), (2, 0, 4)):
        fed = [t[h : h + n] for t, h, n in zip(texts, held, step, strict=True)]
        (rows,) = executor.run(main, {"words": fed, "cache.slots": [2, 0, 1], "cache.held": held}, [out], scope)
        for at, (part, count) in enumerate(zip(np.split(np.asarray(rows.data), np.cumsum(step)[:-1]), step, strict=True)):
            found[at].append(part)
            held[at] += count
    np.testing.assert_allclose(np.concatenate([np.concatenate(f) for f in found]), want, atol=2e-5)


@pytest.mark.quick_cases("GPT-2", "GPT-NeoX")
def test_blocks_train_ragged_as_dense(settings):
    """A text alone, dense, and as ragged rows has the same loss and gradients."""
    if "score_cap" in settings:
        pytest.skip("a window and a cap are for dense input, or a cache")
    found = []
    for ragged in (False, True):
        main, startup = fs.Program(), fs.Program()
        with fs.program_guard(main, startup):
            words = layer.data("words", ["rows"] if ragged else ["batch", "time"], "int64", lod_level=int(ragged))
            loss = layer.mean(layer.square(described(settings, words) - 0.3))
            gradients = fs.append_backward(loss)
        scope = fs.Scope()
        fs.Executor(seed=1).run(startup, scope=scope)
        text = np.arange(9) * 5
        found.append(fs.Executor().run(main, {"words": [text] if ragged else text[None]}, [loss, *[g for _, g in gradients]], scope))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-5, rtol=1e-4)


def test_rms_norm_is_the_formula():
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", ["batch", 6])
        out = layer.rms_norm(x, 1e-3, weight=layer.Constant(2.0))
        fs.Executor().run(fs.default_startup_program(), scope=(scope := fs.Scope()))
        given = np.random.RandomState(0).standard_normal((4, 6)).astype("float32")
        (seen,) = fs.Executor().run(fs.default_main_program(), {"x": given}, [out], scope)
    np.testing.assert_allclose(seen, 2 * given / np.sqrt((given**2).mean(1, keepdims=True) + 1e-3), rtol=1e-5)


def test_settings_that_are_refused():
    with fs.program_guard(fs.Program(), fs.Program()):
        rows = layer.data("rows", ["n", 8], lod_level=1)
        dense = layer.data("dense", ["batch", "time", 8])
        cache = layer.attention_cache(rows)
        for x, given, error, says in (
            (rows, {"key_heads": 3}, fs.SchemaError, "a divisor of the heads, 4"),
            (rows, {"normalize": "batch"}, fs.SchemaError, "must be 'layer' or 'rms'"),
            (rows, {"rotary": layer.Rotary(rates=[1.0, 2.0])}, fs.ShapeError, "as many as the pairs of a head, 1"),
            (dense, {"cache": cache}, fs.SchemaError, "a cache is for ragged rows"),
            (rows, {"window": 4}, fs.SchemaError, "or for ragged rows with a cache"),
            (rows, {"score_cap": 4.0}, fs.SchemaError, "or for ragged rows with a cache"),
            (dense, {"window": 0}, fs.SchemaError, "window must be at least 1"),
            (dense, {"score_cap": 0.0}, fs.SchemaError, "score_cap must be more than 0"),
            (rows, {"norm": "none"}, fs.SchemaError, "norm must be 'pre' or 'post' or 'result'"),
        ):
            with pytest.raises(error, match=says):
                layer.transformer_encoder_block(x, 4, **given)
