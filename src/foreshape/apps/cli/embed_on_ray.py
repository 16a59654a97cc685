"""The command ``embed`` on a cluster of Ray: files of texts read by Ray Data, their vectors written in order, or by each worker."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreshape.apps.embedding.ray_texts import VECTOR
from foreshape.errors import FormatError
from foreshape.machine.communication.ray_session import joined_ray, ray_package
from foreshape.runtime.feeding.ray_data import ROWS, RowWorkers, worker_errors

if TYPE_CHECKING:
    from foreshape.apps.embedding import Embedder
    from foreshape.apps.embedding.vector_file import VectorFile

_BLOCKS = 16
"""The blocks of a single file for each worker."""


class RayTexts:
    """Texts that workers of Ray embed.

    Args:
        address: of the cluster, or "local" for one on this machine.
        texts: a file ``.parquet``, ``.jsonl``, ``.csv`` or ``.txt`` (a text a line), or a folder of files of one kind, or an address of them, as "s3://...".
        column: of the texts; "text" by default.
        workers: their number; as many as there is room for by default.
        threads: of each.

    Raises:
        FormatError: another kind of file, or none. ExecutionError: no cluster.
    """

    def __init__(self, address: str, texts: str, column: str | None, workers: int | None, threads: int | None) -> None:
        self.column, self.workers = column or "text", RowWorkers(workers, threads or 1)
        local, place = "://" not in texts, Path(texts)
        files = [place] if place.is_file() else sorted(f for f in place.iterdir() if f.is_file()) if local and place.is_dir() else []
        if local and not files:
            raise FormatError(f"there is no file {texts[:300]}, and no folder of files")
        kinds = {f.suffix.lower() for f in files} or {Path(texts).suffix.lower()}
        joined_ray(address)
        data = ray_package("ray.data")
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors end the command with words of their own
        context = data.DataContext.get_current()
        context.enable_progress_bars, context.execution_options.preserve_order = sys.stderr.isatty(), True
        readers: dict[str, Callable[..., Any]] = {
            ".parquet": data.read_parquet,
            ".csv": data.read_csv,
            **dict.fromkeys((".jsonl", ".ndjson", ".json"), data.read_json),
            ".txt": partial(data.read_text, drop_empty_lines=False),
        }
        if len(kinds) > 1 or (kind := kinds.pop()) not in readers:
            raise FormatError(f"texts for Ray must be files .parquet, .jsonl, .csv or .txt, in a folder of one kind alone; seen {texts[:300]!r}")
        with worker_errors():
            blocks = _BLOCKS * (workers or 4) if len(files) == 1 else None
            self.dataset = readers[kind](os.path.abspath(texts) if local else texts, override_num_blocks=blocks)

    def vectors(self, embedder: Embedder, settings: dict[str, Any], keep: list[str] | None) -> Any:
        """Return the data set with the vectors, beside the columns of ``keep``."""
        number = "as many workers as there is room for" if self.workers.workers is None else f"{self.workers.workers} workers"
        bound = "without a bound of memory" if embedder.bound is None else f"each within {embedder.bound.size:,} bytes"
        print(f"{number}, of {self.workers.cpus:g} processors, {bound}", file=sys.stderr)
        return embedder.encode(self.dataset, on=self.workers, column=self.column, keep=keep, **settings)

    def write(self, embedder: Embedder, settings: dict[str, Any], file: VectorFile) -> None:
        """Write the vectors to a file in the order of the texts, a part at a time."""
        with worker_errors():
            if file.done:
                before, self.dataset = self.dataset.split_at_indices([file.done])
                for row in before.iter_rows():
                    file.passed(row[self.column])
            vectors = self.vectors(embedder, settings, [self.column])
            with closing(iter(vectors.iter_batches(batch_size=ROWS, batch_format="numpy"))) as batches:
                for batch in batches:
                    file.append([*batch[self.column]], batch[VECTOR])

    def write_folder(self, embedder: Embedder, settings: dict[str, Any], out: Path) -> int:
        """Let the workers write all columns and the vectors to a folder of Parquet files, which all machines see. Returns the number of rows."""
        if out.exists():
            raise FormatError(f"{out} is there already: the rows of a run before would stand beside the new ones")
        with worker_errors():
            # a write needs no processor of its own: the workers may have taken all
            self.vectors(embedder, settings, None).write_parquet(os.path.abspath(out), ray_remote_args={"num_cpus": 0})
            return int(ray_package("ray.data").read_parquet(os.path.abspath(out)).count())
