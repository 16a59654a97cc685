"""The strategies that a job may be divided by, as JSON: each by its name and settings, one within the other where they are combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeAlias

from foreshape.errors import FormatError, SchemaError
from foreshape.passes import DataParallel, ShardOptimizer, ShardParameters, SplitLayers, SplitTables
from foreshape.program import Program
from foreshape.workers.fields import count, listing, mapping, one_of, optional, record, text, truth

Strategy: TypeAlias = DataParallel | SplitTables | SplitLayers
WHOLE_MODELS: Final[dict[str, type[DataParallel]]] = {
    "data_parallel": DataParallel, "shard_optimizer": ShardOptimizer, "shard_parameters": ShardParameters,
}  # fmt: skip
"""Those that divide examples, and what is of all parameters."""
TABLES: Final = "split_tables"
LAYERS: Final = "split_layers"
NAMES: Final = (*WHOLE_MODELS, TABLES, LAYERS)


def strategy_document(strategy: Strategy) -> dict[str, Any]:
    """A strategy for JSON. How long ranks wait for one another is the workers' own business.

    Raises:
        SchemaError: one that workers do not know.
    """
    if isinstance(strategy, SplitLayers):
        rest = strategy_document(strategy.rest)
        return {"name": LAYERS, "rest": rest, "degree": strategy.degree, "layers": dict(strategy.layers), "choose": strategy.choose}
    if isinstance(strategy, SplitTables):
        return {"name": TABLES, "rest": strategy_document(strategy.rest), "tables": None if strategy.tables is None else list(strategy.tables)}
    for name, of in WHOLE_MODELS.items():
        if type(strategy) is of:
            return {"name": name, "bucket": strategy.bucket, "synchronise_batch_norm": strategy.synchronise_batch_norm}
    raise SchemaError(f"workers know {', '.join(NAMES)}; seen {strategy!r}")


def strategy_of(given: Any) -> Strategy:
    """A strategy from JSON. Raises `FormatError` where it is none."""
    name = _name("strategy", given, NAMES)
    if name != LAYERS:
        return _of_tables("strategy", given)
    found = record("strategy", given, ("name", "rest", "degree", "layers", "choose"))
    rest = _of_tables("strategy.rest", found["rest"])
    layers = mapping(one_of("columns", "rows"))("strategy.layers", found["layers"])
    return SplitLayers(rest, optional(count(1))("strategy.degree", found["degree"]), tuple(layers.items()), truth("strategy.choose", found["choose"]))


def patient(strategy: Strategy, patience: float) -> Strategy:
    """A strategy whose ranks wait so long for one another."""
    if isinstance(strategy, SplitLayers):
        rest = patient(strategy.rest, patience)
        assert not isinstance(rest, SplitLayers)
        return replace(strategy, rest=rest)
    if isinstance(strategy, SplitTables):
        return replace(strategy, rest=replace(strategy.rest, patience=patience))
    return replace(strategy, patience=patience)


def with_layers(strategy: Strategy, program: Program) -> Strategy:
    """A strategy that names the layers which say that they are to be divided: a file of a program does not."""
    if not isinstance(strategy, SplitLayers):
        return strategy
    said = {n: s.split for n, s in program.parameter_settings.items() if s.split is not None and n in program.global_block.vars}
    return replace(strategy, layers=tuple((said | dict(strategy.layers)).items()))


def _name(what: str, given: Any, names: tuple[str, ...]) -> str:
    return one_of(*names)(f"{what}.name", mapping(_anything, 100)(what, given).get("name"))


def _of_tables(what: str, given: Any) -> DataParallel | SplitTables:
    if _name(what, given, (*WHOLE_MODELS, TABLES)) != TABLES:
        return _of_model(what, given)
    found = record(what, given, ("name", "rest", "tables"))
    rest = _of_model(f"{what}.rest", found["rest"])
    tables = optional(listing(text()))(f"{what}.tables", found["tables"])
    return SplitTables(rest, None if tables is None else tuple(tables))


def _of_model(what: str, given: Any) -> DataParallel:
    name = _name(what, given, tuple(WHOLE_MODELS))
    found: Mapping[str, Any] = record(what, given, ("name", "bucket", "synchronise_batch_norm"))
    synchronise = found["synchronise_batch_norm"]
    if type(synchronise) is not bool:
        raise FormatError(f"{what}.synchronise_batch_norm must be true or false; seen {str(synchronise)[:50]}")
    return WHOLE_MODELS[name](bucket=optional(count(1))(f"{what}.bucket", found["bucket"]), synchronise_batch_norm=synchronise)


def _anything(what: str, given: Any) -> Any:
    return given
