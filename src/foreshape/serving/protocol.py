"""Requests and responses of the Open Inference Protocol, version 2, with its extension for binary tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn, cast

from foreshape.serving.datatypes import DATATYPES, from_bytes, from_json, shape_of, to_bytes, to_json
from foreshape.serving.server_limits import RequestError, ServerLimits

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
_MEMORY: Final = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


class TensorInfo(NamedTuple):
    """An input or a result of a model: its dims, numbers or the names of open ones; if ragged, the numbers of its sequences, outermost first."""

    name: str
    datatype: str
    dims: Sequence[int | str]
    counts: Sequence[int | str] = ()

    def facts(self) -> dict[str, Any]:
        """Return its metadata. An open dim is -1, and its name stands in the parameters."""
        parameters = {"dims": [*self.dims], **({"lengths": [*self.counts]} if self.counts else {})}
        shape = [d if isinstance(d, int) else -1 for d in self.dims]
        return {"name": self.name, "datatype": self.datatype, "shape": shape, "parameters": parameters}


class NamedTensor(NamedTuple):
    """A tensor of a request or a response; ``lengths``: if ragged, the lengths of its sequences, level by level."""

    name: str
    datatype: str
    array: Any
    lengths: Sequence[Sequence[int]] | None = None


class InferRequest(NamedTuple):
    """A request for results.

    ``outputs``: the wanted results, each with whether it is wanted as bytes; None for all. ``binary``: says so for results without a wish of their own.
    """

    id: str | None
    inputs: dict[str, NamedTensor]
    outputs: dict[str, bool | None] | None
    parameters: Mapping[str, Any]
    binary: bool


def read_request(body: bytes | bytearray | memoryview, header_length: str | None, limits: ServerLimits) -> InferRequest:
    """Return the request in a body.

    Args:
        header_length: the value of the HTTP header of this name: the number of bytes of JSON, with binary data behind them.
        limits: of the JSON.

    Raises:
        RequestError: it is no such request.
    """
    view = memoryview(body)
    length = len(view)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdecimal() and len(header_length) < 20 and 0 < int(header_length) <= length):
            raise RequestError(400, f"{HEADER_LENGTH} must be the number of bytes of JSON, 1 to {length}; seen {header_length[:40]!r}")
        length = int(header_length)
    if length > limits.json:
        raise RequestError(413, f"the JSON of a request may have {limits.json:,} bytes, and this one has {length:,}; send tensors as binary data")
    return _RequestReader(parse_object(view[:length]), view[length:]).request()


def _no_number(text: str) -> NoReturn:
    raise RequestError(400, f"the request has {text}, which is no JSON")


_reader: Final = json.JSONDecoder(parse_constant=_no_number)
_write: Final = json.JSONEncoder(separators=(",", ":")).encode


def parse_object(data: memoryview) -> dict[str, Any]:
    """Return the JSON object in the body of a request. Raises `RequestError` if it is none."""
    try:
        found = _reader.decode(str(data, "utf-8"))
    except RecursionError:
        raise RequestError(400, "the request is nested too deeply") from None
    except ValueError as error:  # a text that is no UTF-8 too
        raise RequestError(400, f"the request is no JSON: {str(error)[:200]}") from None
    return _object("the request", found)


def _object(what: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise RequestError(400, f"{what} must be a JSON object")
    return cast("dict[str, Any]", given)


def _list(what: str, given: object) -> list[Any]:
    if not isinstance(given, list):
        raise RequestError(400, f"{what} must be a list")
    return cast("list[Any]", given)


def _truth(what: str, given: object) -> bool:
    if not isinstance(given, bool):
        raise RequestError(400, f"{what} must be true or false")
    return given


class _RequestReader:
    """The reading of one request's JSON, and of the bytes behind it, input by input."""

    def __init__(self, given: dict[str, Any], data: memoryview) -> None:
        self._given, self._data, self._at = given, data, 0

    def request(self) -> InferRequest:
        given = self._given
        id = given.get("id")
        if id is not None and not isinstance(id, str):
            raise RequestError(400, "id must be a text")
        parameters = self._parameters("the request", given)
        if parameters.get("sequence_id"):
            raise RequestError(400, "sequence_id: requests that belong together are not supported")
        inputs: dict[str, NamedTensor] = {}
        shared = parameters.get("lengths")
        lengths = {} if shared is None else _object("the parameter lengths of the request", shared)
        for at, one in enumerate(_list("inputs", given.get("inputs"))):
            tensor = self._input(f"inputs[{at}]", _object(f"inputs[{at}]", one), lengths)
            if tensor.name in inputs:
                raise RequestError(400, f"the input {tensor.name} is given twice")
            inputs[tensor.name] = tensor
        if unknown := lengths.keys() - inputs.keys():
            raise RequestError(400, f"lengths are given of {sorted(unknown)[0][:100]!r}, which is no input of the request")
        if self._at != len(self._data):
            raise RequestError(400, f"{len(self._data) - self._at} bytes follow the binary data of the inputs")
        binary = parameters.get("binary_data_output")
        return InferRequest(id, inputs, self._outputs(), parameters, binary is not None and _truth("binary_data_output", binary))

    def _parameters(self, what: str, of: dict[str, Any]) -> dict[str, Any]:
        found = of.get("parameters")
        found = {} if found is None else _object(f"the parameters of {what}", found)
        if any(name in found for name in _MEMORY):
            raise RequestError(400, f"{what}: shared memory is not supported; send the data in the request")
        return found

    def _name(self, what: str, of: dict[str, Any]) -> str:
        name = of.get("name")
        if not isinstance(name, str):
            raise RequestError(400, f"{what} must have a name")
        return name

    def _input(self, what: str, of: dict[str, Any], shared: dict[str, Any]) -> NamedTensor:
        name = self._name(what, of)
        called = name[:100]
        datatype = of.get("datatype")
        if datatype not in DATATYPES:
            raise RequestError(400, f"{called}: datatype must be one of {', '.join(DATATYPES)}; seen {str(datatype)[:40]!r}")
        shape, parameters = shape_of(called, of.get("shape")), self._parameters(called, of)
        size = parameters.get("binary_data_size")
        if size is None:
            if "data" not in of:
                raise RequestError(400, f"{called} has neither data nor a binary_data_size")
            array = from_json(called, datatype, shape, of["data"])
        else:
            if "data" in of:
                raise RequestError(400, f"{called} has both data and a binary_data_size")
            if type(size) is not int or not 0 <= size <= len(self._data) - self._at:
                raise RequestError(400, f"{called}: binary_data_size is {str(size)[:40]}, and {len(self._data) - self._at} bytes are left")
            array = from_bytes(called, datatype, shape, self._data[self._at : self._at + size])
            self._at += size
        return NamedTensor(name, datatype, array, _lengths(called, parameters.get("lengths", shared.get(name))))

    def _outputs(self) -> dict[str, bool | None] | None:
        given = self._given.get("outputs")
        if given is None:
            return None
        out: dict[str, bool | None] = {}
        for at, one in enumerate(_list("outputs", given)):
            what = f"outputs[{at}]"
            of = _object(what, one)
            name, parameters = self._name(what, of), self._parameters(what, of)
            if parameters.get("classification"):
                raise RequestError(400, f"{name[:100]}: classification is not supported; ask for the scores")
            binary = parameters.get("binary_data")
            out[name] = None if binary is None else _truth(f"binary_data of {name[:100]}", binary)
        return out or None


def _lengths(name: str, given: object) -> list[list[int]] | None:
    """Return lengths, level by level, of ``[3, 0, 2]`` for one level, or of ``[[2, 1], [3, 0, 2]]``."""
    if given is None:
        return None
    values = _list(f"lengths of {name}", given)
    levels = values if values and all(isinstance(v, list) for v in values) else [values]
    if not all(type(n) is int and 0 <= n < 1 << 62 for level in levels for n in level):
        raise RequestError(400, f"lengths of {name} must be whole numbers of at least 0, in a list, or in a list for each level")
    return levels


class Response(NamedTuple):
    """The body of a response, and the bytes of its JSON if others follow."""

    body: bytes
    header_length: int | None


def write_response(model: str, version: str, request: InferRequest, results: Sequence[NamedTensor], parameters: Mapping[str, Any] | None = None) -> Response:
    """Return the response with a request's results, as JSON or bytes. Raises `RequestError` for numbers without a form in JSON."""
    outputs: list[dict[str, Any]] = []
    pieces: list[bytes] = []
    for tensor in results:
        wish = None if request.outputs is None else request.outputs.get(tensor.name)
        one: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": [*tensor.array.shape]}
        own: dict[str, Any] = {}
        if tensor.lengths is not None:
            own["lengths"] = tensor.lengths[0] if len(tensor.lengths) == 1 else tensor.lengths
        if request.binary if wish is None else wish:
            pieces.append(to_bytes(tensor.datatype, tensor.array))
            own["binary_data_size"] = len(pieces[-1])
        else:
            one["data"] = to_json(tensor.name, tensor.datatype, tensor.array)
        outputs.append({**one, "parameters": own} if own else one)
    facts: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": outputs}
    if request.id is not None:
        facts["id"] = request.id
    if parameters:
        facts["parameters"] = dict(parameters)
    head = _write(facts).encode()
    return Response(b"".join([head, *pieces]), len(head) if pieces else None)
