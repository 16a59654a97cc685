"""Cells that run again: programs of their own, the default one reset, and what an error says of a name that is taken."""

from __future__ import annotations

import re
import sys
import threading
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.program import startup_of
from foreshape.language.program.messages import CallSite

X = np.ones((4, 3), "float32")


def cell() -> fs.Variable:
    """A cell of a notebook that describes a network in the default program."""
    x = layer.data("x", 3)
    return layer.fc(x, 2)


def test_a_cell_that_runs_again_is_told_what_to_do_and_then_runs() -> None:
    first = cell()
    fs.Executor().run(fs.default_startup_program())
    assert "fc_0.w_0" in fs.default_scope()
    with pytest.raises(fs.SchemaError) as caught:
        cell()
    line = CallSite(__file__, cell.__code__.co_firstlineno + 2).short()
    said = f"the name 'x' is taken in this block, since {line}, which is this line, run before; to describe a network anew call fs.reset() first"
    assert said in str(caught.value)
    assert "`with fs.program() as p:`" in str(caught.value) and f'f32[batch, 3]    data("x")    {line}' in str(caught.value)
    held = fs.default_main_program()
    fs.reset()
    again = cell()
    assert again.name == first.name and again.block.program is fs.default_main_program() is not held and fs.default_scope().names() == []
    with pytest.raises(fs.ExecutionError, match=r"not initialised: fc_0\.w_0"):
        fs.Executor().run(feed={"x": X}, fetch=[again])
    fs.Executor().run(fs.default_startup_program())
    assert fs.Executor().run(feed={"x": X}, fetch=[again])[0].shape == (4, 2)
    assert fs.Executor().run(held, {"x": X}, [first])[0].shape == (4, 2), "what a user holds can still be run"
    with pytest.raises(fs.SchemaError, match="is a variable of another program"):
        layer.fc(first, 2)


def test_the_values_can_be_kept() -> None:
    cell()
    fs.Executor().run(fs.default_startup_program())
    before = fs.default_scope().get("fc_0.w_0")
    fs.reset(values=False)
    out = cell()
    np.testing.assert_allclose(fs.Executor().run(feed={"x": X}, fetch=[out])[0], X @ before, rtol=1e-5)


def test_a_program_per_description() -> None:
    kept = fs.default_main_program()
    outs: list[fs.Variable] = []
    for _ in range(2):
        with fs.program() as p:
            out = cell()
            cost = layer.square(out - 1.0).mean()
        outs.append(out)
        assert out.block.program is p and p.startup is startup_of(p) and p.startup is not fs.default_startup_program()
        assert [v.name for v in p.parameters()] == ["fc_0.w_0", "fc_0.b_0"] and fs.default_main_program() is kept
        scope = fs.Scope()
        history = fs.train(cost, {"x": X}, epochs=2, batch_size=2, progress=False, scope=scope)
        assert history.steps == 4 and "fc_0.w_0" in scope
    assert outs[0].block.program is not outs[1].block.program and kept.global_block.ops == []


def test_an_optimizer_finds_the_startup_program_of_a_program() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        cost = cell().mean()
    fs.optimizer.SGD(0.1).minimize(cost)
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(startup, scope=scope)
    assert np.isfinite(executor.run(main, {"x": X}, [cost], scope)[0]) and fs.default_startup_program().global_block.ops == []
    with fs.program_guard(main):
        assert fs.default_startup_program() is startup


def test_a_startup_program_of_another_network_is_told() -> None:
    startup = fs.Program()
    said: list[list[str]] = []
    for wide, start in ((3, None), (3, None), (5, None), (3, layer.Constant(1.0))):  # two that are alike, as one to train and one to test are
        with warnings.catch_warnings(record=True) as seen, fs.program_guard(fs.Program(), startup):
            warnings.simplefilter("always")
            out = layer.fc(layer.data("x", wide), 2, weight=start)
            said.append([str(w.message) for w in seen])
        if wide == 5:
            with pytest.raises(fs.ExecutionError, match=r"must be f32\[5, 2\]; the startup program makes f32\[3, 2\], of another network"):
                fs.train(out, {"x": np.ones((4, 5), "float32")}, progress=False)
            assert not fs.default_main_program().parameters() and "fc_0.w_0" not in fs.default_scope()
    assert [len(words) for words in said] == [0, 0, 1, 1]
    assert all(re.match(r"the startup program makes fc_0.w_0: f32\[3, 2\] already, described at test_describing_anew.py:.* of its own", w) for (w,) in said[2:])


def test_where_a_reset_is_refused_and_what_another_thread_has() -> None:
    with fs.program() as p:
        cell()
        with pytest.raises(fs.SchemaError, match=r"called outside of `with fs\.program"):
            fs.reset()
        with pytest.raises(fs.SchemaError, match="describe another network in a program of its own"):
            layer.data("x", 3)
    cell()
    there = threading.Thread(target=fs.reset, kwargs={"values": False})
    there.start()
    there.join()
    assert "x" in fs.default_main_program().global_block.vars and "x" in p.global_block.vars, "a thread has programs of its own"


def test_a_cell_is_called_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=lambda file: ("Cell", "In[7]") if file == "/tmp/ipykernel_1/2.py" else None))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert CallSite("/tmp/ipykernel_1/2.py", 3).short() == "In[7]:3" and CallSite("/home/net.py", 3).short() == "net.py:3"


# --- programs with updates that are run to be used


def test_a_run_that_trains_unasked_warns_once() -> None:
    with fs.program() as p:
        out = cell()
        each = layer.square(out)
        cost = layer.mean(each)
        described = p.clone()
        fs.optimizer.SGD(0.1).minimize(cost)
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(p.startup, scope=scope)

    def warned(program: fs.Program, *fetch: str) -> list[str]:
        with pytest.warns() as seen:
            executor.run(program, {"x": X}, list(fetch), scope)
            fs.Executor().run(program, {"x": X}, list(fetch), scope)
            import warnings

            warnings.warn("an end", UserWarning, stacklevel=1)
        assert all(w.filename == __file__ for w in seen)
        return [str(w.message) for w in seen][:-1]

    for fetch in ((cost.name,), (each.name,), (out.name, cost.name), ("fc_0.w_0@GRAD",), ("fc_0.w_0",), ()):
        assert warned(p, *fetch) == []
    assert warned(described, out.name) == []
    (words,) = warned(p, out.name)
    assert words.startswith(f"running this program trains it: it has updates of its parameters, which run too although {out.name} does not need them")
    assert warned(p, out.name) == []
