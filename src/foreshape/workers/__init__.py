"""Workers: ranks that have no code of a model are given a saved program, check and plan it, and train it; and the client that sends it."""

from foreshape.workers.jobs import Job
from foreshape.workers.send import Sent, job, send

__all__ = ["Job", "Sent", "job", "send"]
