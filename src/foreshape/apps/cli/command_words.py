"""The group of commands, with hints for words of other tools."""

from __future__ import annotations

import os
from typing import Any, Final

from typer.core import TyperGroup

from foreshape.core.hints import near

_ELSEWHERE: Final[dict[str, str]] = {
    **dict.fromkeys(("profile", "profiler", "bench", "benchmark", "time"), "foreshape run FILE --feed NAME=FILE.npy --profile, or fs.profile in Python"),
    **dict.fromkeys(("summary", "summarize", "layers", "params", "parameters"), "foreshape show FILE --summary, or fs.summary in Python"),
    **dict.fromkeys(("info", "inspect", "print", "describe", "view", "display", "list", "ls", "cat", "dump", "stat", "structure"), "foreshape show FILE"),
    "tail": "foreshape show FILE --tail",
    **dict.fromkeys(("lint", "validate", "verify", "test", "errors", "infer-shape", "shapes"), "foreshape check FILE"),
    **dict.fromkeys(("html", "page", "draw", "plot", "visualize", "visualise", "graph", "netron", "explain"), "foreshape report FILE"),
    **dict.fromkeys(("memory", "mem", "size", "bytes", "peak", "batch-size", "largest-batch"), "foreshape plan FILE"),
    **dict.fromkeys(("forecast", "fit-on", "fits", "oom", "vram", "gpu", "gpu-memory"), "foreshape preflight PACKAGE:FUNCTION --device CARD"),
    **dict.fromkeys(("cost", "ranks", "strategy", "parallel"), "foreshape plan FILE --ranks N"),
    **dict.fromkeys(("measure", "device", "machine"), "foreshape calibrate"),
    **dict.fromkeys(
        ("predict", "infer", "inference", "eval", "evaluate", "execute", "forward"), "foreshape run FILE --feed NAME=FILE.npy, or fs.Predictor in Python"
    ),
    **dict.fromkeys(("optimize", "optimise", "build", "pack"), "foreshape compile FILE"),
    **dict.fromkeys(("export", "save", "onnx", "to-onnx", "to-torch", "to_onnx", "to_torch", "torch", "import", "translate"), "foreshape convert FILE TO"),
    **dict.fromkeys(("quantise", "int8", "compress"), "foreshape quantize MODEL --data PATH --out NAME"),
    **dict.fromkeys(("server", "start", "http", "deploy"), "foreshape serve MODEL"),
    **dict.fromkeys(("operators", "operator", "op"), "foreshape ops [WORD]"),
    **dict.fromkeys(("fit", "script", "python"), "foreshape train SCRIPT"),
    **dict.fromkeys(("launch", "distributed", "torchrun"), "torchrun --nproc-per-node N -m foreshape train SCRIPT"),
    **dict.fromkeys(("example", "tutorial", "quickstart", "init", "new"), "foreshape demo"),
    **dict.fromkeys(("generate", "chat", "write"), "foreshape serve MODEL, or fs.language_model in Python"),
    **dict.fromkeys(("finetune", "fine-tune", "lora"), "fs.lora and fs.train in Python"),
    "version": "foreshape --version",
    "help": "foreshape --help, or foreshape COMMAND --help",
    **dict.fromkeys(("completion", "completions"), "foreshape --install-completion"),
}
"""A word of other tools -> the command here. No command has one of these names."""


class CommandGroup(TyperGroup):
    """The commands, with a hint for every other word."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        word = args[0] if args else ""
        if word and not word.startswith("-") and word not in self.commands and not ctx.resilient_parsing:
            ctx.fail(f"there is no command {word!r}{hint_of(word, list(self.commands))}")
        return super().resolve_command(ctx, args)


def hint_of(word: str, commands: list[str]) -> str:
    """Return the end of the sentence about an unknown command: the likely command, or where the commands are listed."""
    lower = word.lower()
    if lower in _ELSEWHERE:
        return f"; use: {_ELSEWHERE[lower]}"
    if os.path.exists(word) or os.path.splitext(word)[1]:
        return f"; a file follows a command, as in: foreshape {'train' if lower.endswith('.py') else 'show'} {word}"
    close = near(word, commands)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    close = near(word, _ELSEWHERE)
    return f"; use: {_ELSEWHERE[close[0]]}" if close else "; foreshape --help lists the commands"
