"""The counts of words and names that `make check` compares with budgets."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import words

PAGE = """# A heading of some words

One sentence with `some code (x)` and a [link](page.md#part). A second one, which is short!

```python
a block
```
- A point of a list: {long}.

| a | table |
"""


def test_sentences_are_those_of_prose() -> None:
    found = list(words.sentences(PAGE.format(long="word " * 25 + "end")))
    assert found[:2] == ["One sentence with Code and a link.", "A second one, which is short!"] and len(found) == 3
    assert [one.split()[0] for one in words.long_sentences(PAGE.format(long="word " * 25 + "end"))] == ["A"]
    assert words.long_sentences(PAGE.format(long="word " * 19)) == []
    assert words.pointing_share(["What that is, which", "none of these"]) == 3 / 7 * 100


def test_docstrings_are_those_of_modules_classes_functions_and_attributes() -> None:
    source = '"""Of a module."""\nx = 1\n"""An attribute."""\nclass A:\n    """What it is."""\n'
    source += '    def f(self):\n        """Whether so."""\n        "no docstring"\n'
    tree = ast.parse(source)
    found = list(words.docstrings(tree))
    assert sorted(found) == ["An attribute.", "Of a module.", "What it is.", "Whether so."]
    assert [words.opens_badly(text) for text in sorted(found)] == [False, True, True, True]


def test_names_that_stand_twice_are_found() -> None:
    assert words.repeated([("a", "x"), ("b", "x"), ("a", "y")]) == {"a": ["x", "y"]}


def test_a_count_above_its_budget_fails_and_one_below_asks_for_less() -> None:
    told: list[str] = []
    assert words.compare({"a": 3.0, "b": 1.04, "c": 2.0}, {"a": 2.0, "b": 1.0, "c": 2.5}, told.append) == {"a": 3.0}
    assert told[0].startswith("a: 3, and the budget is 2") and told[1].startswith("c: 2, below the budget of 2.5") and len(told) == 2
