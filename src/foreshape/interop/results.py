"""Feeds and results of opened networks, by name and by place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from foreshape.errors import FeedError


def feed_of(names: Sequence[str], arrays: Sequence[Any]) -> dict[str, Any]:
    """Return arrays by the names of their inputs.

    Args:
        names: of the inputs, in order.
        arrays: an array for each input, in order; or one mapping, named tuple, table, or tuple of such arrays.

    Raises:
        FeedError: there are more arrays than inputs, or fewer.
    """
    if len(arrays) == 1:
        value: Any = arrays[0]
        if type(value).__name__ == "ndarray" and len(names) == 1:
            return {names[0]: value}
        if isinstance(value, Mapping):
            return dict(cast("Mapping[str, Any]", value))
        if hasattr(value, "_asdict"):
            return value._asdict()
        from foreshape.runtime.feeding.tables import table_of  # not awaited by arrays

        table = table_of(value)
        if table is not None:
            return dict(table)
        if isinstance(value, tuple) or (isinstance(value, list) and len(names) > 1):
            arrays = cast("Sequence[Any]", value)
    if len(arrays) != len(names):
        raise FeedError(f"the model has the inputs {', '.join(names)}: give one array for each, or a mapping of them; seen {len(arrays)}")
    return dict(zip(names, arrays, strict=True))


class Results(dict[str, Any]):
    """The results by their names in the model, in order: arrays, `LoDTensor` if ragged.

    A result is also found by its place, ``results[0]``. If the file has a copy of it under an automatic name, such as
    ``save_infer_model/scale_0.tmp_0``, its name at the saving finds it, too.
    """

    asked: Mapping[str, str]
    """Name when the model was saved -> name in the model."""

    def __init__(self, values: Mapping[str, Any] | Iterable[tuple[str, Any]], asked: Mapping[str, str]) -> None:
        super().__init__(values)
        self.asked = asked

    def __missing__(self, key: Any) -> Any:
        names = list(self)
        if isinstance(key, int) and not isinstance(key, bool) and -len(names) <= key < len(names):
            return self[names[key]]
        if isinstance(key, str) and key in self.asked:
            return self[self.asked[key]]
        listing = ", ".join([*names, *self.asked])
        raise KeyError(f"the model gives {len(names)} results, found by their place or as {listing}; seen {key!r}")
