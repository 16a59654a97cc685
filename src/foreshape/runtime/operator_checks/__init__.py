"""Checks of operators by their samples: kernels, shape rules, gradients, files and texts. The package's own tests run them over all its operators."""

from foreshape.runtime.operator_checks.operator_report import OperatorReport, check_operator

__all__ = ["OperatorReport", "check_operator"]
