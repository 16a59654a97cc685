"""What several ranks hold in parts becomes a network's files without being put together: the same bytes as of the whole values."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import launch_ranks as launch

SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from support import rank_cases as cases
import foreshape as fs
from foreshape.apps.training.checkpoint.divided import ShardedCheckpoint
_, _, out, strategy, name = sys.argv
ShardedCheckpoint.blocks.__defaults__ = (256,)
main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
with fs.program_guard(main, startup):
    cost, data, optimizer, settings = cases.EVERY[name](np.random.RandomState(5), "fp32")
    data = {n: cases.cast(v, "fp32") for n, v in data.items()}
    settings.pop("validation", None)
    fs.train(cost, data, optimizer=optimizer, epochs=1, progress=False, ranks=cases.STRATEGIES[strategy](), scope=scope, startup=startup,
             checkpoint=out + "/runs", **settings)
    if os.environ["RANK"] == "0":
        for to, values in (("whole", scope), ("parts", fs.Checkpoint(out + "/runs").values())):
            fs.save_inference_model(f"{out}/{to}", [n for n in data], [cost], scope=values)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "strategy", "name"),
    [(3, "split_tables and shard_parameters", "sparse_lazy_adam"), (2, "shard_parameters", "texts"), (4, "split_layers_2_all", "heads")],
)
def test_files_of_parts_are_those_of_the_whole(ranks: int, strategy: str, name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    launch.run(ranks, script, Path(__file__).parents[1], tmp_path, strategy, name)
    assert list((tmp_path / "runs").glob("*.part-*")), "the values were in parts"
    assert (tmp_path / "parts.pdiparams").read_bytes() == (tmp_path / "whole.pdiparams").read_bytes()
