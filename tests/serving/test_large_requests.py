"""Large requests and answers keep no other client waiting, and take memory within limits."""

from __future__ import annotations

import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asked import ask, infer, save_scale, tensor

pytest.importorskip("fastapi", reason="the extra serve")
from foreshape.apps.serving import infer_route, service
from foreshape.apps.serving.server import BackgroundServer
from foreshape.apps.serving.server_limits import ServerLimits
from foreshape.interop.batch_queue import BatchSize, BatchTimes

LARGE = np.random.default_rng(0).standard_normal((5000, 4)).astype("float32")


@pytest.fixture
def scale(tmp_path: Path) -> str:
    save_scale(tmp_path / "m", 2.0)
    return str(tmp_path / "m")


@pytest.mark.quick_cases("foreshape.apps.serving.infer_route-_feed_of")
@pytest.mark.parametrize(("module", "name"), [(infer_route, "_feed_of"), (infer_route, "write_response"), (service, "_unpacked")])
def test_others_are_answered_while_a_large_request_is_read_or_its_answer_written(scale: str, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
    began, go, was_let = threading.Event(), threading.Event(), list[bool]()
    work = getattr(module, name)

    def waits(*args: Any) -> Any:
        if not began.is_set():
            began.set()
            was_let.append(go.wait(20))
        return work(*args)

    with BackgroundServer([scale]) as server, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(module, name, waits)
        body = gzip.compress(json.dumps({"inputs": [tensor("x", LARGE)]}).encode())
        large = pool.submit(ask, server.address, "POST", "/v2/models/m/infer", body, {"Content-Encoding": "gzip"})
        assert began.wait(20)
        assert ask(server.address, "GET", "/v2/health/live").status == 200
        assert infer(server.address, "m", [tensor("x", np.ones((1, 4)))]).json["outputs"][0]["data"] == [2.0] * 4
        go.set()
        found = large.result(60)
    assert was_let == [True] and np.array_equal(np.array(found.json["outputs"][0]["data"], "float32"), LARGE.ravel() * 2)


def test_a_large_answer_counts_as_pending_until_it_is_sent(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with BackgroundServer([scale]) as server:
        held = list[int]()
        send = infer_route.start

        async def watched(*args: Any) -> None:
            held.append(server.service.pending)
            await send(*args)

        monkeypatch.setattr(infer_route, "start", watched)
        found = infer(server.address, "m", [tensor("x", LARGE)])
        assert held[0] > len(found.body) and server.service.pending == 0


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(
    ("fields", "words"),
    {
        "objects": ('"inputs": [' + "{}, " * 60_000 + "{}]", "50000 objects and keys"),
        "keys": (", ".join(f'"k{at}": 0' for at in range(60_000)), "50000 objects and keys"),
        "deep": ('"k": ' + "[" * 200_000, "nested too deeply"),
        "lists as data": ('"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [' + "[], " * 60_000 + "[]]}]", "there are 60001"),
        "many inputs": ('"inputs": [' + ", ".join(f'{{"name": "x{at}"}}' for at in range(40_000)) + "]", "no input 'x0'"),
        "a long shape": ('"inputs": [{"name": "x", "datatype": "FP32", "shape": [' + "1, " * 60_000 + "1]}]", "the shape of x may have 4096 bytes"),
        "a long name": ('"inputs": [{"name": "' + "x" * 60_000 + '"}]', "may have 4096 bytes"),
        "a long id": ('"id": "' + "x" * 60_000 + '"', "id may have 4096 bytes"),
        "many lengths": (
            '"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 1, 1, 1], "parameters": {"lengths": [' + "0," * 1_000_001 + "1]}}]",
            "may have 1000000 numbers",
        ),
        "a long number": ('"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1' + "0" * 60_000 + "]}]", "past the range of FP32"),
    }.values(),
)
def test_large_json_is_bounded_before_it_is_read(scale: str, fields: str, words: str) -> None:
    """Python's objects take up to fifty times the bytes of the JSON."""
    with BackgroundServer([scale], watch=False) as server:
        found = ask(server.address, "POST", "/v2/models/m/infer", f"{{{fields}}}".encode())
        assert found.status == 400 and words in found.json["error"], found


def test_results_too_large_as_json_are_refused_with_a_remedy(scale: str) -> None:
    with BackgroundServer([scale], ServerLimits(pending=400_000)) as server:
        binary = {"name": "x", "shape": [20_000, 4], "datatype": "FP32", "parameters": {"binary_data_size": 320_000}}
        for parameters, status in (({}, 413), ({"binary_data_output": True}, 200)):
            head = json.dumps({"inputs": [binary], "parameters": parameters}).encode()
            sent = head + np.full((20_000, 4), 0.1, "float32").tobytes()
            found = ask(server.address, "POST", "/v2/models/m/infer", sent, {"Inference-Header-Content-Length": str(len(head))})
            assert found.status == status and (status == 200 or "as JSON; ask for them with" in found.json["error"])


def test_a_large_run_has_a_thread_of_its_own_whatever_the_small_ones_took(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its examples are as many, but its images are larger."""
    with BackgroundServer([f"m={models / 'images'}"]) as server:
        queue: Any = server.service.repository.find("m")[0]._queue
        monkeypatch.setattr(queue, "_times", times := BatchTimes())
        times.took(BatchSize(1, (8, 8)), 1e-6)
        threads, run = list[tuple[int, str]](), queue._model.run

        class Watched:
            def run(self, feed: Any) -> Any:
                threads.append((feed["image"].shape[-1], threading.current_thread().name))
                return run(feed)

        monkeypatch.setattr(queue, "_model", Watched())
        for size in (8, 1024):
            assert infer(server.address, "m", [tensor("image", np.zeros((1, 3, 8, size)))]).status == 200
        assert threads == [(8, "foreshape-server"), (1024, "foreshape-batch-queue")]


def test_a_time_is_expected_by_all_dims() -> None:
    times = BatchTimes()
    assert times.expected(BatchSize(1, (4,))) == float("inf")
    times.took(BatchSize(1, (4,)), 0.001)
    assert times.expected(BatchSize(1, (5,))) == 0.001 and times.expected(BatchSize(1, (2,))) == float("inf")
    assert times.expected(BatchSize(4, (4,))) == 0.004 and times.expected(BatchSize(1, (16,))) == 0.016
    assert BatchSize.together([BatchSize(2, (3, 9)), BatchSize(1, (8, 2))]) == BatchSize(3, (8, 9))
    together = BatchTimes(is_linear=False)
    together.took(BatchSize(1), 0.001)
    assert together.expected(BatchSize(4)) == 0.016
    for at in range(2000):
        times.took(BatchSize(1 << (at % 50), (1 << (at // 50),)), 1.0)
    assert len(times._seconds) == 256
