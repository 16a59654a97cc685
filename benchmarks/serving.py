"""The load that `foreshape serve` carries, beside onnxruntime behind the same application: requests a second and the 99th percentile of their times.

    python benchmarks/serving.py [--clients 1,16,64] [--seconds 6] [--rounds 3] [--threads N] [--ragged auto] [--peers plain] [MODEL.onnx ...]

Each server runs in a process of its own, with the networks of one engine; clients are coroutines of one more process, each with a connection of its
own and one request under way. The engines take turns. ``ours`` is Foreshape's engine, ``onnxruntime`` the same server around it: its queue joins
dense requests in the same way; ragged ones are padded, as onnxruntime needs them. ``plain`` is the usual application: FastAPI, and an
InferenceSession called once for each request in the pool of threads. An encoder with an ``attention_mask`` is asked for single texts of 8 to 128 words.
``--ragged`` is the setting of `foreshape serve` for ours. Behind the lines stand the bytes of memory of each server, resident at the end and at most.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

ENGINES = ("ours", "onnxruntime", "plain")
WIDTH, HEADS = 128, 4


# --- networks


def save_networks(folder: Path) -> None:
    """Save each network in Foreshape's form and as ONNX; the encoder of texts ragged, and as padded rows with a mask."""
    import foreshape as fs
    from foreshape import layer

    def saved(name: str, inputs: list[Any], results: dict[str, Any]) -> None:
        fs.Executor(seed=1).run(fs.default_startup_program())
        fs.save_inference_model(folder / name, inputs, results)
        fs.save_onnx(folder / f"{name}.onnx", inputs, results)

    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", ["batch", 256])
        h = layer.fc(layer.fc(x, 1024, activation="relu"), 1024, activation="relu")
        saved("mlp", [x], {"scores": layer.softmax(layer.fc(h, 10))})
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("image", ["batch", 3, 32, 32])
        h = layer.conv2d(x, 32, 3, padding=1, activation="relu")
        for width in (64, 128):
            h = layer.conv2d(h, width, 3, stride=2, padding=1, activation="relu")
            h = layer.relu(layer.conv2d(h, width, 3, padding=1) + h)
        saved("conv", [x], {"scores": layer.softmax(layer.fc(layer.reduce_mean(h, [2, 3]), 10))})
    scope = fs.Scope()
    with fs.program_guard(fs.Program(), fs.Program()):
        words = layer.data("words", ["words"], dtype="int64", lod_level=1)
        h = blocks(layer.embedding(words, [5000, WIDTH]), 1, lambda q, k, v: layer.sequence_attention(q, k, v, heads=HEADS))
        result = layer.softmax(layer.fc(layer.sequence_pool(h, "mean"), 10))
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
        fs.save_inference_model(folder / "texts", [words], {"scores": result}, scope=scope)
    with fs.program_guard(fs.Program(), fs.Program()):
        words, mask = layer.data("words", ["batch", "time"], dtype="int64"), layer.data("mask", ["batch", "time"])
        away = layer.reshape((mask - 1.0) * 1e9, [0, 1, 1, -1])

        def attention(*given: Any) -> Any:
            q, k, v = (layer.transpose(layer.reshape(x, [0, 0, HEADS, WIDTH // HEADS]), [0, 2, 1, 3]) for x in given)
            weights = layer.softmax(layer.matmul(q, k, transpose_y=True) * (WIDTH // HEADS) ** -0.5 + away)
            return layer.reshape(layer.transpose(layer.matmul(weights, v), [0, 2, 1, 3]), [0, 0, WIDTH])

        h = blocks(layer.embedding(words, [5000, WIDTH]), 2, attention) * layer.unsqueeze(mask, [2])
        mean = layer.reduce_sum(h, 1) / layer.reduce_sum(mask, 1, keepdim=True)
        fs.save_onnx(folder / "texts.onnx", [words, mask], {"scores": layer.softmax(layer.fc(mean, 10))}, scope=scope)


def blocks(h: Any, flat: int, attention: Any) -> Any:
    """Two blocks of an encoder, post-norm; ``flat``: the dims before those of a row."""
    from foreshape import layer

    def fc(x: Any, size: int, activation: str | None = None) -> Any:
        return layer.fc(x, size, activation, flatten_last=1)

    for _ in range(2):
        seen = attention(*(fc(h, WIDTH) for _ in range(3)))
        h = layer.layer_norm(h + fc(seen, WIDTH), begin_norm_axis=flat)
        h = layer.layer_norm(h + fc(fc(h, 4 * WIDTH, "gelu"), WIDTH), begin_norm_axis=flat)
    return h


def bodies_of(name: str, folder: Path) -> list[tuple[bytes, int]]:
    """Requests for a network, each with the bytes of its JSON."""
    draw = np.random.default_rng(0)
    if name == "texts":
        arrays = [("words", "INT64", draw.integers(0, 5000, n)) for n in draw.integers(5, 200, 200)]
    elif name == "mlp":
        arrays = [("x", "FP32", draw.random((1, 256), "float32")) for _ in range(20)]
    elif name == "conv":
        arrays = [("image", "FP32", draw.random((1, 3, 32, 32), "float32")) for _ in range(20)]
    else:
        import onnxruntime

        given = onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"]).get_inputs()
        if any(entry.name == "attention_mask" for entry in given):
            return [bodied(encoder_feed(given, int(words), draw)) for words in draw.integers(8, 129, 200)]
        dims = [d if isinstance(d, int) else 1 if at == 0 else 224 for at, d in enumerate(given[0].shape)]
        arrays = [(given[0].name, "FP32", draw.random(dims, "float32")) for _ in range(20)]
    return [bodied([entry]) for entry in arrays]


def encoder_feed(inputs: list[Any], words: int, draw: Any) -> list[tuple[str, str, Any]]:
    """One text without padding: its mask of ones, its ids, and zeros for other inputs."""
    kinds = {"attention_mask": np.ones((1, words), "int64"), "input_ids": draw.integers(1000, 20000, (1, words))}
    return [(entry.name, "INT64", kinds.get(entry.name, np.zeros((1, words), "int64"))) for entry in inputs]


def bodied(arrays: list[tuple[str, str, Any]]) -> tuple[bytes, int]:
    """A request with arrays as bytes, and the bytes of its JSON."""
    inputs = [{"name": n, "shape": [*a.shape], "datatype": kind, "parameters": {"binary_data_size": a.nbytes}} for n, kind, a in arrays]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(a.tobytes() for _, _, a in arrays), len(head)


# --- servers


def padded(texts: list[Any]) -> dict[str, Any]:
    """Texts as padded rows and their mask."""
    lengths = np.array([len(t) for t in texts])
    mask = np.arange(lengths.max()) < lengths[:, None]
    words = np.zeros(mask.shape, "int64")
    words[mask] = np.concatenate(texts)
    return {"words": words, "mask": mask.astype("float32")}


def session_of(path: Path, threads: int | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def padded_texts(folder: Path, threads: int | None) -> Any:
    """The encoder of texts in onnxruntime, which takes ragged feeds and pads them."""
    import foreshape as fs
    from foreshape.interop.model import Results

    class Padded(fs.Predictor):
        def __init__(self) -> None:
            super().__init__(folder / "texts")
            self._padded = session_of(folder / "texts.onnx", threads)

        @property
        def runs(self) -> Any:
            return self

        def run(self, feed: Any) -> Any:  # type: ignore[override]
            return Results({"scores": self._padded.run(["scores"], padded(feed["words"].to_list()))[0]}, {})

        def batch_layout(self) -> Any:
            out = super().batch_layout()
            out.rounds = False
            return out

    return Padded()


def plain_app(folder: Path, threads: int | None) -> Any:
    """The application that a user would write around onnxruntime."""
    from fastapi import FastAPI, Request, Response
    from starlette.concurrency import run_in_threadpool

    from foreshape.apps.serving.protocol import HEADER_LENGTH, NamedTensor, read_request, write_response
    from foreshape.apps.serving.server_limits import ServerLimits

    limits, sessions = ServerLimits(), {p.stem: session_of(p, threads) for p in folder.glob("*.onnx")}
    app = FastAPI()

    @app.get("/v2/health/ready")
    async def ready() -> Any:
        return Response()

    async def infer(request: Any, model: str) -> Any:
        asked = read_request(await request.body(), request.headers.get(HEADER_LENGTH), limits)
        session, feed = sessions[model], {n: t.array for n, t in asked.inputs.items()}
        if model == "texts":
            feed = padded([feed["words"]])
        found = await run_in_threadpool(session.run, None, feed)
        results = [NamedTensor(o.name, "FP32", a) for o, a in zip(session.get_outputs(), found, strict=True) if a.dtype == np.float32]
        response = write_response(model, "1", asked, results)
        return Response(b"".join(response.pieces), headers={HEADER_LENGTH: str(response.header_length)}, media_type="application/octet-stream")

    infer.__annotations__ = {"request": Request, "model": str}
    app.post("/v2/models/{model}/infer", response_model=None)(infer)
    return app


def serve(engine: str, folder: Path, port: int, options: Any) -> None:
    """Serve the networks of a folder by one engine, until the end."""
    threads, batch = options.threads, options.batch
    if engine == "plain":
        import uvicorn

        uvicorn.run(plain_app(folder, threads), port=port, log_level="warning", access_log=False)
        return
    from foreshape.apps.serving.served_network import Networks, ServedNetwork
    from foreshape.apps.serving.server import bound, make_service
    from foreshape.apps.serving.server import serve as serve_models
    from foreshape.apps.serving.server_limits import ServerLimits

    class OnnxNetworks(Networks):
        def opened(self, path: str, opening: Any) -> Any:
            if Path(path).stem == "texts":
                return ServedNetwork(padded_texts(folder, threads), opening)
            return super().opened(path, opening)

    kind = Networks(threads, ragged=options.ragged) if engine == "ours" else OnnxNetworks(threads, "onnxruntime")
    networks = [p for p in folder.iterdir() if p.suffix == ".pdmodel" or (p.suffix == ".onnx" and not p.with_suffix(".pdmodel").exists())]
    with bound("127.0.0.1", port) as at:
        serve_models(make_service(sorted(map(str, networks)), ServerLimits(batch=batch), kinds=[kind]), at, lambda text: None)


# --- clients


def check_equal(ports: dict[str, int], model: str, body: bytes, head: int) -> None:
    """Compare the results of all engines for one request."""
    found: list[Any] = []
    for port in ports.values():
        one = http.client.HTTPConnection("127.0.0.1", port)
        one.request("POST", f"/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": str(head)})
        answer = one.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{model} at {port}: {text[:500]!r}")
        found.append(np.frombuffer(text[int(answer.headers["Inference-Header-Content-Length"]) :], "float32"))
    for other in found[1:]:
        np.testing.assert_allclose(found[0], other, rtol=1e-3, atol=1e-4)


def request_bytes(path: str, body: bytes, **headers: Any) -> bytes:
    """Return a POST of a body."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in {**headers, "Content_Length": len(body)}.items())
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode() + body


def length_of(header: bytes) -> int:
    return next(int(line.split(b":")[1]) for line in header.lower().split(b"\r\n") if line.startswith(b"content-length:"))


async def load(port: int, requests: list[bytes], clients: int, seconds: float) -> list[float]:
    """Return the times of all requests of some clients; anything but 200 ends the measurement."""
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number * 7
        while (began := time.perf_counter()) < end:
            writer.write(requests[place % len(requests)])
            header = await reader.readuntil(b"\r\n\r\n")
            answer = await reader.readexactly(length_of(header))
            if not header.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"{header[:20]!r} {answer[:300]!r}")
            times.append(time.perf_counter() - began)
            place += 1
        writer.close()

    await asyncio.gather(*(client(k) for k in range(clients)))
    return times


def in_turns(ports: dict[str, int], requests: list[bytes], clients: int, options: argparse.Namespace) -> list[dict[str, float]]:
    """Return each engine's requests a second, and the 50th and 99th percentile of their times in milliseconds: medians of the rounds."""
    figures: list[dict[str, list[float]]] = [{engine: [] for engine in ports} for _ in range(3)]
    for turn in range(options.rounds + 1):
        for engine in ports if turn % 2 else reversed(ports):
            seconds = options.seconds if turn else min(2.0, options.seconds)  # the first turn prepares kernels
            times = asyncio.run(load(ports[engine], requests, clients, seconds))
            if turn:
                for figure, value in zip(figures, (len(times) / seconds, *np.percentile(times, [50, 99]) * 1e3), strict=True):
                    figure[engine].append(float(value))
    return [{engine: statistics.median(values) for engine, values in figure.items()} for figure in figures]


@contextlib.contextmanager
def servers(script: str, place: object, ports: dict[str, int], *settings: str) -> Iterator[dict[str, int]]:
    """Run the server of each engine in a process of its own: its number by the engine."""
    processes = [subprocess.Popen([sys.executable, os.path.abspath(script), "--serve", name, str(place), str(port), *settings]) for name, port in ports.items()]
    try:
        yield {engine: process.pid for engine, process in zip(ports, processes, strict=True)}
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def memory_of(process: int) -> str:
    """The memory of a process in MiB: resident now, and at most."""
    with contextlib.suppress(OSError):  # Linux alone has the file
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        return "{} MiB, at most {}".format(*(int(lines[name].split()[0]) >> 10 for name in ("VmRSS", "VmHWM")))
    return "unknown"


def wait_for(port: int) -> None:
    for _ in range(1200):
        try:
            one = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            one.request("GET", "/v2/health/ready")
            if one.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("a server did not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--clients", default="1,16,64")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--only", default="")
    parser.add_argument("--ragged", choices=("auto", "always", "never"), default="never")
    parser.add_argument("--peers", default=",".join(ENGINES[1:]), help="the servers beside ours")
    parser.add_argument("--serve", nargs=3, metavar=("ENGINE", "FOLDER", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], Path(options.serve[1]), int(options.serve[2]), options)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if not options.only or set(options.only.split(",")) & {"mlp", "conv", "texts"}:
            save_networks(folder)
        for one in options.models:
            (folder / one.name).symlink_to(one.resolve())
        names = ["mlp", "conv", "texts", *(one.stem for one in options.models)]
        names = [n for n in names if not options.only or n in options.only.split(",")]
        engines = [ENGINES[0], *options.peers.split(",")]
        ports = {engine: 8600 + at for at, engine in enumerate(engines)}
        given = ["--batch", str(options.batch), "--ragged", options.ragged, *([] if options.threads is None else ["--threads", str(options.threads)])]
        with servers(__file__, place, ports, *given) as processes:
            for port in ports.values():
                wait_for(port)
            heads = " ".join(f"{engine + ' /s':>14} {'p50 ms':>8} {'p99 ms':>8}" for engine in engines)
            print(f"{'network':8} {'clients':>7} {heads} " + " ".join(f"{'by ' + peer + ': /s, p99':>26}" for peer in engines[1:]))
            for name in names:
                bodies = bodies_of(name, folder)
                check_equal(ports, name, *bodies[0])
                requests = [request_bytes(f"/v2/models/{name}/infer", body, Inference_Header_Content_Length=head) for body, head in bodies]
                for clients in map(int, options.clients.split(",")):
                    rate, p50, p99 = in_turns(ports, requests, clients, options)
                    cells = " ".join(f"{rate[engine]:14.0f} {p50[engine]:8.1f} {p99[engine]:8.1f}" for engine in engines)
                    ratios = " ".join(f"{rate['ours'] / rate[peer]:20.2f} {p99['ours'] / p99[peer]:5.2f}" for peer in engines[1:])
                    print(f"{name:8} {clients:7} {cells} {ratios}", flush=True)
            print("memory: " + "; ".join(f"{engine} {memory_of(process)}" for engine, process in processes.items()))


if __name__ == "__main__":
    main()
