"""The user's own operators, from a module named on the command line."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from foreshape.apps.cli.output import stop
from foreshape.apps.cli.script import words_of
from foreshape.language.operator import all_operators


def import_operators(files: Sequence[Path] | None) -> None:
    """Import modules whose `Operator` classes make themselves known; their folders are on ``sys.path`` meanwhile, as a script's is.

    Ends the command, with words, where a file is no Python, fails while it is imported, or has no operator in it.
    """
    for file in files or ():
        path = os.path.abspath(file)
        if not os.path.isfile(path) or not path.endswith(".py"):
            why = "there is no such file" if not os.path.exists(path) else "not a file that ends in .py"
            raise typer.BadParameter(f"{os.fspath(file)}: {why}", param_hint="--operators")
        _import(os.fspath(file), path)


def _import(title: str, path: str) -> None:
    name = os.path.basename(path).removesuffix(".py")
    loaded = sys.modules.get(name)
    if name in sys.builtin_module_names or (loaded is not None and os.path.abspath(getattr(loaded, "__file__", None) or "") != path):
        stop(f"{title}: a module named {name} is already imported: rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # of a file with the ending .py
    module = importlib.util.module_from_spec(spec)
    operators, search_path = all_operators(), list(sys.path)
    sys.path.insert(0, os.path.dirname(path))
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        sys.modules.pop(name, None)
        stop(f"{title} cannot be imported: {words_of(error, path)}")
    except SystemExit as leaving:
        sys.modules.pop(name, None)
        stop(f"{title} cannot be imported: it exits with {leaving.code}")
    finally:
        sys.path[:] = search_path
    if all_operators() == operators:
        stop(f"{title} defines no operator: a subclass of foreshape.Operator with a type")
