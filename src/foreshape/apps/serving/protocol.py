"""Requests and responses of the Open Inference Protocol, version 2, with its extension for binary tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, cast

from msgspec import json

from foreshape.apps.serving.datatypes import DATATYPES, NUMPY, datatype_of, from_bytes, shape_of, to_bytes
from foreshape.apps.serving.request_json import InputFields, RequestFields, RequestParameters, is_absent, listed_value, read_fields, read_object, short_value
from foreshape.apps.serving.server_limits import RequestError, ServerLimits
from foreshape.apps.serving.tensor_json import from_json, to_json
from foreshape.core.spec import Spec

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
_LIMITS: Final = ServerLimits()
_JOINED: Final = 1 << 20
"""The bytes of JSON in one piece."""


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


def tensor_info(name: str, spec: Spec) -> TensorInfo:
    """Return the metadata of an input or a result."""
    dims, counts = ([d if isinstance(d, int) else str(d) for d in sizes] for sizes in (spec.known_dims, spec.lod.counts if spec.lod is not None else ()))
    return TensorInfo(name, datatype_of(spec.known_dtype), dims, counts)


class NamedTensor(NamedTuple):
    """A tensor of a request or a response; ``lengths``: if ragged, the lengths of its sequences, level by level."""

    name: str
    datatype: str
    array: Any
    lengths: Sequence[Sequence[int]] | None = None


class InferRequest(NamedTuple):
    """A request for results.

    ``outputs``: the wanted results, each with its wish for bytes or JSON; None for all. ``binary``: the wish of results without one of their own.
    ``timeout``: its microseconds, 0 for none.
    """

    id: str | None
    inputs: dict[str, NamedTensor]
    outputs: dict[str, bool | None] | None
    binary: bool
    timeout: int = 0

    def wants_bytes(self, name: str) -> bool:
        """Return True if a result goes as bytes, and not in JSON."""
        wish = None if self.outputs is None else self.outputs.get(name)
        return self.binary if wish is None else wish


def read_request(
    body: bytes | bytearray | memoryview, header_length: str | None, limits: ServerLimits, model: Sequence[TensorInfo] | None = None
) -> InferRequest:
    """Return the request in a body.

    Args:
        header_length: the value of the HTTP header of this name: the number of bytes of JSON, with binary data behind them.
        limits: of the JSON.
        model: its inputs; unknown ones, and other element types, are refused before their data are read.

    Raises:
        RequestError: it is no such request.
    """
    view = memoryview(body)
    length = len(view)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdecimal() and len(header_length) < 20 and 0 < int(header_length) <= length):
            raise RequestError(400, f"{HEADER_LENGTH} must be the number of bytes of JSON, 1 to {length}; seen {header_length[:40]!r}")
        length = int(header_length)
    need_short(length, limits)
    return _RequestReader(read_fields(view[:length]), view[length:], model).request()


def need_short(length: int, limits: ServerLimits) -> None:
    """Raise `RequestError` where the JSON of a request has more bytes than it may."""
    if length > limits.json:
        raise RequestError(413, f"the JSON of a request may have {limits.json:,} bytes, and this one has {length:,}; tensors may be sent as binary data")


class _RequestReader:
    """The reading of one request's JSON, and of the bytes behind it, input by input."""

    def __init__(self, fields: RequestFields, data: memoryview, model: Sequence[TensorInfo] | None) -> None:
        self._fields, self._data, self._at = fields, data, 0
        self._model = None if model is None else {info.name: info for info in model}

    def request(self) -> InferRequest:
        fields = self._fields
        id, parameters = text_or_none("id", short_value("id", fields.id)), _parameters("the request", fields.parameters)
        if short_value("sequence_id", parameters.sequence_id):
            raise RequestError(400, "sequence_id: requests that belong together are not supported")
        timeout = short_value("timeout", parameters.timeout) or 0
        if type(timeout) is not int or timeout < 0:
            raise RequestError(400, f"timeout must be a whole number of microseconds; seen {str(timeout)[:40]}")
        if fields.inputs is None:
            raise RequestError(400, "inputs must be a list of tensors; it is missing, or is something else")
        inputs: dict[str, NamedTensor] = {}
        lengths = {} if is_absent(parameters.lengths) else read_object("the parameter lengths of the request", parameters.lengths)
        for index, tensor in enumerate(fields.inputs):
            name = _name(f"inputs[{index}]", short_value(f"the name of inputs[{index}]", tensor.name))
            if name in inputs:
                raise RequestError(400, f"the input {name[:100]} is given twice")
            datatype = self._datatype(name, tensor)
            tensor_parameters = _parameters(name[:100], tensor.parameters)
            array = self._array(name[:100], datatype, tensor, tensor_parameters)
            raw_lengths = tensor_parameters.lengths if not is_absent(tensor_parameters.lengths) else lengths.get(name, tensor_parameters.lengths)
            inputs[name] = NamedTensor(name, datatype, array, _lengths(name[:100], listed_value(f"lengths of {name[:100]}", raw_lengths)))
        if unknown := lengths.keys() - inputs.keys():
            raise RequestError(400, f"lengths are given of {sorted(unknown)[0][:100]!r}, which is no input of the request")
        if self._at != len(self._data):
            raise RequestError(400, f"{len(self._data) - self._at} bytes follow the binary data of the inputs")
        binary = _truth("binary_data_output", short_value("binary_data_output", parameters.binary_data_output))
        return InferRequest(id, inputs, self._outputs(), bool(binary), timeout)

    def _datatype(self, name: str, tensor: InputFields) -> str:
        """Return an input's element type. Raises `RequestError` if the model has no such input, or it has another type."""
        if self._model is not None and name not in self._model:
            raise RequestError(400, f"the model has no input {name[:100]!r}; it has {', '.join(self._model)}")
        expected = None if self._model is None else self._model[name].datatype
        datatype = short_value(f"the datatype of {name[:100]}", tensor.datatype)
        if datatype is None:
            raise RequestError(400, f"{name[:100]}: its datatype is missing: {'one of ' + ', '.join(DATATYPES) if expected is None else expected}")
        if datatype not in DATATYPES:
            raise RequestError(400, f"{name[:100]}: datatype must be one of {', '.join(DATATYPES)}; seen {str(datatype)[:40]!r}")
        if expected is not None and datatype != expected:
            remedy = f": convert it before, as by numpy's astype({NUMPY[expected]!r})" if expected in NUMPY else ""
            raise RequestError(400, f"{name[:100]} is {expected}; sent is {datatype}{remedy}")
        return datatype

    def _array(self, name: str, datatype: str, tensor: InputFields, parameters: RequestParameters) -> Any:
        shape, size = shape_of(name, short_value(f"the shape of {name}", tensor.shape)), short_value(f"{name}: binary_data_size", parameters.binary_data_size)
        data = None if not memoryview(tensor.data) else tensor.data
        if size is None:
            if data is None:
                raise RequestError(400, f"{name} has neither data nor a binary_data_size")
            return from_json(name, datatype, shape, data)
        if data is not None:
            raise RequestError(400, f"{name} has both data and a binary_data_size")
        if type(size) is not int or not 0 <= size <= len(self._data) - self._at:
            raise RequestError(400, f"{name}: binary_data_size is {str(size)[:40]}, and {len(self._data) - self._at} bytes are left")
        self._at += size
        return from_bytes(name, datatype, shape, self._data[self._at - size : self._at])

    def _outputs(self) -> dict[str, bool | None] | None:
        out: dict[str, bool | None] = {}
        for index, output in enumerate(self._fields.outputs or ()):
            name = _name(f"outputs[{index}]", short_value(f"the name of outputs[{index}]", output.name))
            parameters = _parameters(name[:100], output.parameters)
            if short_value(f"classification of {name[:100]}", parameters.classification):
                raise RequestError(400, f"{name[:100]}: classification is not supported; ask for the scores")
            field = f"binary_data of {name[:100]}"
            out[name] = _truth(field, short_value(field, parameters.binary_data))
        return out or None


_NONE: Final = RequestParameters()


def _parameters(owner: str, raw: RequestParameters | None) -> RequestParameters:
    parameters = raw or _NONE
    if any(memoryview(field) for field in (parameters.shared_memory_region, parameters.shared_memory_byte_size, parameters.shared_memory_offset)):
        raise RequestError(400, f"{owner}: shared memory is not supported; send the data in the request")
    return parameters


def _name(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(400, f"{field} must have a name")
    return value


def text_or_none(field: str, value: object) -> str | None:
    """Return a text of a request, or None. Raises `RequestError` for anything else."""
    if value is not None and not isinstance(value, str):
        raise RequestError(400, f"{field} must be a text")
    return value


def _truth(field: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise RequestError(400, f"{field} must be true or false")
    return value


def _lengths(name: str, value: object) -> list[list[int]] | None:
    """Return lengths, level by level, of ``[3, 0, 2]`` for one level, or of ``[[2, 1], [3, 0, 2]]``."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise RequestError(400, f"lengths of {name} must be a list")
    values = cast("list[Any]", value)
    levels = values if values and all(isinstance(v, list) for v in values) else [values]
    if not all(type(n) is int and 0 <= n < 1 << 62 for level in levels for n in level):
        raise RequestError(400, f"lengths of {name} must be whole numbers of at least 0, in a list, or in a list for each level")
    return levels


class Response(NamedTuple):
    """The body of a response in pieces, and the bytes of its JSON if others follow."""

    pieces: list[bytes]
    header_length: int | None

    @property
    def size(self) -> int:
        """Return the bytes of the body."""
        return sum(map(len, self.pieces))


def write_response(model: str, version: str, request: InferRequest, results: Sequence[NamedTensor], limits: ServerLimits = _LIMITS) -> Response:
    """Return the response with a request's results, as JSON or bytes. Raises `RequestError` for numbers without a form in JSON, and for too many of them."""
    facts = {"model_name": model, "model_version": version, **({} if request.id is None else {"id": request.id})}
    head, pieces, size = [json.encode(facts)[:-1], b',"outputs":['], list[bytes](), 0
    for index, tensor in enumerate(results):
        entry: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.array.shape}
        parameters: dict[str, Any] = {}
        if tensor.lengths is not None:
            parameters["lengths"] = tensor.lengths[0] if len(tensor.lengths) == 1 else tensor.lengths
        is_binary = request.wants_bytes(tensor.name)
        if is_binary:
            pieces.append(to_bytes(tensor.datatype, tensor.array))
            parameters["binary_data_size"] = len(pieces[-1])
        head.append(b"," * (index > 0) + json.encode({**entry, "parameters": parameters} if parameters else entry)[:-1])
        if not is_binary:
            head.append(b',"data":')
            for piece in to_json(tensor.name, tensor.datatype, tensor.array):
                head.append(piece)
                size += len(piece)
                if size > limits.pending:
                    raise RequestError(413, f'the results have more than {limits.pending:,} bytes as JSON; ask for them with "binary_data": true')
        head.append(b"}")
    head.append(b"]}")
    length = sum(map(len, head))
    return Response([*([b"".join(head)] if length < _JOINED else head), *pieces], length if pieces else None)
