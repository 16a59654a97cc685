"""Measures of a whole set: counts and sums over batches and ranks, and a number made of them at the end.

>>> fs.evaluate({"f1": fs.metrics.F1(probabilities, label)}, validation)
"""

from typing import TYPE_CHECKING, Any

from foreshape.core.hints import no_such_name
from foreshape.metrics.boxes import MeanAveragePrecision
from foreshape.metrics.classes import F1, Accuracy, ConfusionMatrix, IoU, Precision, Recall, TopKAccuracy
from foreshape.metrics.curves import AUC
from foreshape.metrics.metric import Metric
from foreshape.metrics.regression import MAE, R2, RMSE, Perplexity

__all__ = ["AUC", "F1", "MAE", "R2", "RMSE", "Accuracy", "ConfusionMatrix", "IoU", "MeanAveragePrecision", "Metric", "Perplexity", "Precision", "Recall",
           "TopKAccuracy"]  # fmt: skip

_CALLED_ELSEWHERE = {
    **dict.fromkeys(("MeanIoU", "JaccardIndex", "mean_iou"), "metrics.IoU"),
    **dict.fromkeys(("AUROC", "AveragePrecision", "ROCAUC"), "metrics.AUC(score, label), with curve='PR' for the average precision"),
    **dict.fromkeys(("F1Score", "FBetaScore", "f1_score"), "metrics.F1"),
    **dict.fromkeys(("MeanSquaredError", "MSE"), "layer.mse_loss as a figure, or metrics.RMSE"),
    **dict.fromkeys(("MeanAbsoluteError",), "metrics.MAE"),
    **dict.fromkeys(("R2Score",), "metrics.R2"),
    **dict.fromkeys(("DetectionMAP", "MAP"), "metrics.MeanAveragePrecision"),
    "Mean": "nothing: a variable is a figure, and layer.mean of it is exact over a whole set",
}

if not TYPE_CHECKING:  # type checkers report a wrong name

    def __getattr__(name: str) -> Any:
        raise no_such_name(__name__, name, _CALLED_ELSEWHERE, __all__, "fs.metrics")
