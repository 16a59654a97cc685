"""Requests to a server of networks, and a network that is told from its other versions by its results."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Generator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import foreshape as fs
from foreshape import layer


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(address: str, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
    """One request on a connection of its own."""
    connection = HTTPConnection(address, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def infer(address: str, model: str, inputs: list[dict[str, Any]], **more: Any) -> Answer:
    return ask(address, "POST", f"/v2/models/{model}/infer", json.dumps({"inputs": inputs, **more}).encode())


def tensor(name: str, array: Any, datatype: str = "FP32", **parameters: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"name": name, "shape": [*array.shape], "datatype": datatype, "data": array.ravel().tolist(), "parameters": parameters}


def save_scale(path: Path, by: float, width: int = 4) -> None:
    """A network of one product, of which the results tell the version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", ["batch", width])
        fs.save_inference_model(path, [x], {"y": layer.scale(x, by)})


@contextlib.contextmanager
def started(*options: str) -> Generator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    process = subprocess.Popen([sys.executable, "-m", "foreshape", "serve", *options, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line.startswith("http://127.0.0.1:"), process.communicate()
        yield process, line.removeprefix("http://").split(": ")[0]
    finally:
        process.kill()
        process.wait()
