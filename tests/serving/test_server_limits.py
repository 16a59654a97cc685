"""Clients that are slow, many or greedy get an error, and the others their answers; a stop loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asked import Answer, ask, infer, save_scale, started, tensor
from support.waiting import until

pytest.importorskip("fastapi", reason="the extra serve")
import foreshape as fs
from foreshape.apps.serving.server import BackgroundServer, bound
from foreshape.apps.serving.server_limits import ServerLimits

X = [tensor("x", [[1.0, 2.0, 3.0, 4.0]])]
ANSWER = [2.0, 4.0, 6.0, 8.0]


@pytest.fixture(scope="module")
def scale(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scale") / "m"
    save_scale(path, 2.0)
    return str(path)


def hold(server: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, Callable[[], None]]:
    """Let the model's runs wait; the event says that one does, and the function lets them go."""
    began, go = threading.Event(), threading.Event()
    model: Any = server.service.repository.find("m")[0]
    run = model._queue._model.run

    class Waits:
        def run(self, feed: Any) -> Any:
            began.set()
            assert go.wait(60)
            return run(feed)

    monkeypatch.setattr(model._queue, "_model", Waits())
    monkeypatch.setattr(model._queue, "_is_short", lambda: False)
    return began, go.set


def data_of(found: Answer) -> Any:
    return found.json["outputs"][0]["data"] if found.status == 200 else found


def test_too_large_a_request_is_refused(scale: str) -> None:
    import gzip

    with BackgroundServer([scale], ServerLimits(body=10_000, json=1000)) as server:
        body = json.dumps({"inputs": X}).encode()
        for sent, headers, words in (
            (bytes(10_001), {}, "may have 10,000 bytes"),
            (iter([bytes(6000), bytes(6000)]), {}, "may have 10,000 bytes"),
            (b" " * 1001 + body, {}, "the JSON of a request may have 1,000 bytes"),
            (gzip.compress(bytes(10_001)), {"Content-Encoding": "gzip"}, "when it is unpacked"),
        ):
            found = ask(server.address, "POST", "/v2/models/m/infer", sent, headers)  # type: ignore[arg-type]
            assert found.status == 413 and words in found.json["error"]
        assert data_of(infer(server.address, "m", X)) == ANSWER and server.service.pending == 0


def test_a_full_queue_and_full_memory_send_away(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BackgroundServer([scale], ServerLimits(queue=2, pending=800)) as server, ThreadPoolExecutor(8) as pool:
        began, go = hold(server, monkeypatch)
        first = pool.submit(infer, server.address, "m", X)
        model = server.service.repository.find("m")[0]
        assert began.wait(60)
        others = [pool.submit(infer, server.address, "m", X) for _ in range(2)]
        until(lambda: model.waiting() == 2)
        found = infer(server.address, "m", X)
        assert found.status == 503 and found.headers["retry-after"] == "1" and "2 requests wait" in found.json["error"]
        found = infer(server.address, "m", X, parameters={"fill": "x" * 600})
        assert found.status == 503 and found.headers["retry-after"] and "fill the server's memory" in found.json["error"]
        go()
        assert [data_of(f.result(60)) for f in (first, *others)] == [ANSWER] * 3


def test_too_late_an_answer_is_504_and_the_next_one_comes(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BackgroundServer([scale], ServerLimits(seconds=0.5)) as server:
        _, go = hold(server, monkeypatch)
        assert infer(server.address, "m", X).status == 504
        found = infer(server.address, "m", X, parameters={"timeout": 1000})
        assert found.status == 504 and found.headers["retry-after"] == "1"
        go()
        until(lambda: infer(server.address, "m", X).status == 200)
        assert server.service.running == 0


def test_memory_bounds_batches_and_requests(models: Path) -> None:
    with BackgroundServer([f"m={models / 'images'}"], ServerLimits(memory=200_000)) as server:
        good = infer(server.address, "m", [tensor("image", np.zeros((1, 3, 16, 16)))])
        assert good.status == 200
        found = infer(server.address, "m", [tensor("image", np.zeros((16, 3, 64, 64)))])
        assert found.status == 413 and "this model may use 195 KiB" in found.json["error"]
        assert infer(server.address, "m", [tensor("image", np.zeros((1, 3, 16, 16)))]).status == 200


def test_slow_clients_are_closed(scale: str) -> None:
    with BackgroundServer([scale], ServerLimits(header_seconds=0.3, seconds=0.6)) as server:
        host, port = server.address.split(":")
        silent, headed, slow = (socket.create_connection((host, int(port)), 60) for _ in range(3))
        headed.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHos")
        slow.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: m\r\nContent-Length: 100\r\n\r\n{")
        assert b"408" in slow.recv(1000)
        for closed in (silent, headed):
            with contextlib.suppress(ConnectionResetError):
                assert closed.recv(1000) == b""
        assert data_of(infer(server.address, "m", X)) == ANSWER
        for one in (silent, headed, slow):
            one.close()


def test_a_client_that_goes_away_costs_nothing(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BackgroundServer([scale]) as server:
        host, port = server.address.split(":")
        body = json.dumps({"inputs": X}).encode()
        for cut in (20, len(body)):
            one = socket.create_connection((host, int(port)), 60)
            one.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: m\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:cut])
            one.close()
        until(lambda: server.service.running == 0 and server.service.pending == 0)
        assert data_of(infer(server.address, "m", X)) == ANSWER


def test_more_connections_than_allowed_are_sent_away(scale: str) -> None:
    with BackgroundServer([scale], ServerLimits(connections=4, header_seconds=0.3)) as server:
        host, port = server.address.split(":")
        held = [socket.create_connection((host, int(port)), 60) for _ in range(5)]
        until(lambda: len(server.server.server_state.connections) >= 5)
        assert infer(server.address, "m", X).status == 503
        until(lambda: not server.server.server_state.connections)
        assert data_of(infer(server.address, "m", X)) == ANSWER
        for one in held:
            one.close()


def test_a_stop_finishes_what_is_there_and_refuses_the_rest(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BackgroundServer([scale]) as server, ThreadPoolExecutor(2) as pool:
        began, go = hold(server, monkeypatch)
        first = pool.submit(infer, server.address, "m", X)
        assert began.wait(60)
        server.server.stop()
        found = infer(server.address, "m", X)
        assert found.status == 503 and found.headers["retry-after"] and "stops" in found.json["error"]
        assert ask(server.address, "GET", "/v2/health/ready").status == 503 and ask(server.address, "GET", "/v2/health/live").status == 200
        go()
        assert data_of(first.result(60)) == ANSWER
    with pytest.raises(ConnectionError):
        infer(f"127.0.0.1:{server.server.config.port or 1}", "m", X)


def test_the_command_serves_until_it_is_told_to_stop(scale: str) -> None:
    with started(scale) as (process, address):
        assert data_of(infer(address, "m", X)) == ANSWER
        with pytest.raises(fs.ExecutionError, match=r"cannot listen on 127.0.0.1:[0-9]+: Address already in use"):
            bound("127.0.0.1", int(address.split(":")[1]))
        for _ in range(2):  # as a supervisor does, to the process and to its group
            process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0 and "POST /v2/models/m/infer 200" in told and "Traceback" not in told


@pytest.mark.long
def test_a_killed_server_has_lost_no_answer(scale: str) -> None:
    """Each request has its whole answer, or an error."""
    with started(scale, "--quiet") as (process, address):
        found, done = list[Any](), threading.Event()

        def ask_on() -> None:
            while not done.is_set():
                try:
                    found.append(data_of(infer(address, "m", X)))
                except Exception as error:
                    found.append(type(error))
                    return

        threads = [threading.Thread(target=ask_on) for _ in range(8)]
        for t in threads:
            t.start()
        until(lambda: len(found) > 200)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        for t in threads:
            t.join(60)
        done.set()
        assert sum(isinstance(one, type) for one in found) == 8 and all(one == ANSWER for one in found if not isinstance(one, type))


@pytest.mark.long
def test_ten_thousand_connections(scale: str) -> None:
    """Of many connections at once those within the limit are served, those beyond it are told so, and the server lives on."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(10_000, (hard if hard != resource.RLIM_INFINITY else 20_000) - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 200), hard))
    with started(scale, "--quiet") as (process, address):
        held = list[socket.socket]()
        try:
            host, port = address.split(":")
            for _ in range(count):
                held.append(socket.create_connection((host, int(port)), 60))
            found = [infer(address, "m", X).status for _ in range(3)]
            assert set(found) <= {200, 503}
            until(lambda: data_of(infer(address, "m", X)) == ANSWER)  # the silent ones are closed
        finally:
            for one in held:
                one.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert data_of(infer(address, "m", X)) == ANSWER
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.long
def test_requests_of_all_kinds_at_once_are_answered_or_refused(served: BackgroundServer) -> None:
    """Good requests of many threads get their answers beside broken ones, stopped ones and large ones."""
    draw, wrong = np.random.default_rng(0), list[Any]()
    want: dict[int, Any] = {}
    texts = [draw.integers(0, 50, n) for n in range(1, 40)]
    for at, text in enumerate(texts):
        want[at] = infer(served.address, "texts", [tensor("words", text, "INT64")], outputs=[{"name": "text"}]).json["outputs"][0]["data"]

    def good(seed: int) -> None:
        own = np.random.default_rng(seed)
        connection = HTTPConnection(served.address, timeout=60)
        for _ in range(150):
            at = int(own.integers(len(texts)))
            body = json.dumps({"inputs": [tensor("words", texts[at], "INT64")], "outputs": [{"name": "text"}]})
            connection.request("POST", "/v2/models/texts/infer", body)
            response = connection.getresponse()
            found = json.loads(response.read())
            if response.status != 200 or not np.allclose(found["outputs"][0]["data"], want[at], rtol=1e-4, atol=1e-5):
                wrong.append((response.status, found))

    def bad(seed: int) -> None:
        own = np.random.default_rng(seed)
        for _ in range(150):
            body = bytes(own.integers(0, 256, int(own.integers(1, 400)), dtype="uint8"))
            headers = {"Inference-Header-Content-Length": str(own.integers(0, 500))} if own.random() < 0.5 else {}
            found = ask(served.address, "POST", "/v2/models/texts/infer", body, headers)
            if found.status != 400:
                wrong.append(found)

    threads = [threading.Thread(target=f, args=(seed,)) for seed in range(8) for f in (good, bad)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(300)
    assert wrong == []
