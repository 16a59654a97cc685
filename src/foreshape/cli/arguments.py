"""Arguments and options of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="A saved program: a .pdmodel, a .json of PaddlePaddle 3, an .onnx, torch's .pt2, or its folder.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--set", "--shape", metavar="NAME=SIZES", help="A shape of an input, as x=8,3,224,224, or one open size, as words=3000. May be repeated."),
]
Operators = Annotated[
    list[Path] | None, typer.Option("--operators", metavar="FILE.py", help="A module with operators of your own, imported first. May be repeated.")
]
FromTo = Annotated[
    list[str],
    typer.Argument(
        metavar="[FROM] TO",
        help="FROM: its parameters, if not beside it: a .pdiparams or .safetensors file, or a folder with a file for each. "
        "TO: a .pdmodel, .onnx, .py, .pt2, .pdiparams or .safetensors file, or a folder.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")]

Bandwidth = Annotated[str, typer.Option("--bandwidth", metavar="RATE", help="What a link of a rank carries, as 25Gb/s (bits) or 3GB/s (bytes).")]
Latency = Annotated[str, typer.Option("--latency", metavar="TIME", help="How long a message is under way, as 30us.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="FILE", help="A calibration, or rates as 150TFLOPS:2TB/s; this machine, if it was calibrated, where left out.")
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Of a calibrated machine, how many threads each rank has.")]
