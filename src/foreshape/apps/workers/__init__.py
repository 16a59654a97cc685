"""Workers: ranks without the code of a model that check, plan and train a saved program; and the client that sends it."""

from foreshape.apps.workers.client import Sent, job, send
from foreshape.apps.workers.jobs import Job

__all__ = ["Job", "Sent", "job", "send"]
