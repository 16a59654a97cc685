"""Attributes described by a layer and read from a file are the same objects: what is known of them is not asked again."""

from __future__ import annotations

import pytest

from foreshape.language.operator.attributes import exact
from foreshape.language.operator.bound_attributes import Attributes, _loaded_values
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import all_operators
from foreshape.language.program.scopes import placed

TYPES = {t: cls for t, cls in all_operators().items() if cls.__module__.startswith("foreshape.language.ops.") and not cls.abstract}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("letter", sorted({t[0] for t in TYPES}))
def test_described_attributes_are_those_of_a_file(letter: str) -> None:
    count = 0
    for type, cls in TYPES.items():
        for one in cls.__dict__.get("samples", ()) if type[0] == letter else ():
            made = cls.describe({n: v for n, v in one.arguments.items() if n in cls.schema.attributes})
            for attributes in (made, placed(made, "/encoder/0/")):
                assert attributes.keys == exact(attributes.entries), type
                assert Attributes.of(type, attributes.entries) is attributes, type
                assert bound_anew(cls, attributes) is attributes.operator, type
            assert placed(made, "/encoder/0/") is made or [e[0] for e in placed(made, "/a/").entries] == sorted({*made.values, "op_namescope"}), type
            count += 1
    assert count or letter not in {t[0] for t, cls in TYPES.items() if cls.__dict__.get("samples")}


def bound_anew(cls: type[Operator], attributes: Attributes) -> Operator | None:
    return None if attributes.error is not None else cls.with_values(_loaded_values(cls, attributes))
