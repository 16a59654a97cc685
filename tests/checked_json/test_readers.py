"""Readers of JSON: what each takes, and what an error says of everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foreshape.core.checked_json import readers
from foreshape.core.checked_json.bounded_json import parse
from foreshape.core.checked_json.readers import (
    Reader,
    any_text,
    anything,
    checksum,
    count,
    document,
    listing,
    mapping,
    number,
    of_format,
    one_of,
    optional,
    real,
    record,
    scalar,
    series,
    text,
    truth,
    tupled,
)
from foreshape.errors import FormatError

VALUES: list[Any] = [None, True, False, 0, 1, -1, 1.5, 2**60, float("nan"), float("inf"), "", "x", "a\0b", "f" * 64,
                     [], [1], ["x"], ["x", 2], {}, {"a": 1}, {"": 1}]  # fmt: skip


def together(*given: Any) -> list[Any]:
    return list(given)


TAKEN: dict[str, tuple[Reader[Any], list[Any], str]] = {
    "text": (text(), ["x", "f" * 64], "a text of 1 to 4096 characters, none of them 0"),
    "any_text": (any_text, ["", "x", "a\0b", "f" * 64], "a text"),
    "one_of": (one_of("x", "y"), ["x"], "'x' or 'y'"),
    "checksum": (checksum, ["f" * 64], "64 digits of a SHA-256"),
    "count": (count(1, 2**61), [1, 2**60], "a whole number from 1 to 2305843009213693952"),
    "number": (number, [0, 1, -1, 1.5, float("nan"), float("inf")], "a number"),
    "real": (real(), [0, 1, 1.5], " number"),
    "above": (real(1.5, above_zero=True), [1], " number"),
    "truth": (truth, [True, False], "true or false"),
    "scalar": (scalar, [v for v in VALUES if not isinstance(v, (list, dict))], "a number"),
    "anything": (anything, VALUES, ""),
    "optional": (optional(truth), [None, True, False], "true or false"),
    "listing": (listing(text(), 1), [[], ["x"]], "a "),
    "tupled": (tupled(count(), 5, 1), [[1]], "a "),
    "series": (series(together, anything, anything, or_first=0), [[], ["x", 2]], "a list of 0 or 2"),
    "mapping": (mapping(count()), [{}, {"a": 1}], "it"),
    "record": (record(dict, a=count()), [{"a": 1}], "an object of a"),
    "may_lack": (record(dict, "a", a=count()), [{"a": 1}, {}], "an object of a"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_a_reader_takes_what_it_says_and_refuses_all_else_in_words(name: str) -> None:
    read, taken, words = TAKEN[name]
    texts = {json.dumps(value) for value in taken}
    for value in VALUES:
        if json.dumps(value) in texts:
            out = read("it", value)
            assert out == value or json.dumps(out) == json.dumps(value)
            continue
        with pytest.raises(FormatError, match=r"must be|lacks|has '") as raised:
            read("it", value)
        assert str(raised.value).startswith(("it", "a name in it"))
        assert words in str(raised.value) or name in ("record", "may_lack"), raised.value


def test_every_reader_is_among_the_cases() -> None:
    made = {n for n, value in vars(readers).items() if callable(value) and getattr(value, "__module__", "") == readers.__name__ and n[0] != "_"}
    assert made - {"refuse", "of_format", "document"} <= TAKEN.keys()


POINT = record(complex, real=number, imag=number)
SCHEMA = document(dict[str, Any], "more", at=mapping(listing(POINT)), more=series(together, text(), count(), or_first=1))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"at": {"p": [{"real": 1, "imag": "2"}]}}, "at.p.imag must be a number; seen '2'"),
        ({"at": {"p": [{"real": 1}]}}, "at.p lacks 'imag'"),
        ({"at": {"p": [{"real": 1, "imag": 2, "other": 3}]}}, "at.p has 'other'"),
        ({"more": ["x"]}, "the file lacks 'at'"),
        ({"at": {}, "more": ["x", -1]}, "more must be a whole number from 0 to"),
        ({"at": {}, "x" * 500: 1}, f"the file has '{'x' * 100}'"),
        ([], "the file must be an object of at, more; seen '[]'"),
    ],
)
def test_an_error_says_where(given: Any, says: str) -> None:
    with pytest.raises(FormatError) as raised:
        SCHEMA("the file", given)
    assert str(raised.value).startswith(says)


def test_a_schema_makes_what_it_says() -> None:
    assert SCHEMA("the file", parse(b'{"at": {"p": [{"real": 1, "imag": 2}]}}')) == {"at": {"p": [1 + 2j]}}
    assert SCHEMA("the file", {"at": {}, "more": ["x", 3]}) == {"at": {}, "more": ["x", 3]}


@pytest.mark.parametrize("given", [{}, [], None])
def test_what_says_no_format_is_refused(given: Any) -> None:
    with pytest.raises(FormatError, match=r"^not a thing: it does not say its format, 1$"):
        of_format(given, 1, "a thing")


@pytest.mark.parametrize("given", [{"format": True}, {"format": 2}, {"format": "1"}])
def test_another_format_is_refused(given: Any) -> None:
    with pytest.raises(FormatError, match=r"^a thing of format .*; this version reads 1: make it again$"):
        of_format(given, 1, "a thing", ": make it again")


@pytest.mark.parametrize(("read", "given"), [(real(), -0.5), (real(), float("inf")), (real(1.5), 1.5), (real(above_zero=True), 0.0)])
def test_a_real_is_within_its_range(read: Reader[float], given: float) -> None:
    with pytest.raises(FormatError, match=f"it must be a finite number .*; seen '{given}'"):
        read("it", given)


def test_the_rest_of_a_format_is_left() -> None:
    assert of_format({"format": 1, "a": 2}, 1, "a thing") == {"a": 2}
