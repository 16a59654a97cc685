"""Meeting at an address: only there, with a deadline for everything."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

import foreshape as fs
from foreshape.machine.communication.rendezvous import Address, HeartbeatMonitor, Meeting, SignsOfLife, connect, listen

HERE = Address("127.0.0.1", 0)


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    made = listen(HERE, 10)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("text", "host", "port"), [("127.0.0.1:1", "127.0.0.1", 1), ("[::1]:29600", "::1", 29600), ("a-b.example:65535", "a-b.example", 65535)]
)
def test_addresses(text: str, host: str, port: int) -> None:
    found = Address.of(text)
    assert (found.host, found.port) == (host, port) and str(found) == text


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:65536", "host:1x", "a b:1", "::1:80", "tcp://host:1", "host:-1", "host:99999999999", "x" * 300 + ":1"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(fs.ExecutionError, match="an address is HOST:PORT"):
        Address.of(text)


def test_two_meet_and_see_each_other(meeting: Meeting) -> None:
    assert meeting.address is not None
    other = connect(meeting.address, 10)
    other.set("a", b"\x00\xff")
    assert meeting.check(["a"]) and meeting.get("a") == b"\x00\xff"
    assert other.add("n", 2) == 2 and meeting.add("n", 0) == 2
    assert meeting.delete_key("a") and not other.check(["a"])
    other.close()
    with pytest.raises(fs.ExecutionError, match="has been left"):
        other.check(["a"])


def test_it_listens_at_the_address_that_was_given_and_at_no_other(meeting: Meeting) -> None:
    assert meeting.address is not None
    socket.create_connection(("127.0.0.1", meeting.address.port), timeout=5).close()
    with pytest.raises(OSError):  # another address of the same machine
        socket.create_connection(("127.0.0.2", meeting.address.port), timeout=5).close()


def test_who_has_left_is_reached_by_nobody() -> None:
    for _ in range(20):
        one = listen(Address("127.0.0.1", 0), 5)
        assert one.address is not None
        one.close()
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", one.address.port), timeout=5).close()


def test_a_port_in_use_and_an_address_of_another_machine(meeting: Meeting) -> None:
    assert meeting.address is not None
    with pytest.raises(fs.ExecutionError, match=rf"cannot listen at 127.0.0.1:{meeting.address.port}: the port is in use"):
        listen(meeting.address, 5)
    with pytest.raises(fs.ExecutionError, match=r"cannot listen at 192.0.2.1:0: it is no address of this machine"):
        listen(Address("192.0.2.1", 0), 5)
    with pytest.raises(fs.ExecutionError, match="there is no such host"):
        listen(Address("nowhere.invalid", 0), 5)


def test_nobody_there(meeting: Meeting) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        with pytest.raises(fs.ExecutionError, match=r"127.0.0.1:\d+ cannot be reached within 0.5 s: .*refused"):
            connect(Address("127.0.0.1", free.getsockname()[1]), 0.5)
    with pytest.raises(fs.ExecutionError, match="there is no such host"):
        connect(Address("nowhere.invalid", 1), 5)
    with pytest.raises(fs.ExecutionError, match="port 0"):
        connect(HERE, 5)


def test_who_listens_and_says_nothing_is_waited_for_no_longer_than_was_said() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(5)
        with pytest.raises(fs.ExecutionError, match=r"127.0.0.1:\d+: no store of torch's that answers, for 1 s"):
            connect(Address("127.0.0.1", silent.getsockname()[1]), 1)


def test_a_store_that_stops_answering_is_left() -> None:
    asked, go_on = [0], threading.Event()

    class Stuck:
        def check(self, keys: list[str]) -> bool:
            asked[0] += 1
            return not go_on.wait(60)

    meeting = Meeting("somewhere", 0.3, Stuck)
    with pytest.raises(fs.ExecutionError, match=r"somewhere: no answer any more, for 0.3 s"):
        meeting.check(["a"])
    assert asked == [1]
    go_on.set()
    with pytest.raises(fs.ExecutionError, match="no answer any more"):  # and not what was asked before
        meeting.check(["a"])
    assert asked == [1]  # nobody was asked again


def test_a_store_that_is_gone_is_said_to_be() -> None:
    made = listen(HERE, 10)
    assert made.address is not None
    other = connect(made.address, 10)
    made.close()
    with pytest.raises(fs.ExecutionError, match=r"127.0.0.1:\d+: the other side is gone"):
        until = time.monotonic() + 10
        while time.monotonic() < until:
            other.check(["a"])


def test_signs_of_life(meeting: Meeting) -> None:
    watch = HeartbeatMonitor(meeting, "lives")
    with SignsOfLife(meeting, "lives", every=0.05):
        time.sleep(0.3)
        assert watch.silent < 0.2
        time.sleep(0.3)
        assert watch.silent < 0.2
    assert watch.silent >= 0.0
    time.sleep(0.3)
    assert watch.silent >= 0.3
