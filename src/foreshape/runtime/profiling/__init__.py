"""The profiler: the time of a step, kernel call by kernel call."""

from foreshape.runtime.profiling.profile_report import Profile
from foreshape.runtime.profiling.profiler import profile

__all__ = ["Profile", "profile"]
