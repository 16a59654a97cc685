"""The command ``embed`` on a cluster of Ray: texts read by Ray Data, vectors written by the workers, or in order into one file."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from foreshape.apps.embedding import Embedder
from foreshape.apps.embedding.ray_texts import VECTOR
from foreshape.errors import FormatError
from foreshape.machine.communication.ray_session import joined_ray, ray_package
from foreshape.runtime.feeding.ray_data import ROWS, RaySettings, plain_ray_errors


def embed_on_ray(address: str, embedder: Embedder, texts: str, column: str, out: Path, workers: int | None, threads: int, settings: Mapping[str, Any]) -> int:
    """Write the vectors of texts, and return their number.

    Args:
        address: of the cluster, or "local" for one on this machine.
        embedder: each worker opens it again.
        texts: a file, or a folder of files of one kind, or an address of them, as "s3://...".
        column, settings: of `Embedder.encode`.
        out: a file ``.npy``, or a new folder of Parquet files, which all machines see.
        workers, threads: the most workers, and the threads of each.
    """
    local, place = "://" not in texts, Path(texts)
    kind = next((f.suffix for f in sorted(place.iterdir())), "") if local and place.is_dir() else place.suffix
    if kind not in (".parquet", ".jsonl", ".csv", ".txt") or (local and not place.exists()):
        raise FormatError(f"texts for Ray are a file .parquet, .jsonl, .csv or .txt, or a folder of such files; {texts[:300]!r} is none")
    if out.suffix not in ("", ".npy") or (not out.suffix and out.exists()):
        seen = f"{str(out)[:300]!r}, which exists" if out.exists() else f"{str(out)[:300]!r}"
        raise FormatError(f"workers of Ray write a file .npy or a new folder; seen {seen}")
    joined_ray(address)
    data = ray_package("ray.data")
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # its errors end the command with words of their own
    data.DataContext.get_current().enable_progress_bars = sys.stderr.isatty()
    readers = {".parquet": data.read_parquet, ".csv": data.read_csv, ".jsonl": data.read_json, ".txt": partial(data.read_text, drop_empty_lines=False)}
    with plain_ray_errors():
        blocks = 16 * (workers or 4) if place.is_file() else None  # a file would be a single one, for a single worker
        dataset = readers[kind](os.path.abspath(texts) if local else texts, num_cpus=0, override_num_blocks=blocks)  # workers may have taken all processors
        vectors = embedder.encode(dataset, on=RaySettings(workers, threads), column=column, keep=[] if out.suffix else None, **settings)
        if out.suffix:
            return _write_array(vectors.iter_batches(batch_size=ROWS, batch_format="numpy"), settings["dims"] or embedder.width, out)
        vectors.write_parquet(os.path.abspath(out), ray_remote_args={"num_cpus": 0})
        return int(data.read_parquet(os.path.abspath(out)).count())


def _write_array(batches: Any, width: int, out: Path) -> int:
    import numpy

    count, part = 0, out.with_name(out.name + ".part")
    with open(part, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False}
        numpy.lib.format.write_array_header_1_0(file, {**header, "shape": (0, width)})  # has room for any number of rows
        for batch in batches:
            file.write(numpy.ascontiguousarray(batch[VECTOR], "<f4").data)
            count += len(batch[VECTOR])
        file.seek(0)
        numpy.lib.format.write_array_header_1_0(file, {**header, "shape": (count, width)})
    os.replace(part, out)
    return count
