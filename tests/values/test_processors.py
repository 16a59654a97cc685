"""How many processors a process may use, read from trees of control groups that are made up, and from affinity masks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from foreshape.core.values.processors import groups, processors, quota

V2 = "35 24 0:30 {top} {at} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1 = "33 31 0:29 {top} {at} rw,relatime shared:9 - cgroup cgroup rw,{names}"


class Tree:
    """A system's files about control groups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/self/cgroup", "")
        self.write("proc/self/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw")

    def write(self, path: str, text: str) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", encoding="utf-8")

    def add(self, path: str, line: str) -> None:
        self.write(path, (self.root / path).read_text(encoding="utf-8") + line)

    def version_2(self, own: str, limits: dict[str, str], top: str = "/", at: str = "/sys/fs/cgroup") -> Tree:
        self.add("proc/self/cgroup", f"0::{own}")
        self.add("proc/self/mountinfo", V2.format(top=top, at=at.replace(" ", "\\040")))
        for folder, text in limits.items():
            self.write(f"{at}{folder}/cpu.max", text)
        return self

    def version_1(
        self, own: str, limits: dict[str, tuple[str, str]], top: str = "/", at: str = "/sys/fs/cgroup/cpu,cpuacct", names: str = "cpu,cpuacct"
    ) -> Tree:
        self.add("proc/self/cgroup", f"4:{names}:{own}")
        self.add("proc/self/mountinfo", V1.format(top=top, at=at, names=names))
        for folder, (time, period) in limits.items():
            self.write(f"{at}{folder}/cpu.cfs_quota_us", time)
            self.write(f"{at}{folder}/cpu.cfs_period_us", period)
        return self


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("text", "granted"),
    [
        ("max 100000", None), ("150000 100000", 1.5), ("50000 100000", 0.5), ("400000 50000", 8.0), ("100000", None), ("", None), ("0 100000", None),
        ("100000 0", None), ("-1 100000", None), ("1e5 100000", None), ("many 100000", None), ("100000 100000 1", None), ("9" * 5000 + " 1", None),
        ("\u0663 \u0661", None),
    ],
)  # fmt: skip
def test_what_one_group_grants(tree: Tree, text: str, granted: float | None) -> None:
    assert quota(tree.version_2("/", {"": text}).root) == granted


@pytest.mark.parametrize(
    ("time", "period", "granted"), [("-1", "100000", None), ("250000", "100000", 2.5), ("", "100000", None), ("100000", "", None), ("100000", "0", None)]
)
def test_what_one_group_of_version_1_grants(tree: Tree, time: str, period: str, granted: float | None) -> None:
    assert quota(tree.version_1("/", {"": (time, period)}).root) == granted


@pytest.mark.parametrize("strict", ["", "/a", "/a/b"])
def test_the_strictest_of_nested_groups_counts(tree: Tree, strict: str) -> None:
    limits = {folder: "100000 100000" if folder == strict else "300000 100000" for folder in ("", "/a", "/a/b")}
    limits["/other"] = limits["/a/b/inner"] = "1000 100000"  # those that this process is not in
    assert quota(tree.version_2("/a/b", limits).root) == 1.0


def test_both_versions_count_where_both_are_mounted(tree: Tree) -> None:
    tree.version_2("/user", {"/user": "max 100000"}, at="/sys/fs/cgroup/unified")
    tree.version_1("/batch", {"/batch": ("200000", "100000"), "": ("-1", "100000")})
    assert quota(tree.root) == 2.0


@pytest.mark.parametrize("own", ["/docker/4f5e", "/", "/../4f5e", "/elsewhere"])
def test_a_container_sees_its_own_group_as_the_top(tree: Tree, own: str) -> None:
    tree.version_1(own, {"": ("100000", "100000")}, top="/docker/4f5e")
    assert quota(tree.root) == 1.0


def test_a_mount_with_a_space_in_its_name(tree: Tree) -> None:
    assert quota(tree.version_2("/a", {"/a": "100000 100000"}, at="/my groups").root) == 1.0


def test_another_controllers_tree_is_not_read(tree: Tree) -> None:
    tree.version_1("/", {"": ("100000", "100000")}, at="/sys/fs/cgroup/cpuset", names="cpuset")
    assert quota(tree.root) is None
    assert list(groups("cpuset", tree.root)) == [tree.root / "sys/fs/cgroup/cpuset"]


@pytest.mark.parametrize("missing", ["proc/self/cgroup", "proc/self/mountinfo", "sys/fs/cgroup/a/cpu.max"])
def test_what_cannot_be_read_limits_nothing(tree: Tree, missing: str) -> None:
    tree.version_2("/a", {"/a": "100000 100000"})
    assert quota(tree.root) == 1.0
    (tree.root / missing).unlink()
    assert quota(tree.root) is None
    (tree.root / missing).mkdir()
    assert quota(tree.root) is None


@pytest.mark.parametrize("file", ["proc/self/cgroup", "proc/self/mountinfo", "sys/fs/cgroup/a/cpu.max"])
def test_bytes_of_any_kind_in_those_files_are_no_error(tree: Tree, file: str) -> None:
    tree.version_2("/a", {"/a": "100000 100000"})
    whole = (tree.root / file).read_bytes()
    for at in range(len(whole)):
        for new in (b"", b"\xff", b":", b"/", b"-", b" ", b"\n"):
            (tree.root / file).write_bytes(whole[:at] + new + whole[at + 1 :])
            assert quota(tree.root) is None or quota(tree.root) >= 0


@pytest.mark.parametrize(("granted", "number"), [(None, 4), (0.1, 1), (1.0, 1), (1.4, 1), (1.5, 2), (2.5, 3), (3.4, 3), (64.0, 4)])
def test_processors_are_those_of_the_mask_and_of_the_quota(monkeypatch: pytest.MonkeyPatch, granted: float | None, number: int) -> None:
    monkeypatch.setattr("foreshape.core.values.processors.allowed", lambda: 4)
    monkeypatch.setattr("foreshape.core.values.processors.quota", lambda: granted)
    assert processors.__wrapped__() == number


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
def test_the_affinity_mask_counts_not_the_machines_processors() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from foreshape.core.values.processors import allowed, processors\nprint(allowed(), processors())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "1"], done.stderr
