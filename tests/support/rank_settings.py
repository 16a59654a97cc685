"""A rank whose training differs from the others': ``python rank_settings.py WHAT``; rank 1 is the one that does."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

SECOND = os.environ["RANK"] == "1"
DATA = {"x": np.arange(48, dtype="float32").reshape(12, 4), "y": np.ones((12, 1), "float32")}


def given(what: str) -> dict[str, Any]:
    """The arguments of `fs.train`, with one that is another on the second rank."""
    x, y = layer.data("x", input_size=4), layer.data("y", input_size=1)
    cost = layer.mse_loss(layer.fc(x, 1), y)
    rate = 0.2 if SECOND and what == "learning rate" else 0.1
    out: dict[str, Any] = {"cost": cost, "data": DATA, "optimizer": fs.optimizer.SGD(rate), "epochs": 2, "batch_size": 4}
    if SECOND and what != "nothing":
        out |= {
            "learning rate": {}, "seed": {"seed": 1}, "epochs": {"epochs": 3}, "batch_size": {"batch_size": 6}, "validation": {"validation": DATA},
            "metrics": {"metrics": {"again": layer.mean(cost)}}, "checkpoint": {"checkpoint": tempfile.mkdtemp()},
            "order": {"data": {name: array[::-1].copy() for name, array in DATA.items()}},
            "length": {"data": {name: array[:8] for name, array in DATA.items()}},
        }[what]  # fmt: skip
    return out


def main() -> None:
    arguments = given(sys.argv[1])
    try:
        fs.train(arguments.pop("cost"), arguments.pop("data"), **arguments, progress=False, ranks=fs.data_parallel(patience=20.0))
    except fs.RankError as error:
        print(f"REFUSED {error}", flush=True)
        raise SystemExit(3) from None
    print("TRAINED", flush=True)


if __name__ == "__main__":
    main()
