"""``foreshape run``, and ``foreshape compile``. A compiled network is run without the imports of others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from foreshape.apps.cli.arrays import asked_for, read_feeds, write_results
from foreshape.apps.cli.command_options import RunOptions, refuse_changed
from foreshape.apps.cli.options import pairs_of
from foreshape.apps.cli.output import plain_errors, print_plain, printing
from foreshape.errors import SchemaError
from foreshape.interop.compiled_file import CompiledFile, open_compiled
from foreshape.interop.compiled_head import has_compiled_kernels


def run_network(file: Path, options: RunOptions) -> None:
    """Run a network of any kind.

    Raises:
        typer.BadParameter: an option does not apply to a compiled network.
    """
    feeds = pairs_of(options.feed, "--feed", "x=in.npy")
    if has_compiled_kernels(file):
        refuse_changed(
            options, ("params", "lengths", "operators", "profile", "why", "device"), "the network itself", "a compiled network takes --feed, --fetch and --out"
        )
        with plain_errors():
            _run_compiled(file, feeds, options.fetch, options.out)
        return
    with plain_errors():
        from foreshape.apps.cli.user_operators import import_operators

        import_operators(options.operators)
        from foreshape.interop import load_inference_model
        from foreshape.runtime.engine import Executor, Scope

        values = read_feeds(feeds, pairs_of(options.lengths, "--lengths", "x=[[3,1,2]]"))
        scope, executor, params = Scope(), Executor(options.device), options.params
        program, _, fetches = load_inference_model(os.fspath(file), executor, scope, None if params is None else os.fspath(params))
        names = list(options.fetch or [v.name for v in fetches])
        if not names:
            raise SchemaError("the file names no result: name one with --fetch")
        if options.why is not None:
            from foreshape.apps.cli.profile import print_fusion

            print_fusion(program, names, options.why)
            if not options.profile:
                return
        results = executor.run(program, values, names, scope)
        _write(options.out, names if options.fetch else [asked_for(v) for v in fetches], results)
        if options.profile:
            from foreshape.apps.cli.profile import print_profile

            print_profile(program, values, names, scope, options.device)


def _write(out: Path, names: Sequence[str], results: Sequence[Any]) -> None:
    with printing():
        for path, words in write_results(out, names, results):
            print_plain(f"{path}: {words}")


def _run_compiled(path: Path, feeds: Mapping[str, str], fetch: Sequence[str] | None, out: Path) -> None:
    """Run a compiled network.

    Args:
        feeds: input -> .npy file.
        fetch: the results to write; None for all.
        out: the folder for them.
    """
    file = CompiledFile(path)

    def itself() -> Any:
        from foreshape.interop.predictor import Predictor

        return Predictor(file.model, file.params).model

    model = open_compiled(file, itself)
    results = model.run(read_feeds(feeds, {}))
    names = {result: name for name, result in model.asked.items()}
    for name in fetch or ():
        if name not in results and name not in model.asked:
            raise SchemaError(f"{name!r} is no result of this compiled network; they are: {', '.join(model.fetches)}")
    selected = list(fetch) if fetch else [names.get(name, name) for name in model.fetches]
    _write(out, selected, [results[model.asked.get(name, name)] for name in selected])


def print_compiled(
    model: Path, params: Path | None, shapes: Sequence[str] | None, out: Path | None, threads: int | None, ragged: Mapping[str, Any] | None
) -> None:
    """Compile a network, and print the file and its size."""
    from foreshape.compiler.memory import byte_text
    from foreshape.interop.compiling import compile_model

    compiled = compile_model(model, _sizes(shapes), out=out, params=None if params is None else os.fspath(params), threads=threads, ragged=ragged)
    parts = [f"{' and '.join(map(str, compiled.kernels))} kernels" if compiled.kernels else "a program" if ragged is None else "texts without padding"]
    if compiled.difference is not None:
        equal = compiled.difference == 0.0
        parts.append("its results are equal to the network's, bit for bit" if equal else f"its results differ by {compiled.difference:.1g} at most")
    if compiled.reason:
        parts.append(f"it is run with torch, since {compiled.reason}")
    with printing():
        print_plain(f"{compiled.path}: {byte_text(compiled.nbytes)}, {'; '.join(parts)}")


def _sizes(shapes: Sequence[str] | None) -> list[dict[str, list[int]]]:
    """Return ``x=1,3,48,192`` as sizes of a network: an input given again begins another one."""
    from foreshape.apps.cli.options import sizes_of

    out: list[dict[str, list[int]]] = []
    for text in shapes or ():
        ((name, dims),) = sizes_of([text]).items()
        sizes = [n for n in dims if isinstance(n, int) and n > 0]
        if len(sizes) != len(dims):
            raise typer.BadParameter(f"{text!r} has a size that is no number above 0", param_hint="--shape")
        if not out or name in out[-1]:
            out.append({})
        out[-1][name] = sizes
    return out
