"""Trains cases with several strategies; run as a process, one per rank: ``python every_strategy.py OUT STRATEGY=CASE,CASE ...``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from support import rank_cases as cases


def main() -> None:
    out, *wanted = sys.argv[1:]
    found: dict[str, Any] = {}
    for one in wanted:
        strategy, _, names = one.partition("=")
        for name in names.split(","):
            for of in ("fp32", "fp64"):
                found |= {f"{strategy}/{name}/{of}/{key}": value for key, value in cases.run(name, of, strategy).items()}
    np.savez(f"{out}.{os.environ.get('RANK', '0')}", **found)


if __name__ == "__main__":
    main()
