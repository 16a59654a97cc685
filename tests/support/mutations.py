"""From an operator's words about its operands and attributes to inputs that it must refuse: of other dims, dense for ragged ones, axes that are not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import SampleTensor

_DIMS = re.compile(r"(?:ragged (?:rows )?)?\[([^\[\]]*)\](.*)")
_OPEN = re.compile(r"\.\.\.|\*\w*")
_AXES = re.compile(r"(axis|axes|dim)$")
_NO_NUMBER = 97
_COUNTED = ("sequences", "images")
"""The words for a dim that counts the sequences of ragged operands."""


def words_of(doc: str) -> tuple[str, ...] | None:
    """The dims that a doc names, as ``[rows, 4]`` does; None for a doc that does not begin with them, or names several forms."""
    found = _DIMS.match(doc)
    return tuple(w.strip() for w in found[1].split(",") if w.strip()) if found and not re.search(r"\bor\b", doc) else None


def of_dims(given: SampleTensor, dims: tuple[int, ...]) -> SampleTensor:
    return replace(given, dims=dims, data=None)


def mutations(cls: type[Operator]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """What an operator must refuse: the name of the operand or attribute, why, and the arguments."""
    docs = {o.name: o.doc for o in cls.schema.operands}
    for name, doc in docs.items():
        for sample in cls.samples:
            given: Any = sample.arguments.get(name)
            one: Any = given[-1] if isinstance(given, (list, tuple)) and given else given
            if isinstance(one, SampleTensor):
                tensors = {n: v for n, v in sample.arguments.items() if n in docs and isinstance(v, SampleTensor)} | {name: one}
                for why, changed in _changed(name, doc, tensors, {n: words_of(docs[n]) for n in tensors}):
                    yield name, f"{doc!r}, {why}", {**sample.arguments, name: changed if one is given else [*given[:-1], changed]}
                break
    arguments = cls.samples[0].arguments
    for name, attribute in cls.schema.attributes.items():
        if name in ("dtype", "out_dtype") and attribute.type.name == "INT":
            yield name, "is no element type", {**arguments, name: _NO_NUMBER}
        elif _AXES.search(name) and not cls.per_element and attribute.type.name in ("INT", "LONG"):
            yield name, f"is {_NO_NUMBER}", {**arguments, name: _NO_NUMBER}
        elif _AXES.search(name) and attribute.type.name in ("INTS", "LONGS"):
            yield name, f"has {_NO_NUMBER}", {**arguments, name: [_NO_NUMBER]}
            if name in ("axis", "axes", "dim"):
                yield name, "has an axis twice", {**arguments, name: [0, 0]}


def _changed(name: str, doc: str, tensors: Mapping[str, SampleTensor], said: Mapping[str, tuple[str, ...] | None]) -> Iterator[tuple[str, SampleTensor]]:
    given, words = tensors[name], said[name]
    dims = given.dims
    either = re.search(r"; or (?:dense|\[.*\].*) with ", doc)
    if either and given.lengths:
        doc = doc[: either.start()]
        words = words_of(doc)
    if re.match(r"ragged\b|\[[^\]]*\], ragged", doc) and given.lengths and not re.search(r"\bor\b", doc):
        yield "dense", replace(given, lengths=())
    other = re.search(r"(?:^|, )(?:as|broadcast against) (\w+)(?:[,;:]|$)", doc)
    if other and other[1] in tensors and dims and dims[-1] > 1 and dims == tensors[other[1]].dims:
        yield "other dims", of_dims(given, (*dims[:-1], dims[-1] + 1))
        yield "more dims than the other", of_dims(given, (*dims, 2))
    if re.search(r"^(the )?number$|^one number\b(?! (of|for|or))|a tensor of one number$", doc) and dims in ((), (1,)):
        yield "two numbers", of_dims(given, (2,))
    if re.match(r"at least (one|two|three) dim", doc):
        yield "no dims", of_dims(given, ())
    form = re.search(r", or channels last$|, or the channels last by \w+$", doc)
    if form:
        words = words_of(doc[: form.start()])
    if words is None:
        return
    opening = [at for at, word in enumerate(words) if _OPEN.search(word)]
    if not opening:
        if len(words) != len(dims):
            return
        yield "a dim more", of_dims(given, (*dims, 2))
        if dims and (len(dims) > 1 or not given.lengths):
            yield "a dim less", of_dims(given, dims[:-1])
    elif (len(words) > 2 or (len(words) == 2 and words[0] == "...")) and not given.lengths:
        yield "too few dims", of_dims(given, dims[: len(words) - 2])
    if form or len(opening) > 1 or len(dims) < len(words) - len(opening):
        return
    places = dict(enumerate(words[: opening[0]] if opening else words)) | {at - len(words): w for at, w in enumerate(words) if opening and at > opening[0]}
    for at, word in places.items():
        at %= len(dims)
        shared = any(word in (of or ()) for n, of in said.items() if n != name) or words.count(word) > 1
        counted = word in _COUNTED and any(t.lengths for n, t in tensors.items() if n != name)
        if ((shared and word.isidentifier()) or word.isdigit() or counted) and not (at == 0 and given.lengths):
            yield f"another {word}", of_dims(given, (*dims[:at], dims[at] + 1, *dims[at + 1 :]))
