"""How many threads steps have, who says so, what OpenMP is told, and what is left of it in children."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import Network

import foreshape as fs
from foreshape.core.values.openmp import SERVER_SPINS, SPINS
from foreshape.core.values.processors import allowed, without_processor
from foreshape.core.values.torch_proxy import torch
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.process.threads import Fastest
from foreshape.machine.process.waiting import CALM, EVERY, WaitPolicy

HERE = Path(__file__).parent
SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY", "OMP_DISPLAY_ENV")
linux = pytest.mark.skipif(sys.platform != "linux", reason="libgomp, control groups and affinity masks are looked for on Linux")
several = pytest.mark.skipif(not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="there is one processor")


def process(*command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A Python process that is told nothing but these settings about threads."""
    environment = {n: v for n, v in os.environ.items() if n not in SETTINGS} | settings
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False, cwd=HERE)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# --- what OpenMP is told

RUN = "import os; from foreshape.core.values.torch_proxy import torch; torch.get_num_threads(); print('GOMP_SPINCOUNT' in os.environ)"


def spins(code: str, **settings: str) -> tuple[str, str]:
    """The number that libgomp has read, and what the process printed."""
    done = process("-c", code, OMP_DISPLAY_ENV="VERBOSE", **settings)
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if found is None:
        pytest.skip("torch runs on another OpenMP here")
    return found[1], done.stdout.strip()


UNCOUNTED = "import foreshape.core.values.openmp as o; o.without_processor = lambda: None\n"


@linux
@pytest.mark.long
@pytest.mark.parametrize("code", [RUN, "import torch;" + RUN])
def test_libgomp_waits_as_it_does_where_the_system_says_who_waits(code: str) -> None:
    if without_processor() is None:
        pytest.skip("this system does not count what threads wait for")
    alone, _ = spins("import torch")
    assert spins(code) == (alone, "False")


@pytest.mark.long
@linux
def test_libgomp_waits_briefly_elsewhere_and_other_programs_are_told_nothing() -> None:
    assert spins(UNCOUNTED + RUN) == (SPINS, "False")


@pytest.mark.long
@linux
def test_libgomp_of_a_server_waits_as_servers_do_unless_the_user_says_otherwise() -> None:
    code = "from foreshape.core.values import openmp; openmp.wait_as_server();" + RUN + "; print(openmp.says_how_to_wait())"
    assert spins(code) == (SERVER_SPINS, "False\nTrue")
    assert spins(code, GOMP_SPINCOUNT="77") == ("77", "True\nTrue")


OTHER_WORDS = ({"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "77"}, {"KMP_BLOCKTIME": "5"})


@linux
@pytest.mark.long
@pytest.mark.parametrize("settings", [{"OMP_WAIT_POLICY": "PASSIVE"}, *OTHER_WORDS], ids=str)
def test_the_users_own_words_on_waiting_stand_above(settings: dict[str, str]) -> None:
    alone, _ = spins("import torch", **settings)
    assert spins(RUN, **settings) == (alone, str("GOMP_SPINCOUNT" in settings))
    assert alone != SPINS


# --- how they wait while they run


class Crowd:
    """A clock, and the seconds that threads have waited for a processor by then; who counts the teams that were made and ended."""

    def __init__(self) -> None:
        self.now, self.delay, self.made, self.ended = 0.0, 0.0, 0, 0
        self.waiting = WaitPolicy(lambda: self.delay, self.make)

    def make(self) -> Crowd:
        self.made += 1
        return self

    def end(self) -> None:
        self.ended += 1

    def looks(self, count: int, share: float) -> None:
        for _ in range(count):
            self.now += 2 * EVERY
            self.delay += 2 * EVERY * share
            assert self.now >= self.waiting.next
            self.waiting.look(self.now)
            assert self.now < self.waiting.next <= self.now + 1.01 * EVERY


def test_threads_sleep_soon_in_a_crowd_and_wait_awake_again_after_it() -> None:
    crowd = Crowd()
    crowd.looks(1, 5.0)  # what was before the first look is not known
    crowd.looks(20, 0.02)
    assert not crowd.waiting.briefly
    crowd.looks(1, 0.6)
    assert crowd.waiting.briefly
    for share in (0.6, 0.15, 0.02, 0.15):  # a pause is not the end
        crowd.looks(CALM - 1, share)
        assert crowd.waiting.briefly and crowd.made == 1
    crowd.looks(CALM, 0.02)
    assert not crowd.waiting.briefly and (crowd.made, crowd.ended) == (1, 1)
    crowd.looks(3, 0.15)
    assert not crowd.waiting.briefly


def test_where_nobody_counts_no_more_looks_are_taken() -> None:
    waiting = WaitPolicy(lambda: None, lambda: pytest.fail("a team was made"))
    waiting.look(1.0)
    assert waiting.next == float("inf") and not waiting.briefly


LOOKS = (
    "from processes import Network; from foreshape.machine.process import waiting; import os, time\n"
    "Network(2).step(); counted = waiting.without_processor() is not None and waiting.is_libgomp()\n"
    "threads = lambda: len(os.listdir('/proc/self/task'))\n"
    "before = threads(); team = waiting.IdleTeam() if counted else None; beside = threads() - before\n"
    "if team: team.end()\n"
    "while team and threads() > before: time.sleep(0.001)\n"
    "print(counted, 0 < waiting.waiting.next < float('inf'), beside)"
)


@pytest.mark.long
@linux
@pytest.mark.parametrize("settings", [{}, {"OMP_WAIT_POLICY": "PASSIVE"}], ids=str)
def test_steps_look_unless_the_user_has_said_how_to_wait_and_an_idle_team_comes_and_goes(settings: dict[str, str]) -> None:
    counted, looks, beside = process("-c", LOOKS, OMP_NUM_THREADS="2", **settings).stdout.split()
    if counted == "False":
        pytest.skip("this system does not count what threads wait for, or torch runs on another OpenMP")
    assert looks == str(not settings)
    assert int(beside) == max(2, allowed())  # more than there are processors, with those of the steps


# --- how many threads torch has

QUOTA_OF_ONE = "import foreshape.core.values.processors as p; p.quota = lambda: 1.0\n"
THREADS = "from foreshape.core.values.torch_proxy import torch; print(torch.get_num_threads())"


@pytest.mark.long
@linux
@several
@pytest.mark.parametrize(
    ("code", "settings", "threads"),
    [
        (THREADS, {}, 1),
        (THREADS, {"OMP_NUM_THREADS": "2"}, 2),
        ("import torch\n" + THREADS, {}, 1),
        ("import torch; torch.set_num_threads(1)\n" + THREADS, {}, 1),
        ("import torch; torch.set_num_threads(2)\n" + THREADS, {}, 2),
        ("import torch; torch.set_num_threads(3)\n" + THREADS, {}, 3),
        ("import torch; torch.ones(1_000_000).sum()\n" + THREADS, {}, 1),
        ("from foreshape.core.values.torch_proxy import torch; torch.set_num_threads(2); import foreshape as fs; fs.Executor()\n" + THREADS, {}, 2),
        ("import torch\n" + THREADS, {"OMP_NUM_THREADS": "2"}, 2),
    ],
)
def test_threads_follow_the_quota_unless_the_user_says(code: str, settings: dict[str, str], threads: int) -> None:
    assert process("-c", QUOTA_OF_ONE + code, **settings).stdout.split() == [str(threads)]


@linux
@several
@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "settings", "threads"),
    [("", {}, 1), ("import torch\n", {}, 1), ("", {"OMP_NUM_THREADS": "2"}, 2)],
)
def test_threads_follow_the_affinity_mask(before: str, settings: dict[str, str], threads: int) -> None:
    masked = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    assert process("-c", before + masked + THREADS, **settings).stdout.split() == [str(threads)]


@linux
@several
@pytest.mark.long
def test_a_plan_without_torch_counts_the_threads_that_torch_would_get() -> None:
    code = "from foreshape.machine.kernels.onednn import thread_count; a = thread_count()\n" + THREADS + "; print(a)"
    for quota in (QUOTA_OF_ONE, ""):
        told, planned = process("-c", quota + code).stdout.split()
        assert told == planned


# --- what an executor is told


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "two", "", [2]])
def test_other_words_than_a_number_or_adaptive_are_refused(threads: Any) -> None:
    with pytest.raises(fs.ExecutionError, match=re.escape(repr(threads))):
        fs.Executor(threads=threads)


def seen_threads(monkeypatch: pytest.MonkeyPatch, network: Network) -> list[int]:
    """As many as torch has, while a step is made and then while it runs."""
    from foreshape.runtime.engine import executor as engine

    seen: list[int] = []
    make, bind = engine.CompiledStep.__init__, engine.CompiledStep.bind
    monkeypatch.setattr(engine.CompiledStep, "__init__", lambda self, *a, **k: (seen.append(torch.get_num_threads()), make(self, *a, **k))[1])

    def bound(self: Any, scope: fs.Scope) -> Any:
        found = bind(self, scope)
        function = found.function
        return found._replace(function=lambda *tensors: (seen.append(torch.get_num_threads()), function(*tensors))[1], small=None)

    monkeypatch.setattr(engine.CompiledStep, "bind", bound)
    network.step()
    monkeypatch.undo()
    return seen


@pytest.mark.parametrize("threads", [1, 2, 3, None])
def test_a_number_of_threads_is_had_by_plans_and_steps_and_torchs_own_stays(two_threads: None, monkeypatch: pytest.MonkeyPatch, threads: int | None) -> None:
    network = Network(threads)
    assert network.executor.threads == (threads or 2)
    assert seen_threads(monkeypatch, network) == [threads or 2] * 2
    assert torch.get_num_threads() == 2


def test_a_small_step_has_one_thread_whatever_was_said(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for threads in (3, "adaptive", None):
        network = Network(threads)
        network.step = lambda n=network: n.executor.run(n.main, {"x": np.zeros((1, 512), "float32")}, [n.out], n.scope)
        assert seen_threads(monkeypatch, network)[-1] == 1


# --- adaptive


class Machine:
    """A clock by which a step of some work takes so long on so many threads."""

    def __init__(self, **cost: float) -> None:
        self.cost = {int(n.removeprefix("on_")): c for n, c in cost.items()}
        self.now = 0.0

    def steps(self, chooser: Fastest, count: int, work: int = 1000) -> list[int]:
        out: list[int] = []
        for k in range(count):
            size = work * (1 + k % 7)  # sizes that change, as those of texts
            threads = chooser.choose()
            chooser.took(threads, self.cost[threads] * size, size)
            out.append(threads)
        return out


@pytest.mark.parametrize(("most", "numbers"), [(2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])])
def test_adaptive_tries_each_number_and_stays_with_the_fastest(most: int, numbers: list[int]) -> None:
    for fastest in numbers:
        chooser = Fastest(most)
        machine = Machine(**{f"on_{n}": 1.0 if n == fastest else 3.0 for n in numbers})
        steps = machine.steps(chooser, 2000)
        assert set(steps) == set(numbers) and chooser.best == fastest
        assert steps[-1000:].count(fastest) > 0.95 * 1000


def test_adaptive_follows_the_load_and_leaves_small_differences() -> None:
    chooser, quiet, loaded = Fastest(2), Machine(on_1=2.0, on_2=1.0), Machine(on_1=2.0, on_2=9.0)
    for machine, best in ((quiet, 2), (loaded, 1), (quiet, 2)):
        machine.steps(chooser, 2 * Fastest.LONGEST)
        assert chooser.best == best
    Machine(on_1=0.97, on_2=1.0).steps(chooser, 2 * Fastest.LONGEST)
    assert chooser.best == 2


def test_an_adaptive_executor_computes_the_same_on_what_is_fastest_by_the_clock(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from foreshape.runtime.engine import executor as engine

    slow = {1: 1.0, 2: 1.0}
    now = [0.0]

    def clock() -> float:
        now[0] += slow[torch.get_num_threads()]
        return now[0]

    monkeypatch.setattr(engine, "perf_counter", clock)
    network, plain = Network("adaptive"), Network(1)
    wanted = plain.step()
    assert network.executor.threads == "adaptive"
    for fast in (1, 2):
        slow.update({1: 1.0 if fast == 1 else 3.0, 2: 1.0 if fast == 2 else 3.0})
        for _ in range(100):
            assert network.step() == pytest.approx(wanted, rel=1e-5)
        chooser = network.executor.step(network.main, [network.out]).fastest
        assert chooser is not None and chooser.best == fast
        assert torch.get_num_threads() == 2


# --- children


def children(what: str) -> dict[str, Any]:
    return json.loads(process("processes.py", what).stdout)


def same(seen: dict[str, Any], value: float, threads: Any = 1) -> None:
    assert seen == {"value": pytest.approx(value, rel=1e-5), "threads": threads, "torch": seen["torch"], "large": 2.0}
    assert seen["torch"] == 1 or threads != 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
class TestForked:
    def test_a_child_of_a_process_that_ran_on_several_threads_runs_on_one(self) -> None:
        seen = children("fork")
        value = seen["before"]["value"]
        assert seen["before"]["threads"] == seen["after"]["threads"] == 2 and seen["after"]["value"] == value
        for name in ("inherited", "own", "one", "grandchild"):
            same(seen[name], value)
        same(seen["adaptive"], value, "adaptive")
        for name in ("told", "two"):
            assert seen[name]["error"] == "ExecutionError" and "spawn" in seen[name]["words"], seen[name]

    @pytest.mark.long
    def test_where_torch_came_first_and_foreshape_runs_in_the_child_only(self) -> None:
        assert children("torch")["child"]["threads"] == 1

    @pytest.mark.long
    def test_a_child_of_a_process_without_torch_has_all_threads(self) -> None:
        assert children("fresh")["child"]["threads"] == 2

    @pytest.mark.long
    def test_children_that_are_forked_while_another_thread_makes_steps(self) -> None:
        seen = children("beside")
        for one in seen["beside"]:
            same(one, seen["before"]["value"])


@pytest.mark.long
def test_a_spawned_child_has_all_threads() -> None:
    seen = children("spawn")
    assert seen["two"]["threads"] == 2
    for name in ("own", "two"):
        assert seen[name]["value"] == pytest.approx(seen["before"]["value"], rel=1e-5)


@pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed")
def test_a_server_without_torch_ends_teams_and_chooses_their_waiting() -> None:
    """OpenMP comes with the library of kernels then, whose functions are not in sight of all by themselves."""
    code = (
        "import os, sys; from foreshape.core.values import openmp; openmp.wait_as_server()\n"
        "from foreshape.machine.kernels.onednn_library import library; from foreshape.machine.process import threads\n"
        "print(library() is not None, openmp.is_libgomp(), threads._end_of_team() is not None, 'torch' in sys.modules, 'GOMP_SPINCOUNT' in os.environ)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["True", "True", "True", "False", "False"]
