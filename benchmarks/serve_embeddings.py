"""Vectors over HTTP: `foreshape serve` beside the same .onnx file in onnxruntime behind FastAPI: requests a second and the 99th percentile, as ratios.

    python benchmarks/serve_embeddings.py [--clients 1,16,64] [--seconds 6] [--rounds 3] [--threads N] [MODEL.onnx]

MODEL.onnx has its tokenizer beside it. Without one an encoder of six layers with random weights is written. Texts have 3 to 400 words, most of them
few. Each server runs in a process of its own; the engines take turns. ``locked`` answers each request alone, one after the other, under a lock;
``padded`` joins those that wait, up to 32 padded texts. Clients are coroutines of one more process, each with a connection of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from serving import in_turns, request_bytes, servers, session_of

ENGINES = ("ours", "locked", "padded")
PATH = "/v1/embeddings"
WORDS, TOGETHER = 5000, 32


def save_encoder(folder: Path, layers: int, width: int, heads: int) -> Path:
    """Save an encoder of padded texts as ONNX, and its tokenizer beside it."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    import foreshape as fs
    from foreshape import layer

    def fc(x: Any, size: int, activation: str | None = None) -> Any:
        return layer.fc(x, size, activation, flatten_last=1)

    ids, mask = (layer.data(name, ["batch", "time"], dtype="int64") for name in ("input_ids", "attention_mask"))
    weights = layer.cast(mask, "float32")
    penalty = layer.reshape((weights - 1.0) * 1e9, [0, 1, 1, -1])
    h = layer.layer_norm(layer.embedding(ids, [WORDS, width]), begin_norm_axis=2)
    for _ in range(layers):
        q, k, v = (layer.transpose(layer.reshape(fc(h, width), [0, 0, heads, width // heads]), [0, 2, 1, 3]) for _ in range(3))
        attention = layer.softmax(layer.matmul(q, k, transpose_y=True) * (width // heads) ** -0.5 + penalty)
        mixed = layer.reshape(layer.transpose(layer.matmul(attention, v), [0, 2, 1, 3]), [0, 0, width])
        h = layer.layer_norm(h + fc(mixed, width), begin_norm_axis=2)
        h = layer.layer_norm(h + fc(fc(h, 4 * width, "gelu"), width), begin_norm_axis=2)
    mean = layer.reduce_sum(h * layer.unsqueeze(weights, [2]), 1) / layer.reduce_sum(weights, 1, keepdim=True)
    fs.Executor(seed=1).run(fs.default_startup_program())
    fs.save_onnx(folder / "encoder.onnx", [ids, mask], {"vectors": mean})
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, **{f"w{n}": n for n in range(1, WORDS)}}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "encoder.onnx"


def texts() -> list[str]:
    """Texts of mixed lengths, from queries to pages."""
    draw = np.random.default_rng(0)
    lengths = np.clip(np.exp(draw.normal(3.3, 1.0, 200)), 3, 400).astype(int)
    return [" ".join(f"w{n}" for n in draw.integers(1, WORDS, length)) for length in lengths]


def peer_app(engine: str, model: Path, threads: int | None) -> Any:
    """Return the application that a user would write around onnxruntime."""
    from fastapi import FastAPI
    from starlette.concurrency import run_in_threadpool
    from tokenizers import Tokenizer

    session, tokenizer = session_of(model, threads), Tokenizer.from_file(str(model.parent / "tokenizer.json"))
    tokenizer.no_padding()
    names = [entry.name for entry in session.get_inputs()]
    app, lock, queue = FastAPI(), asyncio.Lock(), asyncio.Queue[tuple[str, Any]]()

    def compute(some: list[str]) -> Any:
        entries = [entry.ids for entry in tokenizer.encode_batch(some)]
        mask = (np.arange(max(map(len, entries))) < np.array([[len(ids)] for ids in entries])).astype("int64")
        rows = np.zeros_like(mask)
        rows[mask == 1] = np.concatenate(entries)
        feed = {"input_ids": rows, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
        out = session.run(None, {name: feed[name] for name in names})[0]
        return (out * mask[:, :, None]).sum(1) / mask.sum(1, keepdims=True) if out.ndim == 3 else out

    async def join() -> None:
        while True:
            some = [await queue.get()]
            while len(some) < TOGETHER and not queue.empty():
                some.append(queue.get_nowait())
            rows = await run_in_threadpool(compute, [text for text, _ in some])
            for (_, future), row in zip(some, rows, strict=True):
                future.set_result(row)

    tasks: list[Any] = []

    async def embed(request: dict[str, Any]) -> Any:
        if engine == "locked":
            async with lock:
                (row,) = await run_in_threadpool(compute, [request["input"]])
        else:
            tasks or tasks.append(asyncio.create_task(join()))
            future = asyncio.get_running_loop().create_future()
            queue.put_nowait((request["input"], future))
            row = await future
        return {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": row.tolist()}]}

    embed.__annotations__ = {"request": dict[str, Any]}
    app.post(PATH, response_model=None)(embed)
    return app


def serve(engine: str, model: Path, port: int, threads: int | None) -> None:
    """Serve the file by one engine, until the end."""
    if engine != "ours":
        import uvicorn

        uvicorn.run(peer_app(engine, model, threads), port=port, log_level="warning", access_log=False)
        return
    from foreshape.apps.serving.served_embedder import Embedders
    from foreshape.apps.serving.served_network import Networks
    from foreshape.apps.serving.server import bound, make_service
    from foreshape.apps.serving.server import serve as serve_models

    with bound("127.0.0.1", port) as address:
        serve_models(make_service([str(model)], kinds=[Embedders(Networks(threads), threads)]), address, lambda text: None)


def vector(port: int, body: bytes) -> Any:
    """Return the vector of one request; None while there is no server."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return np.array(json.loads(answer.read())["data"][0]["embedding"])
    except OSError:
        return None


def measure(ports: dict[str, int], bodies: list[bytes], options: Any) -> None:
    """Print a line for each number of clients."""
    print(f"{'clients':>7} " + " ".join(f"{engine + ' /s':>10} {'p99 ms':>8}" for engine in ENGINES) + "   ours by locked: /s, p99   by padded: /s, p99")
    requests = [request_bytes(PATH, body, Content_Type="application/json") for body in bodies]
    for clients in map(int, options.clients.split(",")):
        rate, _, p99 = in_turns(ports, requests, clients, options)
        cells = " ".join(f"{rate[engine]:10.1f} {p99[engine]:8.1f}" for engine in ENGINES)
        ratios = "   ".join(f"{rate['ours'] / rate[peer]:15.2f} {p99['ours'] / p99[peer]:5.2f}" for peer in ENGINES[1:])
        print(f"{clients:7} {cells} {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--clients", default="1,16,64")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--serve", nargs=3, metavar=("ENGINE", "MODEL", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], Path(options.serve[1]), int(options.serve[2]), options.threads)
        return
    bodies = [json.dumps({"input": text}).encode() for text in texts()]
    with tempfile.TemporaryDirectory() as place:
        model = options.model or save_encoder(Path(place), options.layers, options.width, 12 if options.width % 12 == 0 else 4)
        ports = {engine: 8610 + number for number, engine in enumerate(ENGINES)}
        more = [] if options.threads is None else ["--threads", str(options.threads)]
        with servers(__file__, model, ports, *more):
            for number, body in enumerate(bodies[:3]):
                rows: list[Any] = []
                for port in ports.values():
                    until = time.perf_counter() + 120
                    while (row := vector(port, body)) is None and time.perf_counter() < until and not number:
                        time.sleep(0.2)
                    rows.append(row)
                for row in rows[1:]:
                    np.testing.assert_allclose(rows[0], row, rtol=1e-3, atol=1e-4)
            measure(ports, bodies, options)


if __name__ == "__main__":
    main()
