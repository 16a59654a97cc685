"""The profiler: where the time of a step goes, kernel call by kernel call."""

from foreshape.profiling.profile_report import Profile
from foreshape.profiling.profiler import profile

__all__ = ["Profile", "profile"]
