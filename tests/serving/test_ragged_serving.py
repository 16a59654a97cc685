"""Encoders of padded texts served on ragged rows: the results are the padded network's, beside any neighbours, or the padded network computes them itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from support.commanded import call
from support.padded_networks import WIDTH, WORDS, Encoder

import foreshape as fs
from foreshape import layer
from foreshape.apps.serving.protocol import InferRequest, NamedTensor
from foreshape.apps.serving.served_model import Opening, ServedModel
from foreshape.apps.serving.served_network import Networks, ServedNetwork
from foreshape.apps.serving.served_ragged import RaggedMode, ServedRagged
from foreshape.apps.serving.server import BackgroundServer
from foreshape.apps.serving.server_limits import RequestError, ServerLimits
from foreshape.interop import ragged_network

ENCODERS: dict[str, dict[str, Any]] = {
    "lowest number": {},
    "infinite": {"mask": "infinite", "positions": "gathered"},
    "bounded scores": {"mask": "-10000", "positions": "none"},
    "window, turned": {"mask": "window", "positions": "turned"},
    "counted positions": {"positions": "counted", "mask": "both sides"},
    "bias by distance": {"positions": "alibi", "mask": "causal and mask"},
    "relative": {"positions": "relative", "layout": "joined heads"},
    "lengths": {"source": "lengths", "layout": "rows"},
}
LENGTHS = [[7, 3, 12], [1], [5, 5], [2, 9], [20], [4, 4, 4, 1]]
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
"""Products of other numbers of rows round otherwise, and so do sums in another order."""


def save(folder: Path, name: str, form: str = "onnx", **settings: Any) -> str:
    """Save an encoder with its rows and their mean as results."""
    scope, startup = fs.Scope(), fs.Program()
    with fs.program_guard(program := fs.Program(), startup):
        network = Encoder(pooling="rows", **settings)
        results = {"rows": network.out, "mean": network._pooled(network.out, "mean")}
    fs.Executor(seed=len(name)).run(startup, scope=scope)
    if form == "onnx":
        fs.save_onnx(folder / f"{name}.onnx", network.feeds, results, program=program, scope=scope)
        return str(folder / f"{name}.onnx")
    fs.save_inference_model(folder / name, network.feeds, results, program=program, scope=scope)
    return str(folder / f"{name}.pdmodel")


def opened(path: str, ragged: RaggedMode, mask: str = "mask", **limits: Any) -> ServedModel:
    return Networks(threads=2, ragged=ragged, mask=mask).opened(path, Opening(1 << 30, ServerLimits(**limits), lambda batch: None))


def padded(lengths: Sequence[int], time: int | None = None, seed: int = 0, source: str = "mask") -> dict[str, Any]:
    """Return padded texts with random ids, also in the padding, and their mask or lengths."""
    time = max(lengths) if time is None else time
    ids = np.random.default_rng([seed, *lengths]).integers(1, WORDS, (len(lengths), time))
    mask = (np.arange(time) < np.array(lengths)[:, None]).astype("int64")
    return {"ids": ids, "lengths": np.array(lengths)} if source == "lengths" else {"ids": ids, "mask": mask}


def request_of(feed: Mapping[str, Any], outputs: Sequence[str] | None = None) -> InferRequest:
    inputs = {n: NamedTensor(n, "INT64", np.asarray(a)) for n, a in feed.items()}
    return InferRequest(None, inputs, None if outputs is None else dict.fromkeys(outputs), True)


def answer(served: ServedModel, feed: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
    request = request_of(feed, outputs)
    results = served.submit(served.feed(request), float("inf"), None).result(60)
    return {t.name: t.array for t in served.tensors(request, results)}


def equal(result: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert list(result) == list(expected)
    for name, value in result.items():
        assert value.shape == expected[name].shape and value.dtype == expected[name].dtype
        np.testing.assert_allclose(value, expected[name], **CLOSE)


@pytest.mark.parametrize("form", ["onnx", "pdmodel"])
@pytest.mark.parametrize("case", ENCODERS)
def test_results_are_those_of_the_padded_network(case: str, form: str, tmp_path: Path) -> None:
    settings = ENCODERS[case]
    source = settings.get("source", "mask")
    path = save(tmp_path, "encoder", form, **settings)
    with closing(opened(path, "never")) as usual, closing(opened(path, "auto", source)) as auto, closing(opened(path, "always", source)) as always:
        assert isinstance(auto, ServedRagged) and isinstance(always, ServedRagged)
        assert [i.facts() for i in auto.inputs] == [i.facts() for i in usual.inputs] and auto.inputs != auto.outputs
        assert [i.facts() for i in auto.outputs] == [i.facts() for i in usual.outputs]
        for lengths in LENGTHS:
            feed = padded(lengths, source=source)
            expected = answer(usual, feed)
            equal(answer(auto, feed), expected)  # also in the padding
            equal(answer(auto, feed, ["mean"]), {"mean": expected["mean"]})
            kept = np.arange(max(lengths)) < np.array(lengths)[:, None]
            expected["rows"] = np.where(kept[:, :, None], expected["rows"], 0.0)
            equal(answer(always, feed), expected)


def test_the_padded_network_is_opened_for_results_in_padding_alone(tmp_path: Path) -> None:
    with closing(opened(save(tmp_path, "encoder"), "auto")) as served:
        assert isinstance(served, ServedRagged) and served._padded is not None
        answer(served, padded([5]))
        answer(served, padded([5, 5]))
        answer(served, padded([5, 2], time=9), ["mean"])
        assert served._padded._served is None
        answer(served, padded([5, 2]), ["rows"])
        assert isinstance(served._padded._served, ServedNetwork)
        facts = served.facts()["ragged"]
        assert facts["setting"] == "auto" and facts["rows"] and facts["mask"] == "mask" and "the padded network" in facts["padding"]
        assert facts["padding"] in served.notes[0]


@pytest.mark.parametrize("case", ENCODERS)
def test_no_request_changes_with_its_neighbours(case: str, tmp_path: Path) -> None:
    settings = ENCODERS[case]
    source = settings.get("source", "mask")
    batches: list[int] = []
    networks = Networks(threads=2, ragged="always", mask=source)
    with closing(
        networks.opened(save(tmp_path, "encoder", **settings), Opening(1 << 30, ServerLimits(), lambda batch: batches.append(batch.requests)))
    ) as served:
        assert isinstance(served, ServedRagged)
        feeds = [padded(lengths, seed=n, source=source) for n, lengths in enumerate([*LENGTHS, [24], [1, 1, 1], [13], [23, 2]])]
        alone = [answer(served, feed) for feed in feeds]
        batches.clear()
        waiting, go, run = threading.Event(), threading.Event(), served._network.run

        def held(packed: Any) -> Any:
            waiting.set()
            assert go.wait(60)
            return run(packed)

        served._network.run = held  # type: ignore[method-assign]
        requests = [request_of(feed) for feed in feeds]
        first = served.submit(served.feed(requests[0]), float("inf"), None)
        assert waiting.wait(60)
        rest = [served.submit(served.feed(request), float("inf"), None) for request in requests[1:]]
        go.set()
        for request, future, expected in zip(requests, [first, *rest], alone, strict=True):
            equal({t.name: t.array for t in served.tensors(request, future.result(60))}, expected)
        assert sum(batches) == len(feeds) and max(batches) > 3


HOSTILE: dict[str, Any] = {
    "twos": [[2, 2, 2, 2, 2]],
    "a hole": [[1, 0, 1, 1, 0]],
    "zeros": [[0, 0, 0, 0, 0]],
    "zeros beside a text": [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]],
    "padding at the left": [[0, 0, 1, 1, 1]],
    "a number below 0": [[1, 1, -1, 0, 0]],
    "another number behind a text": [[1, 1, 1, 0, 3]],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_other_masks_are_computed_by_the_padded_network_or_refused(case: str, tmp_path: Path) -> None:
    path = save(tmp_path, "encoder")
    mask = np.array(HOSTILE[case])
    feed = {**padded([5] * len(mask)), "mask": mask}
    with closing(opened(path, "never")) as usual, closing(opened(path, "auto")) as auto, closing(opened(path, "always")) as always:
        for outputs in (None, ["mean"]):
            equal(answer(auto, feed, outputs), answer(usual, feed, outputs))
        with pytest.raises(RequestError, match="mask must be 1 for the rows of each text, one at least, and 0 for those behind them") as refused:
            answer(always, feed)
        assert refused.value.status == 422 and refused.value.facts["takes"]


def test_a_mask_in_floats_must_have_whole_numbers(tmp_path: Path) -> None:
    ids, mask = layer.data("ids", ["texts", "time"], "int64"), layer.data("mask", ["texts", "time"])
    h = layer.embedding(ids, [WORDS, WIDTH]) * layer.unsqueeze(mask, [2])
    mean = layer.reduce_sum(h, 1) / layer.reduce_sum(mask, 1, keepdim=True)
    fs.Executor(seed=1).run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "net", [ids, mask], {"mean": mean})
    with closing(opened(str(tmp_path / "net"), "auto")) as auto, closing(opened(str(tmp_path / "net"), "never")) as usual:
        assert isinstance(auto, ServedRagged) and auto._padded is not None
        for number, is_padded in ((1.0, False), (0.5, True), (float("nan"), True)):
            feed = padded([4, 2])
            feed["mask"] = (feed["mask"] * number).astype("float32")
            np.testing.assert_allclose(answer(auto, feed)["mean"], answer(usual, feed)["mean"], **CLOSE)
            assert (auto._padded._served is not None) == is_padded


def test_element_types_are_the_padded_network_s_whatever_the_neighbours_have(tmp_path: Path) -> None:
    path = save(tmp_path, "encoder")
    with closing(opened(path, "auto")) as auto, closing(opened(path, "never")) as usual:
        feed = padded([3, 3])
        for dtype in ("uint8", "int32"):
            other = {name: array.astype(dtype) for name, array in feed.items()}
            np.testing.assert_allclose(answer(auto, other)["mean"], answer(usual, other)["mean"], **CLOSE)
        for name, dtype in (("mask", "bool"), ("mask", "float32"), (next(n for n in feed if n != "mask"), "float32")):
            with pytest.raises(RequestError, match=f"{name} must be of int64"):
                answer(auto, {**feed, name: feed[name].astype(dtype)})


def test_wrong_requests_are_refused_in_words(tmp_path: Path) -> None:
    with closing(opened(save(tmp_path, "encoder"), "auto")) as served:
        assert isinstance(served, ServedRagged) and served._padded is not None
        ids, mask = padded([5]).values()
        for feed in ({"ids": ids, "mask": mask[:, :4]}, {"ids": ids[0], "mask": mask}, {"ids": ids, "mask": mask[0]}, {"ids": ids, "mask": np.array(1)}):
            with pytest.raises(RequestError, match=r"the inputs must be of the same texts and rows: ids i64\[texts, time\], mask") as refused:
                answer(served, feed)
            assert refused.value.status == 422
        with pytest.raises(RequestError, match=r"the input mask is missing: INT64 \['texts', 'time'\]"):
            answer(served, {"ids": ids})
        with pytest.raises(RequestError, match="the model gives no result 'row'; it gives rows, mean"):
            answer(served, padded([5]), ["row"])
        assert served._padded._served is None
        with pytest.raises(fs.ExecutionError) as unknown:
            answer(served, {"ids": ids + WORDS, "mask": mask})
        refusal = served.refusal(request_of({}), unknown.value)
        assert refusal is not None and refusal.status == 422
        served.give_memory(1000)
        with pytest.raises(RequestError, match=r"this request needs .* and this model may use 1,?000 B") as large:
            answer(served, padded([20]))
        assert large.value.status == 413


def test_a_failed_opening_of_the_padded_network_is_told_and_tried_again(tmp_path: Path) -> None:
    path = save(tmp_path, "encoder")
    feed = padded([3, 5])
    with closing(opened(path, "never")) as usual:
        expected = answer(usual, feed)
    with closing(opened(path, "auto")) as served:
        Path(path).rename(tmp_path / "away.onnx")
        with pytest.raises(fs.FormatError, match=r"encoder\.onnx"):
            answer(served, feed)
        answer(served, padded([4]))
        (tmp_path / "away.onnx").rename(path)
        equal(answer(served, feed), expected)


def test_a_file_written_over_in_its_place_ends_no_server(tmp_path: Path) -> None:
    path = save(tmp_path, "encoder")
    with closing(opened(path, "always")) as served:
        expected = answer(served, padded([9]))
        Path(path).write_bytes(b"")  # mapped tables would be gone
        equal(answer(served, padded([9])), expected)


def test_a_network_without_the_proof_is_served_as_it_is_and_says_why(tmp_path: Path) -> None:
    path = save(tmp_path, "encoder", mask="none")
    with closing(opened(path, "auto")) as served, closing(opened(path, "never")) as usual:
        assert isinstance(served, ServedNetwork)
        assert [note for note in served.notes if "it does not run on ragged rows: unpad: softmax" in note]
        facts = served.facts()["ragged"]
        assert not facts["rows"] and "softmax" in facts["reason"] and "\n    at " not in facts["reason"]
        equal(answer(served, padded([4, 2])), answer(usual, padded([4, 2])))
        assert "ragged" not in usual.facts()
    with pytest.raises(fs.UnpadError, match="softmax"):
        opened(path, "always")
    good = save(tmp_path, "other")
    with pytest.raises(fs.SchemaError, match="it has no input attention_mask, which would be the mask of padded texts; its inputs are: ids, mask"):
        opened(good, "always", "attention_mask")
    with closing(opened(good, "auto", "attention_mask")) as served:
        assert "no input attention_mask" in served.notes[0]


def test_settings_without_ragged_rows(tmp_path: Path) -> None:
    path = save(tmp_path, "encoder")
    opening = Opening(1 << 30, ServerLimits(), lambda batch: None)
    for settings, word in (({"bounded": True}, "a bound of memory"), ({"precision": "bf16"}, "a precision")):
        with pytest.raises(fs.SchemaError, match=word):
            Networks(ragged="always", mask="mask", **settings)
        with closing(Networks(ragged="auto", mask="mask", **settings).opened(path, opening)) as served:
            assert isinstance(served, ServedNetwork) and word in served.facts()["ragged"]["reason"]
    with pytest.raises(fs.SchemaError, match="ragged must be one of 'auto', 'always', 'never'; seen 'sometimes'"):
        Networks(ragged="sometimes")  # type: ignore[arg-type]
    code, _, err = call("serve", path, "--mask", "mask")
    assert code == 2 and "--ragged is not there" in err
    code, _, err = call("serve", path, "--ragged", "always", "--port", "0")
    assert code == 1 and "it has no input attention_mask" in err


def infer(address: str, model: str, feed: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
    inputs = [{"name": n, "datatype": "INT64", "shape": [*a.shape], "data": a.tolist()} for n, a in feed.items()]
    wanted = {} if outputs is None else {"outputs": [{"name": n} for n in outputs]}
    response = json.load(urlopen(f"http://{address}/v2/models/{model}/infer", json.dumps({"inputs": inputs, **wanted}).encode()))
    return {o["name"]: np.array(o["data"], "float32").reshape(o["shape"]) for o in response["outputs"]}


def test_two_models_and_clients_in_threads(tmp_path: Path) -> None:
    paths = [save(tmp_path, "first"), save(tmp_path, "second", mask="infinite", positions="relative")]
    expected: dict[tuple[str, int], Any] = {}
    feeds = [padded(lengths, seed=n) for n, lengths in enumerate(LENGTHS)]
    for name, path in zip(("first", "second"), paths, strict=True):
        with closing(opened(path, "never")) as usual:
            expected |= {(name, n): answer(usual, feed) for n, feed in enumerate(feeds)}
    errors: list[BaseException] = []
    with BackgroundServer(paths, kinds=[Networks(threads=2, ragged="auto", mask="mask")], watch=False) as server:

        def client(name: str, seed: int) -> None:
            try:
                for n in np.random.default_rng(seed).integers(0, len(feeds), 12):
                    equal(infer(server.address, name, feeds[n]), expected[name, int(n)])
            except BaseException as error:
                errors.append(error)

        clients = [threading.Thread(target=client, args=(name, seed)) for name in ("first", "second") for seed in (1, 2)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        assert not errors
        about = json.load(urlopen(f"http://{server.address}/v2/models/first"))
        assert about["parameters"]["ragged"]["rows"] and about["inputs"][0]["shape"] == [-1, -1] and about["outputs"][0]["shape"] == [-1, -1, WIDTH]
        assert "ragged rows" in about["parameters"]["notes"][0]
        with pytest.raises(HTTPError, match="422"):
            infer(server.address, "second", {**feeds[0], "ids": feeds[0]["ids"][:, :1]})
        assert urlopen(f"http://{server.address}/models/second/1").status == 200


def test_torch_computes_ragged_rows_without_the_library_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, "encoder", positions="alibi")
    with closing(opened(path, "never")) as usual:
        monkeypatch.setattr(ragged_network, "library", lambda: None)
        with closing(opened(path, "auto")) as served:
            assert isinstance(served, ServedRagged) and served._network._runner is None
            for lengths in LENGTHS:
                equal(answer(served, padded(lengths), ["mean"]), answer(usual, padded(lengths), ["mean"]))
            assert served._network.nbytes_of_run(2, 40, 30) > served._network.nbytes_of_run(1, 10, 10) > 0
