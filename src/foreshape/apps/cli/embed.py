"""The command ``embed``: the vectors of a file of texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreshape.apps.cli.arguments import EmbedderRowScales
from foreshape.apps.cli.output import plain_errors, print_plain, printing

if TYPE_CHECKING:
    from foreshape.apps.embedding import Embedder
    from foreshape.apps.embedding.text_source import TextSource
    from foreshape.apps.embedding.vector_file import VectorFile


def embed(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A folder of sentence-transformers or transformers, or an .onnx file with its tokenizer beside it.")
    ],
    texts: Annotated[str, typer.Argument(metavar="TEXTS", help="A file .txt (a text a line), .jsonl or .parquet; - for lines of the standard input.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The vectors to write, .npy or .parquet: a row for each text.")],
    memory: Annotated[str | None, typer.Option("--memory", metavar="BYTES", help="The most memory of the process beyond Python and numpy, as 512MiB.")] = None,
    text_field: Annotated[
        str | None, typer.Option("--text-field", metavar="NAME", help="The field of .jsonl, or the column of .parquet. Default: text.")
    ] = None,
    skip_bad_lines: Annotated[bool, typer.Option("--skip-bad-lines", help="Leave out lines without a text; they are named and counted.")] = False,
    prompt_name: Annotated[str | None, typer.Option("--prompt-name", metavar="NAME", help="The model's prompt before each text, as document.")] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Make each vector as long as 1.")] = False,
    dims: Annotated[int | None, typer.Option("--dims", metavar="N", help="The first N columns alone.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, metavar="N", help="The threads of a kernel.")] = None,
    row_scales: EmbedderRowScales = False,
    ray: Annotated[
        str | None,
        typer.Option("--ray", metavar="ADDRESS", help="Embed on a cluster of Ray: auto, host:port, or local. --memory and --threads are each worker's."),
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="With --ray: the most workers. Default: all there is room for.")] = None,
) -> None:
    """Embed texts: write the vector of each text of a file. After a kill, the same command goes on where it stopped."""
    settings: dict[str, Any] = {"prompt_name": prompt_name, "normalize": normalize, "dims": dims}
    if (ray is None and workers is not None) or (ray is not None and (skip_bad_lines or texts == "-")):
        raise typer.BadParameter("--workers is for --ray, which reads no standard input and leaves no line out")
    with plain_errors():
        from foreshape.apps.embedding import Embedder
        from foreshape.apps.embedding.text_source import TextSource, refused
        from foreshape.apps.embedding.vector_file import VectorFile
        from foreshape.core.folders import require_writable
        from foreshape.core.values.torch_proxy import torch
        from foreshape.machine.kernels.onednn_library import library

        if ray is None or out.suffix:
            require_writable(os.fspath(out))
        if ray is not None:
            from foreshape.apps.cli.embed_on_ray import embed_on_ray

            embedder = Embedder(model, memory, threads, row_scales)
            count = embed_on_ray(ray, embedder, texts, text_field or "text", out, workers, threads or 1, settings)
            with printing():
                print_plain(f"{out}: {count} vectors of {dims or embedder.width} columns")
            return
        source = TextSource(texts, text_field)
        total, bad = source.survey() if source.again else (None, [])
        if bad and not skip_bad_lines:
            raise refused(texts, bad)
        if library() is None:
            torch.inference_mode  # says how to install torch, where it is missing, before the model is read  # noqa: B018
        embedder = Embedder(model, memory, threads, row_scales)
        if embedder.bound is not None:
            embedder.bound.take_process()
        command: dict[str, Any] = {
            "model": os.fspath(model.resolve()),
            "files": _sizes(model),
            "texts": texts,
            "field": source.field,
            "memory": memory,
            "threads": threads,
            "skipped": skip_bad_lines,
            **settings,
            **({"row_scales": True} if row_scales else {}),
        }
        with VectorFile(out, dims or embedder.width, command) as file:
            resumed = file.done
            count = _run(embedder, source, file, settings, skip_bad_lines, total, memory)
            file.finish()
        with printing():
            resumed_text = f", {resumed} of them from the run before" if resumed else ""
            skipped = f"; {count} bad line{'s' if count > 1 else ''} left out" if count else ""
            print_plain(f"{out}: {file.done} vectors of {file.width} columns{resumed_text}{skipped}")


def _run(embedder: Embedder, source: TextSource, file: VectorFile, settings: dict[str, Any], skip: bool, total: int | None, memory: str | None) -> int:
    """Write the vectors of all texts, and return the number of bad lines."""
    from rich.console import Console

    from foreshape.apps.embedding.embedder import text_progress
    from foreshape.apps.embedding.memory_bound import TextMemoryError
    from foreshape.apps.embedding.text_batches import windows
    from foreshape.apps.embedding.text_source import BadLine, refused

    bad = 0

    def texts() -> Iterator[str]:
        nonlocal bad
        for entry in source:
            if isinstance(entry, BadLine):
                if not skip:
                    raise refused(source.path, [entry])
                bad += 1
                if bad <= 20:
                    print(f"left out line {entry.number}: {entry.reason}", file=sys.stderr)
            elif not file.passed(entry):
                yield entry

    console = Console(stderr=True)
    with text_progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"within {memory}" if memory else "", total=total, completed=file.done)
        for window in windows(texts()):  # a continued run begins with one, so each batch is as in a run without a stop
            try:
                vectors = embedder.encode(window, **settings)
            except TextMemoryError as error:
                raise TextMemoryError(file.done + error.number, error.reason) from None
            file.append(window, vectors)
            progress.update(task, completed=file.done)
    return bad


def _sizes(model: Path) -> dict[str, int]:
    """Return the bytes of the model's files by name: another model in its place is another command."""
    files = [model] if model.is_file() else sorted(f for f in model.rglob("*") if f.is_file())
    return {f.name if model.is_file() else os.fspath(f.relative_to(model)): f.stat().st_size for f in files[:200]}
