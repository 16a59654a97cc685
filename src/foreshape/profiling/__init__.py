"""The profiler: the time of a step, kernel call by kernel call."""

from foreshape.profiling.profile_report import Profile
from foreshape.profiling.profiler import profile

__all__ = ["Profile", "profile"]
