"""Arguments and options of several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

BANDWIDTH: Final = "25Gb/s"
LATENCY: Final = "30us"
_PROGRAM = "A saved program (.pdmodel, .json of PaddlePaddle 3, .onnx, or .pt2 of torch), or its folder"

File = Annotated[Path, typer.Argument(metavar="FILE", help=f"{_PROGRAM}.")]
FileOrFunction = Annotated[
    Path,
    typer.Argument(metavar="FILE", help=f"{_PROGRAM}; or package:function, a function that returns a module of torch and an example of its inputs."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help=f"{_PROGRAM}.")]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "--shape", metavar="NAME=SIZES", help="The shape of an input, as x=8,3,224,224, or the value of an open size, as words=3000. Can be repeated."
    ),
]
Operators = Annotated[
    list[Path] | None, typer.Option("--operators", metavar="FILE.py", help="A Python file with operators of your own, imported first. Can be repeated.")
]
Params = Annotated[
    Path | None, typer.Option("--params", metavar="PATH", help="The parameters, if they are not beside the program: a .pdiparams file, or a folder of files.")
]
FromTo = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="The file or folder to write: a .pdmodel, .onnx, .py, .pt2, .pdiparams or .safetensors file, or a folder. Of two paths, the first has "
        "the parameters: a .pdiparams or .safetensors file, or a folder with a file for each.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Also draw the result into a .png, .svg or .pdf file.")]

Ragged = Annotated[bool, typer.Option("--ragged", help="For a network of padded texts: prove that padding reaches no result, and take texts without it.")]
Mask = Annotated[
    str | None,
    typer.Option("--mask", metavar="NAME", help="With --ragged: the input with the mask or the lengths. Default: attention_mask. --mask= if there is none."),
]
PadId = Annotated[int | None, typer.Option("--pad-id", metavar="N", min=0, help="With --ragged: the id of padding, where the network compares ids with it.")]
Side = Annotated[str | None, typer.Option("--side", metavar="SIDE", help="With --ragged: the end of a text that is padded, left or right. Default: right.")]
Masked = Annotated[int | None, typer.Option("--masked", metavar="0|1", min=0, max=1, help="With --ragged: the number of padding in the mask. Default: 0.")]
_ROW_SCALES = "give each row a scale of its own where the file has DynamicQuantizeLinear, with one for all."
RowScales = Annotated[bool, typer.Option("--row-scales", help=f"With --ragged: {_ROW_SCALES}")]
EmbedderRowScales = Annotated[bool, typer.Option("--row-scales", help=f"For an embedder's .onnx file: {_ROW_SCALES}")]

Bandwidth = Annotated[str, typer.Option("--bandwidth", metavar="RATE", help="The bandwidth of each rank's link, as 25Gb/s (bits) or 3GB/s (bytes).")]
Latency = Annotated[str, typer.Option("--latency", metavar="TIME", help="The latency of a message, as 30us.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="FILE", help="A file of foreshape calibrate, or rates, as 150TFLOPS:2TB/s. Default: this machine's calibration, if there is one."
    ),
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="The number of threads of each rank, for a calibrated machine.")]
