"""Measures what is between the ranks; run as a process, one per rank: ``measured_link.py OUT``. What it finds goes into ``OUT.RANK.json``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from foreshape.compiler.cost.link import measure_link
from foreshape.machine.communication.join import join

if __name__ == "__main__":
    with join(60.0) as ranks:
        assert ranks.team is not None
        found = measure_link(ranks.team)
    Path(f"{sys.argv[1]}.{os.environ['RANK']}.json").write_text(json.dumps({**asdict(found.network), "slower": found.slower}))
