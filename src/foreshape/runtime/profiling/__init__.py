"""The profiler: the time of a step, kernel call by kernel call, and why an op has a call of its own."""

from foreshape.runtime.profiling.fusion_report import FusionAttempt, OpFusion, fusion_report
from foreshape.runtime.profiling.profile_report import Profile
from foreshape.runtime.profiling.profiler import profile

__all__ = ["FusionAttempt", "OpFusion", "Profile", "fusion_report", "profile"]
