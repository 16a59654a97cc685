"""Runs in the Python of onnxruntime: checks models of samples and computes them, one line of JSON each: ``[name, [complaint, ...]]``.

    python onnx_side.py SAMPLES.pickle [NAME ...]

The named samples are left out. Each line is written before the next sample begins, since some models end the process of the engine.
"""

from __future__ import annotations

import json
import pickle
import sys

import numpy as np
import onnx
import onnxruntime


def compared(got, want, exact):
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}"
    if not exact:
        return ""
    if want.dtype.kind == "f":
        with np.errstate(all="ignore"):
            good = np.allclose(got, want, 2e-4, 2e-5, equal_nan=True)
    else:
        good = np.array_equal(got, want)
    return "" if good else f"{got.ravel()[:6]}, wanted {want.ravel()[:6]}"


def complaints(sample):
    model, told = onnx.load_from_string(sample["model"]), []
    try:
        onnx.checker.check_model(model, full_check=True)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        told.append(f"onnx: {error}"[:400])
    for level in (onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level, options.intra_op_num_threads, options.log_severity_level = level, 1, 4
        try:
            session = onnxruntime.InferenceSession(sample["model"], options, providers=["CPUExecutionProvider"])
            names = {i.name for i in session.get_inputs()}
            got = session.run(list(sample["want"]), {k: v for k, v in sample["feed"].items() if k in names})
        except Exception as error:
            told.append(f"{level.name}: {error}"[:400])
            continue
        for (name, want), one in zip(sample["want"].items(), got, strict=True):
            if words := compared(np.asarray(one), want, sample["exact"]):
                told.append(f"{level.name}: {name}: {words}")
    return told


def main():
    onnxruntime.set_default_logger_severity(4)
    with open(sys.argv[1], "rb") as file:
        samples = pickle.load(file)
    for name, sample in samples.items():
        if name not in sys.argv[2:]:
            print(json.dumps([name, "begins"]), flush=True)
            print(json.dumps([name, complaints(sample)]), flush=True)


if __name__ == "__main__":
    main()
