"""The results of a loaded network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Results(dict[str, Any]):
    """The results by their names in the model, in order: arrays, `LoDTensor` if ragged.

    A result is also found by its place, ``results[0]``. If the file has a copy of it under an automatic name, such as
    ``save_infer_model/scale_0.tmp_0``, its name at the saving finds it, too.
    """

    asked: Mapping[str, str]
    """Name when the model was saved -> name in the model."""

    def __init__(self, values: Mapping[str, Any], asked: Mapping[str, str]) -> None:
        super().__init__(values)
        self.asked = asked

    def __missing__(self, key: Any) -> Any:
        names = list(self)
        if isinstance(key, int) and not isinstance(key, bool) and -len(names) <= key < len(names):
            return self[names[key]]
        if isinstance(key, str) and key in self.asked:
            return self[self.asked[key]]
        known = ", ".join([*names, *self.asked])
        raise KeyError(f"the model gives {len(names)} results, found by their place or as {known}; seen {key!r}")
