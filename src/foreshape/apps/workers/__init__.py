"""Training on a cluster of Ray: a job is described and sent, ranks without the code of a model check, plan and train it, and lost ones begin again."""

from foreshape.apps.workers.client import Sent, send
from foreshape.apps.workers.describe import job
from foreshape.apps.workers.jobs import Job
from foreshape.apps.workers.train_on import RayCluster, ray_cluster

__all__ = ["Job", "RayCluster", "Sent", "job", "ray_cluster", "send"]
