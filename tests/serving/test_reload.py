"""Versions come, change and go with their files, and no request is lost."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import threading
import weakref
from collections import Counter
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from support.asked import ask, infer, save_scale, started, tensor
from support.waiting import until

pytest.importorskip("fastapi", reason="the extra serve")
import foreshape as fs
from foreshape.apps.serving.server import BackgroundServer, make_service


def value(address: str, model: str = "m", version: str | None = None) -> Any:
    name = model if version is None else f"{model}/versions/{version}"
    found = infer(address, name, [tensor("x", [[1.0, 1.0, 1.0, 1.0]])])
    return found.json["outputs"][0]["data"][0] if found.status == 200 else (found.status, found.json["error"])


def refreshed(server: BackgroundServer) -> None:
    """What two looks at the files do."""
    for _ in range(2):
        asyncio.run(server.service.repository.refresh())


def test_versions_of_a_folder(tmp_path: Path) -> None:
    save_scale(tmp_path / "m" / "1" / "net", 1.0)
    save_scale(tmp_path / "m" / "3" / "net", 3.0)
    save_scale(tmp_path / "other", 7.0)
    with BackgroundServer([str(tmp_path)], watch=False) as server:
        at = server.address
        assert (value(at), value(at, version="1"), value(at, "other")) == (3.0, 1.0, 7.0)
        assert value(at, version="2")[0] == 404
        save_scale(tmp_path / "m" / "10" / "net", 10.0)
        save_scale(tmp_path / "new", 8.0)
        shutil.rmtree(tmp_path / "m" / "3")
        refreshed(server)
        assert (value(at), value(at, version="1"), value(at, "new")) == (10.0, 1.0, 8.0) and value(at, version="3")[0] == 404
        (tmp_path / "m" / "10" / "net.pdmodel").write_bytes(b"broken")
        (tmp_path / "m" / "11").mkdir()
        (tmp_path / "m" / "11" / "net.pdmodel").write_bytes(b"broken")
        refreshed(server)
        assert value(at) == 10.0
        index = {(one["name"], one["version"]): one for one in server.service.repository.index()}
        assert index["m", "10"]["state"] == "READY" and "could not be opened" in index["m", "10"]["reason"]
        assert index["m", "11"]["state"] == "UNAVAILABLE"
        save_scale(tmp_path / "m" / "10" / "net", 20.0)
        refreshed(server)
        assert value(at) == 20.0 and index.keys() >= {("m", "1")}
        assert [one["reason"] for one in server.service.repository.index() if one["version"] == "10"] == [""]
        shutil.rmtree(tmp_path / "m")
        refreshed(server)
        assert value(at)[0] == 404


@pytest.mark.long
def test_a_model_of_the_beginning_is_freed_when_another_takes_its_place(tmp_path: Path) -> None:
    save_scale(tmp_path / "m", 1.0)
    with BackgroundServer([str(tmp_path / "m.pdmodel")], watch=False) as server:
        gc.freeze()  # as a server does when it begins
        try:
            programs = [weakref.ref(model._predictor.model.program) for _, _, model in server.service.repository.served()]
            save_scale(tmp_path / "m", 2.0)
            refreshed(server)
            assert value(server.address) == 2.0
            for _ in range(50):  # the thread of its queue ends by itself
                gc.collect()
                if programs[0]() is None:
                    break
                threading.Event().wait(0.1)
            assert programs[0]() is None
        finally:
            gc.unfreeze()


def test_no_request_is_lost_while_a_model_is_exchanged(tmp_path: Path) -> None:
    save_scale(tmp_path / "m", 1.0)
    with BackgroundServer([str(tmp_path / "m.pdmodel")], watch=False) as server:
        seen, done = list[Any](), threading.Event()

        def ask_on() -> None:
            while not done.is_set():
                seen.append(value(server.address))

        threads = [threading.Thread(target=ask_on) for _ in range(4)]
        for t in threads:
            t.start()
        for by in (2.0, 3.0, 4.0):
            save_scale(tmp_path / "n", by)
            for ending in (".pdiparams", ".pdmodel"):
                os.replace(tmp_path / f"n{ending}", tmp_path / f"m{ending}")
            refreshed(server)
        last = value(server.address)
        done.set()
        for t in threads:
            t.join(60)
        assert last == 4.0 and set(seen) <= {1.0, 2.0, 3.0, 4.0} and len(seen) > 4


@pytest.mark.long
def test_thirty_versions_under_load_lose_no_request_and_keep_no_memory(tmp_path: Path) -> None:
    """Each answer is of one version, also while broken files are refused; memory, threads and open files do not grow with the versions."""
    save_scale(tmp_path / "m", 1.0)
    body = json.dumps({"inputs": [tensor("x", [[1.0, 2.0, 3.0, 4.0]])]}).encode()
    seen, done = Counter[Any](), threading.Event()

    def ask_on(address: str) -> None:
        connection = HTTPConnection(address, timeout=120)
        while not done.is_set():
            connection.request("POST", "/v2/models/m/infer", body)
            response = connection.getresponse()
            found = json.loads(response.read())
            seen[tuple(found["outputs"][0]["data"]) if response.status == 200 else (response.status, found["error"])] += 1

    def takes(process: int) -> tuple[int, int, int]:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 20, len(os.listdir(f"/proc/{process}/task")), len(os.listdir(f"/proc/{process}/fd"))

    with started(str(tmp_path / "m.pdmodel"), "--quiet") as (process, address):
        threads = [threading.Thread(target=ask_on, args=(address,)) for _ in range(8)]
        for t in threads:
            t.start()
        usual = (0, 0, 0)
        for by in range(2, 32):
            if by % 5 == 0:
                (tmp_path / "m.pdmodel").write_bytes(b"broken")
                until(lambda by=by: "trouble" in index_of(address))
            else:
                save_scale(tmp_path / "n", by)
                for ending in (".pdiparams", ".pdmodel"):
                    os.replace(tmp_path / f"n{ending}", tmp_path / f"m{ending}")
                until(lambda by=by: seen[by, 2 * by, 3 * by, 4 * by] > 0)
            if by == 10:
                usual = takes(process.pid)
        done.set()
        for t in threads:
            t.join(120)
        memory, *others = takes(process.pid)
        assert {(by, 2 * by, 3 * by, 4 * by) for by in range(1, 32) if by % 5} == seen.keys()
        assert memory < usual[0] + 16 and all(now <= before + 8 for now, before in zip(others, usual[1:], strict=True)), (usual, memory, others)


def index_of(address: str) -> str:
    return ask(address, "POST", "/v2/repository/index").body.decode()


def test_a_request_whose_model_is_closed_before_its_queue_has_it_goes_to_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_scale(tmp_path / "m", 1.0)
    with BackgroundServer([str(tmp_path / "m.pdmodel")], watch=False) as server:
        model: Any = server.service.repository.find("m")[0]
        submit = model.submit

        def late(*of: Any) -> Any:
            save_scale(tmp_path / "m", 2.0)
            thread = threading.Thread(target=refreshed, args=(server,))
            thread.start()
            thread.join()
            return submit(*of)

        monkeypatch.setattr(model, "submit", late)
        assert value(server.address) == 2.0
        server.service.repository.close()
        assert value(server.address) == (503, "the model is closed")


def test_what_cannot_be_opened_at_the_start_is_said(tmp_path: Path) -> None:
    with pytest.raises(fs.FormatError, match="there is no model in"):
        make_service([str(tmp_path)])
    (tmp_path / "m.pdmodel").write_bytes(b"broken")
    with pytest.raises(fs.FormatError, match=r"m\.pdmodel"):
        make_service([str(tmp_path / "m.pdmodel")])
    save_scale(tmp_path / "n", 1.0)
    assert make_service([str(tmp_path)]).repository.names() == ["n"]
    with pytest.raises(fs.FormatError, match="two models are called n"):
        make_service([str(tmp_path / "n.pdmodel"), f"n={tmp_path / 'n'}"])
    assert make_service([f"a={tmp_path / 'n'}", str(tmp_path / "n.pdmodel")]).repository.names() == ["a", "n"]
