"""Small models of ONNX, converted, give in PaddlePaddle 2.6.2 the results that ONNX's own tests want."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sides import paddle_python
from support.onnx_cases import cases

from foreshape.errors import ForeshapeError
from foreshape.interop.convert_models import convert_model

pytestmark = pytest.mark.paddle

RUN = """
import os, sys
import numpy as np
import paddle
paddle.enable_static()
folder = sys.argv[1]
executor = paddle.static.Executor(paddle.CPUPlace())
for name in sorted(f[:-8] for f in os.listdir(folder) if f.endswith(".pdmodel")):
    path = os.path.join(folder, name)
    child = os.fork()  # a kernel may end its process
    if child:
        os.waitpid(child, 0)
        continue
    try:
        open(path + ".pdiparams", "ab").close()
        program, feeds, fetches = paddle.static.load_inference_model(path, executor)
        given = np.load(path + ".npz")
        found = executor.run(program, feed={n: given[f"in{k}"] for k, n in enumerate(feeds)}, fetch_list=fetches)
        np.savez(path + ".found.npz", **{f"out{k}": np.asarray(v) for k, v in enumerate(found)})
    except BaseException as error:
        open(path + ".error", "w").write(str(error)[-1000:])
    os._exit(0)
"""

_WHY = {
    "no shifts there": "bitshift_left_int8 bitshift_left_int8_negative_shift bitshift_left_int32_overflow",
    "no attribute reverse there": "cumprod_1d_reverse",
    "more groups of offsets than output channels are refused there": "deform_conv_with_multiple_offset_groups",
    "of pixels equally near another is taken there": "gridsample_nearest_align_corners_1_additional_1",
    "halves are rounded away from 0 there": "round",
    "half precision has no kernels for processors there": "attention_4d_fp16 celu_float16 swiglu_float16 mod_float16_mixed_sign_fmod_0",
    "a reduction of nothing is refused there": "reduce_l1_empty_set reduce_l2_empty_set reduce_log_sum_empty_set reduce_log_sum_exp_empty_set "
    "reduce_prod_empty_set reduce_sum_square_empty_set",
}
WITHOUT = {f"test_{name}": why for why, names in _WHY.items() for name in names.split()} | {"variant_roialign_3": "a box upside down has points there"}
"""Cases without the wanted results there, and why; one that has them leaves this list."""


def test_converted_cases_give_the_wanted_results(tmp_path: Path) -> None:
    refused = set[str]()
    for name, case in cases().items():
        (tmp_path / "case.onnx").write_bytes(case["model"].tobytes())
        try:
            convert_model(tmp_path / "case.onnx", tmp_path / f"{name}.pdmodel")
        except ForeshapeError:
            refused.add(name)
            continue
        np.savez(tmp_path / f"{name}.npz", **case)
    subprocess.run([paddle_python(), "-c", RUN, str(tmp_path)], capture_output=True, timeout=1800, check=True)
    wrong: dict[str, str] = {}
    for name, case in cases().items():
        if name in refused or not case["out0"].size:
            continue
        found, error = (tmp_path / f"{name}{end}" for end in (".found.npz", ".error"))
        if not found.exists():
            wrong[name] = error.read_text() if error.exists() else "its process ended"
            continue
        relative, absolute = case["tolerance"]
        with np.load(found) as got:
            for key in got.files:
                same = got[key].dtype == case[key].dtype and got[key].shape == case[key].shape
                if not same or not np.allclose(got[key], case[key], rtol=max(relative, 1e-3), atol=max(absolute, 1e-5), equal_nan=True):
                    wrong[name] = f"{key}: {got[key].dtype}{list(got[key].shape)}"
    unknown = {name: words for name, words in wrong.items() if name not in WITHOUT}
    assert not unknown, json.dumps(unknown, indent=1)
    equal = WITHOUT.keys() - wrong.keys() - refused
    assert not equal, f"known as without the wanted results, and equal: {equal}"
    assert len(refused) < 0.05 * len(cases())
