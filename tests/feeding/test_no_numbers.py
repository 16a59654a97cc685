"""What has no numbers is refused with what it is, and what to feed instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

DAYS = [datetime(2020, 1, n) for n in (1, 2, 3)]
PANDAS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dates": (lambda pd: pd.Series(DAYS), "its elements are dates, .* the days since the first"),
    "dates with a zone": (lambda pd: pd.Series(DAYS).dt.tz_localize("UTC"), "its elements are dates"),
    "durations": (lambda pd: pd.Series(DAYS) - DAYS[0], "its elements are durations, .* divide them"),
    "texts": (lambda pd: pd.Series(["a", "b", "a"]), "its elements are texts: give each a number, as pandas.factorize"),
    "texts as objects": (lambda pd: pd.Series(["a", "b", "a"], dtype=object), "its elements are texts"),
    "decimals": (lambda pd: pd.Series([Decimal("1.5")] * 3), r"decimals of Python: convert them with .astype\('float64'\)"),
    "categories": (lambda pd: pd.Series(["a", "b", "a"], dtype="category"), "feed its .cat.codes"),
    "nothing there": (lambda pd: pd.Series([1, None, 3], dtype="Int64"), "1 of the 3 values of the column are missing"),
    "among numbers": (lambda pd: pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": DAYS}), "column 'b': .* must be of numbers; seen datetime64"),
}
POLARS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dates": (lambda pl: pl.Series([date(2020, 1, 1)] * 3), "its elements are dates"),
    "categories": (lambda pl: pl.Series(["a", "b", "a"], dtype=pl.Categorical), r"feed its .to_physical\(\)"),
    "named categories": (lambda pl: pl.Series(["a", "b", "a"], dtype=pl.Enum(["a", "b"])), r"feed its .to_physical\(\)"),
    "structs": (lambda pl: pl.Series([{"a": 1}] * 3), r"feed .struct.unnest\(\)"),
    "decimals": (lambda pl: pl.Series([Decimal("1.5")] * 3), r".cast\(polars.Float64\)"),
    "among numbers": (lambda pl: pl.DataFrame({"a": [1.0, 2.0, 3.0], "b": DAYS}), "column 'b': .* must be of numbers; seen Datetime"),
}
ARROW: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dates": (lambda pa: pa.array(DAYS), "datetime64.*, Arrow's timestamp"),
    "texts": (lambda pa: pa.array(["a", "b"]), "Arrow's string"),
    "categories": (lambda pa: pa.array(["a", "b", "a"]).dictionary_encode(), "feed its .indices"),
}
PLAIN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dates": (lambda np: np.array(DAYS, "datetime64[s]"), "its elements are dates"),
    "a list of dates": (lambda np: DAYS, "its elements are dates"),
    "durations": (lambda np: [timedelta(1)] * 3, "its elements are durations"),
    "texts": (lambda np: ["a", "b"], "its elements are texts"),
    "objects": (lambda np: np.array([object()] * 3), r"its elements are objects \(object\)"),
}
TORCH: dict[str, tuple[Callable[[Any], Any], str]] = {"sparse": (lambda torch: torch.eye(3).to_sparse(), "a sparse tensor has no number for each element")}
LIBRARIES = {"pandas": PANDAS, "polars": POLARS, "pyarrow": ARROW, "numpy": PLAIN, "torch": TORCH}


@pytest.mark.parametrize(("library", "name"), [(library, name) for library, cases in LIBRARIES.items() for name in cases])
def test_what_has_no_numbers_says_what_it_is(library: str, name: str) -> None:
    module: Any = pytest.importorskip(library)
    made, words = LIBRARIES[library][name]
    given = made(module)
    x = layer.data("x", shape=["batch", 2 if name == "among numbers" else 1])
    for feed in (lambda: fs.Executor().run(feed={"x": given}, fetch=[layer.scale(x)]), lambda: fs.predict(layer.scale(x), {"x": given})):
        with pytest.raises(fs.FeedError, match=words):
            feed()


def test_what_is_said_to_feed_can_be_fed() -> None:
    pd: Any = pytest.importorskip("pandas")
    number, days = layer.data("number", shape=["batch", 1], dtype="int64"), layer.data("days", 1)
    texts, dates = pd.Series(["a", "b", "a"]), pd.Series(DAYS)
    for codes in (pd.factorize(texts)[0], texts.astype("category").cat.codes):
        assert fs.predict(number + 0, {"number": codes}).tolist() == [[0], [1], [0]]
    assert fs.predict(days + 0.0, {"days": (dates - dates.min()) / np.timedelta64(1, "D")}).tolist() == [[0.0], [1.0], [2.0]]
    pl: Any = pytest.importorskip("polars")
    assert fs.predict(number + 0, {"number": pl.Series(["a", "b", "a"], dtype=pl.Categorical).to_physical()}).shape == (3, 1)
