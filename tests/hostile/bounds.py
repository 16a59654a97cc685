"""Files that are made to cost the most, each run in a process of its own that measures itself: `python bounds.py CASE`.

Prints JSON: how much memory, beyond what the package itself takes, one file needs to be loaded; how each of the stages ended (where it can be
loaded: infer, print, save, clone); and for files of a sixteenth, a quarter and the whole of the size the processor's time of each stage, and
how many calls the smallest took.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.counted import calls, spent
from support.messages import attr, block, dense, fixed32, message, number, op, program, relu, slot, text, var, varint

MIB = 2**20
SIZE = 16 * MIB
"""The bytes of a file, about; those of `CASES` are as large as it says when they are made."""
WHOLE = 16 * MIB
PARTS = (16, 4, 1)


def filled(unit: bytes, around: Callable[[bytes], bytes] = block) -> bytes:
    """A program of one block, in which ``unit`` is repeated."""
    return program(around(unit * (SIZE // len(unit))))


def numbered(unit: Callable[[int], bytes], less: int = 0) -> bytes:
    """As many different units as fit."""
    size = SIZE - less
    parts: list[bytes] = []
    total = at = 0
    while total < size - 64:
        part = unit(at)
        parts.append(part)
        total += len(part)
        at += 1
    return b"".join(parts)


def one_attribute(type_: int, element: bytes, size: int | None = None) -> bytes:
    size = SIZE if size is None else size
    return program(block(op("anything", [], [], attr("a", type_, element * (size // len(element))))))


def many(count: int) -> int:
    """So many, in a file of the whole size."""
    return count * SIZE // WHOLE


def chain(count: int) -> bytes:
    return program(block(var("v0", dense([-1, 4])), *(relu(f"v{k}", f"v{k + 1}") for k in range(count))))


def tower(count: int) -> bytes:
    """Blocks, each in the one before."""

    def inside(k: int) -> bytes:
        return op("while", [], [], attr("sub_block", 8, number(12, k + 1))) if k + 1 < count else b""

    return program(*(block(inside(k), idx=k, parent=k - 1) for k in range(count)))


def guards(count: int) -> bytes:
    """Each op makes two symbols equal, in the order that costs the most."""
    names = [f"v{count - k:07d}" for k in range(count + 1)]
    parts = [var(n, dense([-1, 4])) for n in names]
    parts += [op("sum", [("X", [a, b])], [("Out", [f"o{a}"])]) for a, b in itertools.pairwise(names)]
    return program(block(*parts))


CASES: dict[str, Callable[[], bytes]] = {
    "5-empty-ops": lambda: filled(b"\x22\x00"),
    "5-empty-variables": lambda: filled(b"\x1a\x00"),
    "5-one-byte-ops": lambda: filled(b"\x22\x01\x0a"),
    "5-smallest-ops": lambda: filled(op("a")),
    "5-different-small-ops": lambda: program(block(numbered(lambda k: op(f"{k:x}")))),
    "5-smallest-variables": lambda: program(block(numbered(lambda k: message(3, text(1, f"{k:x}") + message(2, number(1, 17)))))),
    "5-different-variables": lambda: program(block(numbered(lambda k: message(3, text(1, f"{k:x}") + message(2, dense([k])))))),
    "5-empty-blocks": lambda: b"\x0a\x00" * (SIZE // 2),
    "5-small-blocks": lambda: program(*(block(idx=k, parent=0 if k else -1) for k in range(SIZE // 16))),
    "5-slots": lambda: program(block(message(4, numbered(lambda k: message(1, slot(f"{k:x}", []))) + text(3, "a")))),
    "5-slots-in-many-ops": lambda: filled(message(4, b"".join(message(1, slot(f"{k:x}", [])) for k in range(50)) + text(3, "a"))),
    "5-empty-names-in-a-slot": lambda: program(block(message(4, message(1, slot("X", [""] * (SIZE // 2))) + text(3, "a")))),
    "5-tiny-names-in-a-slot": lambda: program(block(message(4, message(1, text(1, "X") + numbered(lambda k: text(2, f"{k:x}"))) + text(3, "a")))),
    "5-slots-after-the-type": lambda: program(block(message(4, text(3, "a") + numbered(lambda k: message(1, slot(f"{k:x}", ["a"])))))),
    "5-empty-attributes": lambda: program(block(op("a", [], [], b"\x22\x00" * (SIZE // 2)))),
    "5-small-attributes": lambda: program(block(op("a", [], [], numbered(lambda k: attr(f"{k:x}", 0, number(3, 1)))))),
    "5-small-attributes-in-many-ops": lambda: program(block(numbered(lambda k: op("a", [], [], *(attr(f"{k:x}{j:x}", 0, number(3, k)) for j in range(40)))))),
    "7-unknown-fields": lambda: filled(number(9, 1)),
    "7-unknown-fields-of-the-program": lambda: program(block()) + number(9, 1) * (SIZE // 2),
    "7-unknown-fields-of-an-op": lambda: program(block(op("a", [], [], number(99, 1) * (SIZE // 3)))),
    "7-unknown-fields-of-a-variable": lambda: program(block(message(3, text(1, "v") + message(2, dense([1])) + number(99, 1) * (SIZE // 3)))),
    "7-one-field-again-and-again": lambda: filled(number(1, 0)),
    "6-a-giant-name": lambda: program(block(var("n" * (SIZE - 64)))),
    "6-a-name-of-1-MiB-in-every-slot": lambda: program(block(*(relu("é" * 2**19 + str(k), "\U0001f600" * 2**18 + str(k)) for k in range(7)))),
    "6-wide-names": lambda: program(block(numbered(lambda k: var("a" * 2**19 + "\U0001f600" + str(k)), SIZE // 16))),
    "9-one-name-many-times": lambda: filled(relu("x", "x")),
    "10-attributes-that-repeat": lambda: filled(relu("x", "y") * 4),
    "12-a-chain": lambda: chain(many(100_000)),
    "12-an-op-with-many-inputs": lambda: program(
        block(*(var(f"v{k}", dense([3, 4])) for k in range(many(100_000))), op("sum", [("X", [f"v{k}" for k in range(many(100_000))])], [("Out", ["o"])]))
    ),
    "12-an-op-with-many-inputs-and-outputs": lambda: program(
        block(
            op("anything", [("X", [f"v{k}" for k in range(many(100_000))])], [("Out", [f"o{k}" for k in range(many(100_000))])]),
            *(var(f"o{k}") for k in range(many(100_000))),
        )
    ),
    "12-a-variable-with-many-readers": lambda: program(block(var("x"), *(relu("x", f"o{k}") for k in range(many(100_000))))),
    "8-a-tower-of-blocks": lambda: tower(many(10_000)),
    "8-a-tower-that-is-allowed": lambda: tower(60),
    "8-an-op-with-a-million-blocks": lambda: program(block(op("a", [], [], attr("b", 10, number(14, 1) * many(2**20)))), block(idx=1, parent=0)),
    "22-guards-in-a-chain": lambda: guards(many(30_000)),
    "15-strings": lambda: one_attribute(5, text(8, "")),
    "15-short-strings": lambda: one_attribute(5, text(8, "ab")),
    "15-integers": lambda: one_attribute(3, number(6, 1)),
    "15-packed-integers": lambda: program(block(op("anything", [], [], attr("a", 3, message(6, b"\x01" * SIZE))))),
    "15-large-packed-integers": lambda: program(block(op("anything", [], [], attr("a", 11, message(15, varint(1000) * (SIZE // 2)))))),
    "15-floats": lambda: one_attribute(4, fixed32(7, b"\x00\x00\x80\x3f")),
    "15-a-million-integers": lambda: one_attribute(3, number(6, 1), many(2 * 10**6)),
    "15-scalars": lambda: one_attribute(17, message(21, number(1, 2) + number(3, 7))),
    "15-integers-in-many-ops": lambda: program(block(numbered(lambda k: op("a", [], [], attr("a", 3, message(6, b"\x01" * 1900 + varint(k))))))),
    "17-dims": lambda: program(block(var("x", dense([1] * (SIZE // 2 - 64))))),
    "17-dims-in-many-variables": lambda: program(block(numbered(lambda k: var(f"{k}", dense([k] + [1] * 60))))),
}


def measured(name: str, whole: int) -> dict[str, object]:
    global SIZE
    from foreshape.language.operator.registry import all_operators
    from foreshape.language.wire import load_program

    all_operators()
    load_program(program(block(var("x"), relu("x", "y"), op("z"))))
    found: dict[str, object] = {}
    seconds: dict[str, list[float]] = {}
    counted: dict[str, int] = {}
    for part in PARTS:
        SIZE = whole // part
        data = CASES[name]()
        assert len(data) <= SIZE + 4 * MIB, len(data)
        if part == PARTS[0]:
            Stages(data, lambda what, do: counted.__setitem__(what, calls(do)))
            Stages(data, lambda what, do: do())  # what is made once is there
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before = resident()
        load_only(data)
        found["mib"] = round((peak() - before) / MIB)
        made = Stages(data, lambda what, do: seconds.setdefault(what, []).append(spent(do)))
        found |= {"bytes": len(data), "ended": made.ended}
    return found | {"seconds": seconds, "calls": counted}


def load_only(data: bytes) -> None:
    from foreshape.errors import ForeshapeError
    from foreshape.language.wire import load_program

    with contextlib.suppress(ForeshapeError):
        load_program(data)


class Stages:
    """What is done with a file, each by way of ``do``, and how it ended."""

    def __init__(self, data: bytes, do: Callable[[str, Callable[[], None]], object]) -> None:
        from foreshape.language.wire import load_program

        self.ended: dict[str, str] = {}
        self.program: Any = None
        self._do = do

        def load() -> None:
            self.program = load_program(data)

        self._stage("load", load)
        if self.program is not None:
            self._stage("infer", lambda: self.program.diagnose())
            self._stage("print", lambda: str(self.program))
            self._stage("save", lambda: self.program.to_bytes())
            self._stage("clone", lambda: self.program.clone())

    def _stage(self, what: str, job: Callable[[], object]) -> None:
        from foreshape.errors import ForeshapeError

        def run() -> None:
            try:
                job()
                self.ended[what] = "fine"
            except ForeshapeError as error:
                self.ended[what] = f"{type(error).__name__}: {str(error)[:200]}"

        self._do(what, run)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else WHOLE)))
