"""Ray is imported by what uses it alone, and named where it is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import foreshape as fs
from foreshape.machine.communication.ray_session import joined_ray, ray_package


def test_a_missing_ray_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for call in (ray_package, lambda: ray_package("ray.data"), lambda: joined_ray(None)):
        with pytest.raises(fs.ExecutionError, match=r"work on a cluster of Ray.*foreshape\[ray\]"):
            call()


def test_ray_is_not_imported_before_it_is_used() -> None:
    code = "import sys, foreshape as fs; fs.predict, fs.Embedder, fs.train; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
