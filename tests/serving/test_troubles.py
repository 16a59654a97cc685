"""Words for clients have nothing of the server's files; figures are by known models alone."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.asked import ask, infer, save_scale, tensor

pytest.importorskip("fastapi", reason="the extra serve")
import foreshape as fs
from foreshape import layer
from foreshape.apps.serving.server import BackgroundServer
from foreshape.apps.serving.trouble import client_words

NUMBER = re.compile(r"at trouble ([0-9a-f]{8})")
ONES = [tensor("x", np.ones((1, 4)))]


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """The server's log."""
    logger, handler = logging.getLogger("foreshape.serving"), logging.StreamHandler(out := io.StringIO())
    logger.addHandler(handler)
    yield out
    logger.removeHandler(handler)


def answers(address: str, model: str) -> dict[str, str]:
    asked = [
        ("POST", "/v2/repository/index"),
        *(("GET", p) for p in ("/", f"/v2/models/{model}", f"/v2/models/{model}/ready", f"/models/{model}/1", "/metrics")),
    ]
    asked += [("POST", f"/v2/models/{model}/{way}") for way in ("infer", "generate", "generate_stream", "versions/1/infer")]
    return {path: ask(address, method, path, b"{}" if method == "POST" else None).body.decode() for method, path in asked}


def test_the_words_of_a_broken_model_are_in_the_log_alone(tmp_path: Path, logged: io.StringIO) -> None:
    for name in ("a", "b"):
        with fs.program_guard(fs.Program(), fs.Program()):
            x, scope = layer.data("x", ["batch", 4]), fs.Scope()
            y = layer.fc(x, 3)
            fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
            fs.save_inference_model(tmp_path / "models" / name, [x], {"y": y}, scope=scope)
    (tmp_path / "secret").write_text("hunter2:top-secret-password\n")
    (tmp_path / "models" / "b.pdiparams").unlink()
    (tmp_path / "models" / "b.pdiparams").symlink_to(tmp_path / "secret")
    with BackgroundServer([str(tmp_path / "models")], watch=False) as server:
        for path, text in answers(server.address, "b").items():
            assert "hunter2" not in text and str(tmp_path) not in text, path
        found = infer(server.address, "b", ONES)
        number = NUMBER.search(found.json["error"])
        assert found.status == 503 and number is not None and f"trouble {number[1]}: b version 1 could not be opened" in logged.getvalue()
        assert f"trouble {number[1]}" in ask(server.address, "POST", "/v2/repository/index").body.decode()


@pytest.mark.quick_cases("/metrics", "/v2/models/m/infer")
@pytest.mark.parametrize("route", ["/v2/models/m/infer", "/v2/models/m", "/metrics", "/models/m/1"])
def test_a_mistake_of_the_server_is_a_number_for_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO, route: str) -> None:
    save_scale(tmp_path / "m", 1.0)
    with BackgroundServer([str(tmp_path / "m")], watch=False) as server:

        def fails(*of: Any) -> Any:
            raise RuntimeError(f"{tmp_path}/m has 'hunter2'")

        model = server.service.repository.find("m")[0]
        for name in ("feed", "facts", "waiting", "page"):
            monkeypatch.setattr(model, name, fails)
        found = ask(server.address, "POST" if "infer" in route else "GET", route, b'{"inputs": []}' if "infer" in route else None)
        assert found.status == 500 and found.json.keys() == {"error", "trouble"} and found.json["error"] == "the server failed: RuntimeError"
        assert f"trouble {found.json['trouble']}: " in logged.getvalue() and "hunter2" in logged.getvalue()


def test_words_for_clients_have_no_folders_and_no_lines_of_files() -> None:
    error = "mul: 3 is not 4\n    at x = secret(1)    net.py:3\ncannot open '/somewhere/models/m.bin': see /etc/x and a/b, http://host/a/b"
    assert client_words(error) == "mul: 3 is not 4\ncannot open 'm.bin': see x and a/b, http://host/a/b"


def test_figures_are_by_model_and_clients_choose_none(tmp_path: Path) -> None:
    for version in ("1", "2"):
        save_scale(tmp_path / "m" / version / "net", 1.0)
    save_scale(tmp_path / "n", 1.0)
    with BackgroundServer([str(tmp_path)], watch=False) as server:
        for name in ("m", "m/versions/1", "n", "nothing", "m/versions/7", "m/versions/x", *(f"made-up-{at}" for at in range(50))):
            infer(server.address, name, ONES)
            ask(server.address, "GET", f"/v2/models/{name}")
        infer(server.address, "m", [])
        figures = ask(server.address, "GET", "/metrics").body.decode()
        for line in (
            'foreshape_model_requests_total{model="m",status="200",version="2"} 2.0',
            'foreshape_model_requests_total{model="m",status="400",version="2"} 1.0',
            'foreshape_model_requests_total{model="m",status="200",version="1"} 2.0',
            'foreshape_model_request_seconds_count{model="m",version="2"} 3.0',
            'foreshape_requests_total{route="/v2/models/{model}/infer",status="404"} 53.0',
        ):
            assert line in figures
        assert "made-up" not in figures and "nothing" not in figures and 'version="7"' not in figures and 'version="x"' not in figures
        shutil.rmtree(tmp_path / "m" / "2")
        for _ in range(2):
            asyncio.run(server.service.repository.refresh())
        figures = ask(server.address, "GET", "/metrics").body.decode()
        assert 'model="m",version="2"' not in figures and 'model="m",status="200",version="2"' not in figures and 'model="m",version="1"' in figures


def test_the_page_of_a_model_has_its_name_as_title(tmp_path: Path) -> None:
    save_scale(tmp_path / "a<b&c", 1.0)
    with BackgroundServer([str(tmp_path / "a<b&c")], watch=False) as server:
        page = ask(server.address, "GET", "/").body.decode()
        assert "<title>a&lt;b&amp;c, version 1</title>" in page
