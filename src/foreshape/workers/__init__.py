"""Workers: ranks that have no code of a model are given a saved program, check and plan it, and train it; and the client that sends it."""

from foreshape.workers.client import Sent, job, send
from foreshape.workers.jobs import Job

__all__ = ["Job", "Sent", "job", "send"]
