"""A cluster of Ray on this machine, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of a cluster with two processors, joined by this process."""
    import ray
    import ray_cases  # marks the processes of these tests

    assert ray_cases.rank_processes() == []
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
