"""Builds the package, looks at what is in it, installs it in environments of its own, and uses it from a folder of its own: `make wheel`.

The first has no extra: there networks are described and looked at, and running one says what to install. The second has ``run``: there a
network is trained, saved and used, and drawing says what to install. The third has ``train``, and draws.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SMOKE = Path(__file__).with_name("smoke.py")


def build(folder: Path) -> Path:
    """The wheel, made from the source distribution, as an installer would make it."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def look(wheel: Path) -> None:
    """In it is every file of the package, and beside them nothing but what tells of it."""
    package = SOURCE / "foreshape"
    wanted = {p.relative_to(SOURCE).as_posix() for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        about = {n for n in names if n.split("/")[0].endswith(".dist-info")}
        metadata = archive.read(next(n for n in about if n.endswith("/METADATA"))).decode()
    if names - about != wanted:
        sys.exit(f"the wheel lacks {sorted(wanted - names)}, and has {sorted(names - about - wanted)} besides")
    if not any(n.endswith("LICENSE") for n in about) or "Project-URL" in metadata:
        sys.exit("the wheel must have the licence, and no address")
    print(f"{wheel.name}: {len(wanted)} files, {wheel.stat().st_size:,} bytes")


def use(wheel: Path, extra: str) -> None:
    """Install the wheel in a fresh environment, and run `smoke.py` there, from a folder that has nothing else in it."""
    clean = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
        python = folder / "environment" / ("Scripts" if os.name == "nt" else "bin") / "python"
        given = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt"), f"{wheel}{extra}"]
        subprocess.run(given, check=True, env=clean)
        (folder / "work").mkdir()
        subprocess.run([str(python), "-I", str(SMOKE), extra], check=True, cwd=folder / "work", env=clean)


def main() -> None:
    """Everything, in order; an error ends it."""
    out = ROOT / "dist"
    for old in out.glob("foreshape-*"):
        old.unlink()
    wheel = build(out)
    look(wheel)
    for extra in ("", "[run]", "[train]"):
        use(wheel, extra)


if __name__ == "__main__":
    main()
