"""What ranks say on their board, and how often its store is asked for that: as often for thousands of ranks as for three."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from foreshape.machine.communication import status
from foreshape.machine.communication import store as stores
from foreshape.machine.communication.process_group import ProcessGroup, set_team
from foreshape.machine.communication.status import StatusBoard, frames_of

MANY = 4096


class Store:
    """A store in this process, which counts what it is asked for; with lists and answers for many keys, or without."""

    def __init__(self, lists: bool = True) -> None:
        self.lists = lists
        self.held: dict[str, bytes] = {}
        self.asked = 0
        self.lock = threading.Lock()

    def has_extended_api(self) -> bool:
        return self.lists

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        return all(k in self.held for k in keys)

    def get(self, key: str) -> bytes:
        self.asked += 1
        return self.held[key]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert self.lists
        self.asked += 1
        return [self.held[k] for k in keys]

    def set(self, key: str, value: bytes | str) -> None:
        self.held[key] = value if isinstance(value, bytes) else value.encode()

    def append(self, key: str, value: bytes) -> None:
        assert self.lists
        with self.lock:
            self.held[key] = self.held.get(key, b"") + value


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits that are as long as a test may be."""
    monkeypatch.setattr(status, "BEAT", 0.05)
    monkeypatch.setattr(status, "SILENT", 0.2)


def boards(store: Any, ranks: int) -> list[StatusBoard]:
    return [StatusBoard(store, r, ranks, 5.0) for r in range(ranks)]


@pytest.fixture
def torches() -> Iterator[Any]:
    """torch's own store."""
    made: Any = torch.distributed
    yield made.PrefixStore("run 1", made.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10), wait_for_workers=False))


def alone(store: Store, ranks: int) -> StatusBoard:
    """The board of rank 0, where the others have said what is in the store."""
    made = StatusBoard(store, 0, ranks, 5.0)
    made.close()  # so that nothing but questions is counted
    store.asked = 0
    return made


def put(store: Store, rank: int, beat: str = "", **told: str) -> None:
    """What another rank has said."""
    other = StatusBoard.__new__(StatusBoard)
    other.rank, other._store, other._lists, other._gone = rank, store, store.lists, False
    other._thread = threading.current_thread()
    if beat:
        other._set("beat", beat)
        other._tell("there", "yes")
    for what, text in told.items():
        other._tell(what, text)


@pytest.mark.quick_cases("3")
@pytest.mark.parametrize("ranks", [3, MANY])
def test_the_rank_that_stopped_the_others_is_found_by_a_handful_of_questions(ranks: int) -> None:
    store = Store()
    board = alone(store, ranks)
    board.fed = "step 3 with x"
    for rank in range(1, ranks - 1):
        put(store, rank, beat="1\nin step 3", stopped=f"in step 3\nstep 3 with x\n{status.WAITED}: for all")
    put(store, ranks - 1, beat="1\nin step 3", stopped="in step 3\nstep 3 with x\nFormatError: 'c\ncannot be written")
    assert board.explain() == f"rank {ranks - 1} stopped in step 3: FormatError: 'c\ncannot be written"
    assert store.asked <= 8


@pytest.mark.quick_cases("3")
@pytest.mark.parametrize("ranks", [3, MANY])
def test_a_rank_without_a_sign_of_life_is_found_by_as_many_questions_as_there_are_looks(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SILENT", -0.2)  # it looks once
    store = Store()
    board = alone(store, ranks)
    for rank in range(1, ranks - 1):
        put(store, rank, beat="1\nin step 3", stopped=f"in step 3\n\n{status.WAITED}: for all")
    put(store, ranks - 1, beat="7\nin step 2, at conv2d (net.py:14)")
    assert board.explain() == f"rank {ranks - 1} is gone or has stopped: no sign of life since it was in step 2, at conv2d (net.py:14)"
    assert store.asked <= 20


def test_rank_0_waits_for_thousands_by_a_handful_of_questions() -> None:
    store = Store()
    board = StatusBoard(store, 0, MANY, 5.0)
    for rank in range(1, MANY):
        put(store, rank, left="yes")
    store.asked = 0
    board.close()
    assert store.asked <= 4


@pytest.mark.parametrize("lists", [True, False])
def test_ranks_that_are_at_different_things(lists: bool) -> None:
    store = Store(lists)
    one, two = boards(store, 2)
    one.fed, two.fed = "step 4 with x float32[.., 6]", "no more data"
    two.at("at its end")
    two.stopped(f"{status.WAITED}: for rank 0")
    assert one.explain() == "the ranks are at different things: rank 0: step 4 with x float32[.., 6]; rank 1: no more data"
    two.close()
    one.close()


@pytest.mark.parametrize("lists", [True, False])
def test_only_the_first_reason_counts_and_lines_stay_apart(lists: bool) -> None:
    store = Store(lists)
    one, two, three = boards(store, 3)
    two.stopped('A: "first"\nwith a line')
    two.stopped("B: second")
    three.stopped("C: \u2028 another")
    assert one.explain() == 'rank 1 stopped before the first step: A: "first"\nwith a line; rank 2 stopped before the first step: C: \u2028 another'
    for board in (two, three, one):
        board.close()


def test_what_no_rank_has_written_is_passed_over() -> None:
    store = Store()
    board = alone(store, 3)
    store.append("foreshape/stopped", b'nonsense\n[7, "x"]\n[true, "x"]\n[1]\n{"a": 1}\n[1, 2]\n\xff\xfe\n')
    store.append("foreshape/stopped", b'[2, "in step 1\\n\\nE: real"]\n[2, "in step 1\\n\\nE: later"]\n')
    assert board.explain() == "rank 2 stopped in step 1: E: real"


def test_torchs_own_store_is_a_board(torches: Any) -> None:
    made = [StatusBoard(torches, r, 3, 5.0) for r in range(3)]
    made[2].at("in step 1")
    made[2].stopped("OSError: no space")
    assert made[0].explain() == "rank 2 stopped in step 1: OSError: no space"
    assert made[1].explain() == "rank 2 stopped in step 1: OSError: no space"
    for board in reversed(made):
        board.close()


def test_ranks_that_meet_are_counted_by_a_handful_of_questions() -> None:
    store = Store()
    for rank in range(MANY):
        store.set(f"here/{rank}", str(MANY))
    stores._wait_for_all(store, "there:1", 0, MANY, 5.0)
    assert store.asked <= 4


def test_where_another_thread_is_is_told_while_it_runs() -> None:
    ended, ready = threading.Event(), threading.Event()

    def waits_there() -> None:
        ready.set()
        ended.wait()

    thread = threading.Thread(target=waits_there)
    thread.start()
    ready.wait()
    assert thread.ident is not None
    try:
        found = frames_of(thread.ident)
    finally:
        ended.set()
        thread.join()
    assert ("waits_there", Path(__file__).name) in [(name, Path(file).name) for file, _, name in found]
    assert frames_of(threading.get_ident())[1][2] == "test_where_another_thread_is_is_told_while_it_runs"
    assert frames_of(1) == []


def test_a_thread_is_looked_into_by_another_only_where_it_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """While messages come and go, a dump of its frames has ended the process."""
    looked: list[int] = []
    monkeypatch.setattr(status, "frames_of", lambda thread: [looked.append(thread)] and [("/home/user/net.py", 14, "main")])
    board = StatusBoard(Store(), 0, 1, 1.0)
    board.close()  # its own thread asks no more
    team = ProcessGroup(0, 1, None)
    set_team(0, team)

    def asked() -> str:
        """The next sign of life but for its number."""
        signs = threading.Thread(target=board._say)
        signs.start()
        signs.join()
        return str(board._get("beat", 0)).partition("\n")[2]

    try:
        looked.clear()
        for step in range(3):
            board.at(f"in step {step}")
            assert asked().startswith(f"in step {step}")
            team.begun += 1
            asked()
        assert looked == []
        assert asked() == "in step 2, at net.py:14"
        assert looked == [threading.get_ident()]
        team.begun += 1
        assert asked() == "in step 2, at net.py:14", "where it was seen last"
        assert len(looked) == 1
    finally:
        set_team(0, None)
