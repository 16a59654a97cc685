"""Inference: the specs of results from operators' rules, with kept answers, guards, and errors in words."""

from foreshape.language.infer.rules import Answer, Key, answer, numbers
from foreshape.language.program.guards import Guard, Guards
from foreshape.language.program.messages import CallSite, describe_failure, origin_of

__all__ = ["Answer", "CallSite", "Guard", "Guards", "Key", "answer", "describe_failure", "numbers", "origin_of"]
