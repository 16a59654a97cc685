"""Asks an operator's rules for the specs of its results, keeps the answers and the guards, and words the errors."""

from foreshape.infer.guards import Guard, Guards
from foreshape.infer.messages import CallSite, describe_failure, origin_of
from foreshape.infer.rules import Answer, Key, answer, numbers

__all__ = ["Answer", "CallSite", "Guard", "Guards", "Key", "answer", "describe_failure", "numbers", "origin_of"]
