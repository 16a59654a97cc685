"""Whole transformers in one operator, and the loss of transducers: against what they are made of."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from test_fused import attention, close, computed, norm, normal

import foreshape as fs
from foreshape.core.spec import tensor

BATCH, STEPS, WIDTH, HEADS, NUMBERS, INNER = 2, 4, 8, 2, 3, 5


def layers(count: int) -> dict[str, list[np.ndarray]]:
    dims = {
        "LnScale": (WIDTH,), "LnBias": (WIDTH,), "QKVW": (3, HEADS, NUMBERS, WIDTH), "QKVBias": (3, HEADS, NUMBERS), "OutLinearW": (HEADS * NUMBERS, WIDTH),
        "OutLinearBias": (WIDTH,), "FFNLnScale": (WIDTH,), "FFNLnBias": (WIDTH,), "FFN1Weight": (WIDTH, INNER), "FFN1Bias": (INNER,),
        "FFN2Weight": (INNER, WIDTH), "FFN2Bias": (WIDTH,),
    }  # fmt: skip
    return {slot: [normal(*of) for _ in range(count)] for slot, of in dims.items()}


def by_hand(x: np.ndarray, of: dict[str, Any], mask: np.ndarray, before: bool) -> np.ndarray:
    for at in range(len(of["QKVW"])):
        now = {slot: value[at] for slot, value in of.items()}
        inner = norm(x, now["LnScale"], now["LnBias"]) if before else x
        parts = np.einsum("bsw,phnw->pbhsn", inner, now["QKVW"]) + now["QKVBias"][:, None, :, None]
        x = x + attention(*parts, NUMBERS**-0.5, mask) @ now["OutLinearW"] + now["OutLinearBias"]
        x = x if before else norm(x, now["LnScale"], now["LnBias"])
        inner = norm(x, now["FFNLnScale"], now["FFNLnBias"]) if before else x
        x = x + np.maximum(inner @ now["FFN1Weight"] + now["FFN1Bias"], 0) @ now["FFN2Weight"] + now["FFN2Bias"]
        x = x if before else norm(x, now["FFNLnScale"], now["FFNLnBias"])
    return x


def test_layers_in_one_operator_are_the_layers_one_by_one() -> None:
    x, of = normal(BATCH, STEPS, WIDTH), layers(2)
    mask = np.triu(np.full((STEPS, STEPS), -1e4, "float32"), 1)[None, None]
    for before in (True, False):
        attrs = {"is_test": True, "act_method": "relu", "pre_layer_norm": before, "dropout_implementation": "upscale_in_train"}
        close(computed("fused_multi_transformer", {"X": x, "SrcMask": mask, **of}, attrs), by_hand(x, of, mask, before))
    turned = {**of, "QKVW": [np.ascontiguousarray(w.transpose(3, 0, 1, 2)) for w in of["QKVW"]]}
    close(computed("fused_multi_transformer", {"X": x, "SrcMask": mask, **turned}, {**attrs, "trans_qkvw": False}), by_hand(x, of, mask, False))


def test_a_step_after_others_sees_their_keys_and_values() -> None:
    x, of = normal(BATCH, STEPS, WIDTH), layers(1)
    mask = np.triu(np.full((STEPS, STEPS), -1e4, "float32"), 1)[None, None]
    attrs = {"is_test": True, "act_method": "relu", "dropout_implementation": "upscale_in_train"}
    program, feed = fs.Program(), dict[str, np.ndarray]()
    block = program.global_block

    def fed(name: str, array: np.ndarray) -> Any:
        feed[name] = array
        return block.create_variable(name, tensor(fs.core.spec.dtype(array.dtype), *array.shape), need_check_feed=True)

    weights = {slot: [fed(slot, value[0])] for slot, value in of.items()}
    kept = fed("kept", np.full((2, BATCH, HEADS, STEPS + 2, NUMBERS), 9.0, "float32"))
    begun = {"X": fed("x", x[:, :-1]), "SrcMask": fed("mask", mask[:, :, :-1, :-1]), "CacheKV": [kept], **weights}
    goes_on = {"X": fed("y", x[:, -1:]), "TimeStep": fed("step", np.array([STEPS - 1], "int32")), "CacheKV": [kept], **weights}
    for name, given in (("first", begun), ("last", goes_on)):
        block.append_op("fused_multi_transformer", given, {"Out": [name], "CacheKVOut": [kept]}, attrs)
    (last,) = fs.Executor().run(program, feed, ["last"], fs.Scope())
    close(last, by_hand(x, of, mask, True)[:, -1:])


def test_the_loss_of_a_transducer_is_the_sum_over_all_ways() -> None:
    rng = np.random.RandomState(4)
    scores = np.log(rng.dirichlet(np.ones(5), (2, 4, 4)))
    labels, steps, counts = np.array([[1, 2, 2], [3, 4, 0]], "int32"), [4, 3], [3, 1]

    def ways(at: int) -> float:
        @cache
        def after(t: int, u: int) -> float:
            if t == steps[at]:
                return float(u == counts[at])
            goes = np.exp(scores[at, t, u, 0]) * after(t + 1, u)
            return goes + (np.exp(scores[at, t, u, labels[at, u]]) * after(t, u + 1) if u < counts[at] else 0.0)

        return after(0, 0)

    given = {"input": scores, "label": labels, "input_lengths": np.array(steps, "int32"), "label_lengths": np.array(counts, "int32")}
    np.testing.assert_allclose(computed("warprnnt", given, result="loss"), [-np.log(ways(at)) for at in range(2)], rtol=1e-12)
