"""The strategies for dividing a job, as JSON: each by its name and settings, one within the other for combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from foreshape.core.checked_json.readers import Reader, any_text, anything, count, listing, mapping, one_of, optional, real, record, text, truth
from foreshape.errors import SchemaError
from foreshape.language.program import Program
from foreshape.transforms.passes import DataParallel, ShardOptimizer, ShardParameters, SplitLayers, SplitTables

Strategy: TypeAlias = DataParallel | SplitTables | SplitLayers
WHOLE_MODELS: Final[dict[str, type[DataParallel]]] = {"data_parallel": DataParallel, "shard_optimizer": ShardOptimizer, "shard_parameters": ShardParameters}
"""The strategies that divide examples and keep or shard all parameters."""
TABLES: Final = "split_tables"
LAYERS: Final = "split_layers"
NAMES: Final = (*WHOLE_MODELS, TABLES, LAYERS)


def strategy_document(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy for JSON. Raise `SchemaError`: a strategy unknown to workers."""
    if isinstance(strategy, SplitLayers):
        rest = strategy_document(strategy.rest)
        return {"name": LAYERS, "rest": rest, "degree": strategy.degree, "layers": dict(strategy.layers), "choose": strategy.choose}
    if isinstance(strategy, SplitTables):
        return {"name": TABLES, "rest": strategy_document(strategy.rest), "tables": None if strategy.tables is None else list(strategy.tables)}
    for name, strategy_class in WHOLE_MODELS.items():
        if type(strategy) is strategy_class:
            return {"name": name, "bucket": strategy.bucket, "patience": strategy.patience, "synchronise_batch_norm": strategy.synchronise_batch_norm}
    raise SchemaError(f"workers know {', '.join(NAMES)}; seen {strategy!r}")


def with_layers(strategy: Strategy, program: Program) -> Strategy:
    """Return a strategy with the names of the layers marked for division: a program's file does not keep the marks."""
    if not isinstance(strategy, SplitLayers):
        return strategy
    marked = {n: s.split for n, s in program.parameter_settings.items() if s.split is not None and n in program.global_block.vars}
    return replace(strategy, layers=tuple((marked | dict(strategy.layers)).items()))


def _reader_by_name(makers: Mapping[str, Callable[[str, Any], Any]]) -> Reader[Any]:
    """Return a reader of a strategy with one of these names, each with a reader of its own."""

    def read(subject: str, value: Any) -> Any:
        name = one_of(*makers)(f"{subject}.name", mapping(anything, 100)(subject, value).get("name"))
        return makers[name](subject, value)

    return read


def _record(make: Callable[..., Any], **fields: Reader[Any]) -> Reader[Any]:
    """Return a reader of the settings beside a strategy's name."""

    def build(name: str, **settings: Any) -> Any:
        return make(**settings)

    return record(build, name=any_text, **fields)


def _split_tables(rest: DataParallel, tables: list[str] | None) -> SplitTables:
    return SplitTables(rest, None if tables is None else tuple(tables))


def _split_layers(rest: DataParallel | SplitTables, degree: int | None, layers: dict[str, str], choose: bool) -> SplitLayers:
    return SplitLayers(rest, degree, tuple(layers.items()), choose)


_MODELS = {name: _record(of, bucket=optional(count(1)), patience=real(above_zero=True), synchronise_batch_norm=truth) for name, of in WHOLE_MODELS.items()}
_TABLES = _MODELS | {TABLES: _record(_split_tables, rest=_reader_by_name(_MODELS), tables=optional(listing(text())))}
_LAYERS = _record(_split_layers, rest=_reader_by_name(_TABLES), degree=optional(count(1)), layers=mapping(one_of("columns", "rows")), choose=truth)
strategy_of = _reader_by_name(_TABLES | {LAYERS: _LAYERS})
"""A strategy from JSON, or a `FormatError`."""
