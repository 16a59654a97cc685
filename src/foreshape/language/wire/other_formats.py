"""Other file formats, recognised by their content, for the errors of readers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from foreshape.errors import FormatError
from foreshape.language.wire.scan import fields

_LOOKED_AT: Final = 4096
"""The number of bytes at the beginning to recognise a file by."""
_SHOWN: Final = 40
_LEAST: Final = 4
"""Files of fewer bytes hold nothing."""
_ONNX_FIELDS: Final = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 20, 25, 26))
_PICKLED: Final = re.compile(rb"\x80[\x02-\x05][(}\]X\x8a\x95\x8c.cN]")
_PARAMETERS: Final = re.compile(rb"\0{16}[^\0][\0-\x04]\0\0\x08", re.DOTALL)
_BLOCK: Final = re.compile(rb"\x0a[\x80-\xff]{0,4}[\0-\x7f]\x08\0\x10")
_EXPORTED: Final = re.compile(
    rb"[^/]+/(?:data/(?:weights|constants|sample_inputs|aotinductor)/|models/|archive_(?:format|version)$)|serialized_exported_program\.json$"
)
_TEXT_OF_A_PROGRAM: Final = re.compile(rb"block 0\r?\n")


def is_onnx(head: bytes) -> bool:
    """Tell whether it is a ModelProto: a small version of the format, then a graph, operator sets or the producer's name."""
    wire_types: dict[int, int] = {}
    try:
        for number, wire_type, _, _, _ in _leading(head):
            if number not in _ONNX_FIELDS or (wire_type == 0) is not (number in (1, 5)):
                return False
            wire_types.setdefault(number, wire_type)
    except FormatError:  # the rest is beyond the examined bytes, or damaged
        pass
    return head[:1] == b"\x08" and b"\0" < head[1:2] < b"\x20" and bool(wire_types.keys() & {2, 7, 8} or head[2:3] in (b"\x12", b"\x3a", b"\x42"))


def is_exported(head: bytes) -> bool:
    """Tell whether it is an exported program of torch (``.pt2``): a zip with a folder's first entry as torch.export writes them."""
    return head[:4] == b"PK\x03\x04" and _EXPORTED.match(head[30 : 30 + int.from_bytes(head[26:28], "little")]) is not None


def _leading(head: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    for count, field in enumerate(fields(head, 0, len(head), "")):
        if count == 32:
            return
        yield field


def _is_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 1 << 32


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if len(head) < _LOOKED_AT or error.start < _LOOKED_AT - 4:  # within a cut letter
            return False
        text = head[: error.start].decode()
    return all(c.isprintable() or c in "\t\n\r\f\u3000" for c in text)


def _begins(*starts: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(starts)


def _looks_like(*starts: bytes) -> Callable[[bytes], bool]:
    """Return a test for one of these words at the beginning, in any case, behind spaces."""
    return lambda head: head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(starts)


PROGRAM, PARAMETERS, SAFETENSORS, CHECKPOINT, ARRAY, JOB, JSON = "program", "parameters", "safetensors", "checkpoint", "array", "job", "JSON"
ONNX, EXPORTED = "ONNX", "exported program"

_KINDS: Final[tuple[tuple[str, Callable[[bytes], bool], str], ...]] = (
    (CHECKPOINT, lambda h: _is_safetensors(h) and b'"checksum":"' in h and b'"facts":' in h,
     "a checkpoint of fs.train: fs.train(checkpoint=folder) goes on from it, and fs.load_safetensors reads its values"),
    (SAFETENSORS, _is_safetensors, "a safetensors file: fs.load_safetensors puts its tensors into a scope, and foreshape convert makes parameters of them"),
    (ARRAY, _begins(b"\x93NUMPY"), "an array (.npy): numpy.load opens it, and foreshape run --feed takes it"),
    (JOB, _begins(b"foreshape job\n"), "a job for ranks on Ray: fs.Job.load opens it, and fs.send gives it to a cluster"),
    (PARAMETERS, lambda h: _PARAMETERS.match(h) is not None,
     "a file of parameters (.pdiparams): fs.load_inference_model opens it together with the program that it belongs to"),
    (PROGRAM, lambda h: _BLOCK.match(h) is not None, "a program (.pdmodel): fs.load_program opens it, and fs.load_inference_model with its parameters"),
    ("", lambda h: _TEXT_OF_A_PROGRAM.match(h) is not None, "a program as text: fs.Program.parse(text) opens it"),
    ("", _begins(b"version https://git-lfs.github.com/spec/", b"version https://hawser.github.com/spec/"),
     "a Git LFS pointer, which stands for a file that was not fetched: git lfs pull, in its repository, brings that"),
    ("", _looks_like(b"<!doctype html", b"<html", b"<!--"), "a page of HTML, as a server sends one in place of a file that it has not: fetch it again"),
    ("", _looks_like(b"<?xml", b"<error"), "XML, as a store sends it in place of a file that it has not: fetch it again"),
    ("", _begins(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*"), "an image: a network takes its pixels, as an array"),
    ("", _begins(b"%PDF-"), "a PDF document: nothing here opens it"),
    ("", _begins(b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe"), "a program of the machine: nothing here opens it"),
    ("", _begins(b"\xff\xfe", b"\xfe\xff"), "a text in UTF-16: nothing here opens it"),
    ("", lambda h: h.lstrip()[:1] == b"{" and re.search(rb'"magic"\s*:\s*"pir"', h) is not None,
     "a program of PaddlePaddle 3 (JSON): fs.load_program opens it, and fs.load_inference_model with its parameters"),
    (EXPORTED, is_exported, "an exported program of torch (.pt2): fs.load_inference_model opens it, and fs.load_program its program"),
    ("", lambda h: h[:4] == b"PK\x03\x04" and re.search(rb"/(?:data\.pkl|\.format_version|constants\.pkl)", h) is not None,
     "an archive of PyTorch: nothing here opens it, since it holds a pickle; safetensors.torch.save_file writes its tensors for fs.load_safetensors"),
    ("", lambda h: h[:4] == b"PK\x03\x04" and b".npy" in h[30:300],
     "a .npz archive of arrays: numpy.load opens it, and numpy.save writes each of them as a .npy file"),
    ("", _begins(b"PK\x03\x04", b"PK\x05\x06"), "a zip archive: unpack it first"),
    ("", _begins(b"\x1f\x8b"), "compressed (gzip): unpack it first"),
    ("", _begins(b"BZh"), "compressed (bzip2): unpack it first"),
    ("", _begins(b"\xfd7zXZ\0"), "compressed (xz): unpack it first"),
    ("", _begins(b"\x28\xb5\x2f\xfd"), "compressed (zstd): unpack it first"),
    ("", _begins(b"7z\xbc\xaf\x27\x1c"), "a 7z archive: unpack it first"),
    ("", lambda h: h[257:262] == b"ustar", "a tar archive: unpack it first"),
    ("", lambda h: _PICKLED.match(h) is not None,
     "a pickle, as PaddlePaddle's .pdparams and older files of PyTorch are: nothing here opens one, since it can run code"),
    ("", _begins(b"\x89HDF\r\n\x1a\n"), "an HDF5 file, as Keras writes: nothing here opens it"),
    ("", lambda h: h[4:8] == b"TFL3", "a TensorFlow Lite model: nothing here opens it"),
    ("", _begins(b"GGUF"), "a GGUF file: nothing here opens it"),
    (ONNX, is_onnx, "an ONNX model: fs.load_inference_model opens it, and fs.load_program its program"),
)  # fmt: skip
"""The format's name, if read here; its test; its description, and its reader. The first match counts."""


def instead_of(data: Any, *expected: str) -> str:
    """Describe the bytes of a refused file, and the call that opens them; empty if unknown.

    Args:
        data: bytes, or similar; a few at the beginning are examined.
        expected: the formats of the refusing reader, with better words of its own.
    """
    head = bytes(data[:_LOOKED_AT])
    if not head:
        return "it is empty"
    for name, fits, words in _KINDS:
        if fits(head):
            return "" if name and name in expected else f"it is {words}"
    if len(head) < _LEAST:
        return f"it has only {len(head)} byte{'s' * (len(head) > 1)}: it is cut off"
    if not _is_text(head):
        return ""
    kind = JSON if head.lstrip()[:1] in (b"{", b"[") else "a text"
    line = head[:200].decode(errors="ignore").split("\n", 1)[0]
    remark = ", and not as PaddlePaddle 3 writes a program" if kind == JSON and PROGRAM in expected else ""
    return "" if kind in expected else f"it is {kind}, which begins with {line[:_SHOWN]!r}{remark}"
