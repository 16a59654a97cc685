"""Cost: the time of a step before it runs. Kernels are measured once, calls predicted by kind and size, and steps of many ranks."""

from foreshape.compiler.cost.calibration import Calibration, default_path
from foreshape.compiler.cost.device import Roofline, device_of, step_time
from foreshape.compiler.cost.network import Network
from foreshape.compiler.cost.predict import StepTime, predict
from foreshape.compiler.cost.ranks_plan import PlannedCollective, RanksPlan, plan
from foreshape.compiler.cost.timeline import Timeline

__all__ = [
    "Calibration",
    "Network",
    "PlannedCollective",
    "RanksPlan",
    "Roofline",
    "StepTime",
    "Timeline",
    "default_path",
    "device_of",
    "plan",
    "predict",
    "step_time",
]
