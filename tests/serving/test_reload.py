"""Versions come, change and go with their files, and no request is lost."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
from support.asked import infer, save_scale, tensor

pytest.importorskip("fastapi", reason="the extra serve")
import foreshape as fs
from foreshape.serving.server import BackgroundServer, make_service


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
