"""safetensors files and .npy files whose headers say what is not, or what nobody can hold."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from support.crafted_checkpoints import WRONG, places, replaced, with_more, without

DIGITS = "9" * 5000


def safetensors(header: str | bytes, data: bytes = b"", size: int | None = None) -> bytes:
    """A file with this header, whatever it is."""
    text = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(text) if size is None else size) + text + data


GOOD: dict[str, Any] = {
    "__metadata__": {"made": "here"},
    "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "n": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
    "e": {"dtype": "BOOL", "shape": [0, 4], "data_offsets": [32, 32]},
}
DATA = bytes(range(32))


def one(shape: str, of: str = "F32", offsets: str = "[0,0]") -> str:
    return f'{{"w":{{"dtype":"{of}","shape":{shape},"data_offsets":{offsets}}}}}'


def many_tensors(count: int) -> bytes:
    return safetensors("{" + ",".join(f'"{k:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for k in range(count)) + "}")


LARGE: dict[str, Callable[[], bytes]] = {
    "rank-300000": lambda: safetensors(one("[" + "1," * 299_999 + "1]")),
    "rank-300000-of-twos": lambda: safetensors(one("[" + "2," * 299_999 + "2]")),
    "rank-65": lambda: safetensors(one("[" + "1," * 64 + "1]"), bytes(4)),
    "a-dim-of-5000-digits": lambda: safetensors(one(f"[{DIGITS}]")),
    "dims-of-4000-digits": lambda: safetensors(one(f"[{','.join(['9' * 4000] * 2000)}]")),
    "offsets-of-5000-digits": lambda: safetensors(one("[1]", offsets=f"[0,{DIGITS}]")),
    "a-dim-of-65-digits": lambda: safetensors(one(f"[{'1' * 65}]")),
    "a-dim-of-2-63": lambda: safetensors(one(f"[{2**63}, 0]")),
    "product-past-2-63-with-a-zero": lambda: safetensors(one(f"[{2**62}, 8, 0]")),
    "product-past-2-64-with-a-zero": lambda: safetensors(one(f"[0, {2**32}, {2**33}]")),
    "bytes-past-2-63-with-a-zero": lambda: safetensors(one(f"[{2**61}, 0]", "F64")),
    "product-past-2-63": lambda: safetensors(one(f"[{2**62}, 4]")),
    "a-million-of-arrays": lambda: safetensors("[" + "[]," * 999_999 + "[]]"),
    "a-million-of-objects": lambda: safetensors("{" + ",".join(f'"{k:x}":{{}}' for k in range(1_000_000)) + "}"),
    "a-million-of-keys": lambda: safetensors("{" + ",".join(f'"{k:x}":1' for k in range(1_000_000)) + "}"),
    "three-million-strings": lambda: safetensors("[" + '"",' * 2_999_999 + '""]'),
    "quotes-that-never-end": lambda: safetensors('{"' + '\\"' * 2_000_000),
    "nested-100000": lambda: safetensors("[" * 100_000),
    "nested-100000-objects": lambda: safetensors('{"a":' * 100_000),
    "many-tensors": lambda: many_tensors(100_001),
    "a-header-past-the-end": lambda: safetensors("{}", size=2**40),
    "a-header-of-2-64": lambda: safetensors("{}", size=2**64 - 1),
}
"""Headers that cost much where they are believed: each is refused, since a limit is passed."""


OTHER: dict[str, Callable[[], bytes]] = {
    "utf-16": lambda: safetensors(json.dumps(GOOD).encode("utf-16"), DATA),
    "utf-32": lambda: safetensors(json.dumps(GOOD).encode("utf-32"), DATA),
    "bom": lambda: safetensors(b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), DATA),
    "latin-1": lambda: safetensors('{"é":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'.encode("latin-1")),
    "a-name-twice": lambda: safetensors('{"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "a-key-twice": lambda: safetensors('{"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "a-surrogate-as-name": lambda: safetensors('{"a\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "a-surrogate-in-bytes": lambda: safetensors('{"a\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'),
    "a-surrogate-in-metadata": lambda: safetensors('{"__metadata__":{"a":"\\uDFFF"}}'),
    "floats-as-dims": lambda: safetensors(one("[1.0]", offsets="[0,4]"), bytes(4)),
    "exponents-as-dims": lambda: safetensors(one("[1e0]", offsets="[0,4]"), bytes(4)),
    "true-as-dim": lambda: safetensors(one("[true]", offsets="[0,4]"), bytes(4)),
    "minus-zero-offset": lambda: safetensors(one("[1]", offsets="[-1,3]"), bytes(4)),
    "two-of-one-place": lambda: safetensors(
        '{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', bytes(4)
    ),
    "a-hole": lambda: safetensors('{"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}', bytes(4)),
    "backwards": lambda: safetensors(one("[1]", offsets="[4,0]"), bytes(4)),
    "a-bool-of-2": lambda: safetensors(one("[2]", "BOOL", "[0,2]"), b"\x01\x02"),
    **{f"type-{word}": lambda word=word: safetensors(one("[0]", word)) for word in ("C64", "F8_E4M3", "f32", "", "F32 ", "U64", "\\u0000")},
    **{
        f"text-{text}": lambda text=text: safetensors(text)
        for text in (
            "",
            "{",
            "}",
            "null",
            "1",
            '"w"',
            "[]",
            "NaN",
            "{}x",
            "{}{}",
            '{"w":null}',
            '{"w":[]}',
            '{"w":{}}',
            '{"__metadata__":1}',
            '{"__metadata__":{"a":1}}',
        )
    },
}
"""Headers that are no header: each is refused."""


def wrong_headers() -> Iterator[tuple[str, bytes]]:
    """Every field of a header made wrong in every way: each is refused, or means what it says."""
    for at in places(GOOD):
        for name, value in WRONG.items():
            for what, header in ((name, replaced(GOOD, at, value)), (f"and-{name}", with_more(GOOD, at, value))):
                yield f"{'.'.join(map(str, at))}-{what}", safetensors(json.dumps(header), DATA)
        yield f"{'.'.join(map(str, at))}-missing", safetensors(json.dumps(without(GOOD, at)), DATA)


# --- .npy and .npz


def npy(header: str | bytes, data: bytes = b"", version: bytes = b"\x01\x00", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else header.encode("latin-1", "replace")
    length = len(text) if size is None else size
    return b"\x93NUMPY" + version + struct.pack("<H" if version[:1] == b"\x01" else "<I", length) + text + data


def npy_header(descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


VALUES = (
    "None", "True", "0", "-1", "1.5", "'x'", "b'x'", "()", "[]", "{}", "(1,)", "[1, 2]", "{1: 2}", "{1, 2}", "...", "1j", "1_0", "0x10",
    "'|O'", "'O'", "'<U4'", "'V8'", "'<M8[s]'", "'<i3'", "'<f16'", "'?'", "'f'", "'<f4,<i4'", "[('a', '<f4')]", "'(2,)f4'", "'\\ud800'", "'\x00'",
    "x", "f(1)", "__import__('os')", "1 +", "((", "lambda: 0", "2L", "(2L, 3L)", "\x00", "é", "'" + "i" * 500 + "'",
    "9" * 30, "9" * 5000, "-" * 3000 + "1", "(" * 3000, "[" * 90 + "]" * 90, "(" + "1," * 100 + ")", "(" + "1," * 4000 + ")",
    "(True, False)", "(2.0, 3.0)", "(-2, -3)", "(0, 0)", "(6,)", f"({2**62}, 8, 0)", f"({2**62},)", f"({2**40},)",
)  # fmt: skip
"""What may stand in a header, or not, in the form of a literal."""


def wrong_arrays() -> Iterator[tuple[str, bytes]]:
    """.npy files: every field of the header made wrong, every size; each is refused, or means what it says."""
    data = np.arange(6, dtype="<f4").tobytes()
    for value in VALUES:
        short = value[:40]
        for field in ("descr", "order", "shape"):
            yield f"{field}-{short}", npy(npy_header(**{field: value}), data)
            yield f"{field}-{short}-version-2", npy(npy_header(**{field: value}), data, b"\x02\x00")
        yield f"header-{short}", npy(value, data)
    for version in (b"\x00\x00", b"\x01\x01", b"\x02\x00", b"\x03\x00", b"\x04\x00", b"\xff\xff"):
        yield f"version-{version.hex()}", npy(npy_header(), data, version)
    for size in (0, 1, 10, 10_001, 65_535):
        yield f"header-of-{size}", npy(npy_header(), data, size=size)
        yield f"header-of-{size}-version-2", npy(npy_header(), data, b"\x02\x00", size)
    yield "header-of-2-32", npy(npy_header(), data, b"\x02\x00", 2**32 - 1)
    yield "a-long-header", npy(npy_header() + " " * 20_000, data)
    yield "a-bool-of-7", npy(npy_header("'|b1'", shape="(2,)"), b"\x01\x07")
    yield "twice-a-key", npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (6,)}", data)
    yield "a-key-more", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (6,), 'more': 1}", data)
    whole = npy(npy_header(), data)
    for end in range(len(whole)):
        yield f"cut-at-{end}", whole[:end]
    yield "one-byte-more", whole + b"\x00"


def archives() -> Iterator[tuple[str, bytes]]:
    """.npz files and what looks like them: each is refused before it is unpacked."""
    made = io.BytesIO()
    np.savez_compressed(made, a=np.zeros(1000), b=np.ones(3))
    whole = made.getvalue()
    yield "whole", whole
    for end in range(2, len(whole), 37):
        yield f"cut-at-{end}", whole[:end]
    for start in (b"PK\x03\x04", b"PK\x05\x06" + bytes(18), b"PK\x06\x06", b"PK"):
        yield f"begins-{start[:4].hex()}", start + bytes(40)
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.npy", npy(npy_header(shape=f"({2**22},)"), bytes(2**24)))
    yield "unpacks-to-a-thousand-times", bomb.getvalue()


def any_header(rng: random.Random) -> bytes:
    """A safetensors file whose header is one of these, or several at once."""
    header: Any = GOOD
    for _ in range(rng.choice((1, 1, 2, 4))):
        found = list(places(header)) if isinstance(header, dict) else []
        if not found:
            break
        at, value = rng.choice(found), rng.choice(list(WRONG.values()))
        header = rng.choice((replaced(header, at, value), with_more(header, at, value), without(header, at)))
    return safetensors(json.dumps(header), DATA)


def any_array(rng: random.Random) -> bytes:
    """A .npy file with fields of any kind."""
    fields = {name: rng.choice(VALUES) for name in rng.sample(("descr", "order", "shape"), rng.choice((1, 1, 2, 3)))}
    return npy(npy_header(**fields), rng.randbytes(rng.choice((0, 4, 24, 48))), rng.choice((b"\x01\x00", b"\x02\x00")))
