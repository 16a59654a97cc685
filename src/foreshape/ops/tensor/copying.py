"""Copies from one memory to another, in files from PaddlePaddle. There is one memory here: Out = X."""

from __future__ import annotations

from foreshape.errors import SchemaError
from foreshape.operator import AttrType, attribute
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.ops.tensor.plumbing import Assign


class ShareData(Assign):
    """Out = X, in memory of its own if X is still needed, so neither changes the other."""

    type = "share_data"
    samples = [sample(X=f32(2, 3)), sample(X=i64(3, data=[4, 5, 6])), sample(X=f32())]


class Placed(Assign):
    """The base of the copies to a device. Values stay where the executor has them."""

    abstract = True
    dst_place_type = attribute(AttrType.INT, doc="the device of Out, by its number in the file format")
    samples = [sample(X=f32(2, 3), dst_place_type=0), sample(X=i64(3, data=[4, 5, 6]), dst_place_type=1), sample(X=[f32(2, 3), f32(4, 3)], dst_place_type=0)]
    rejects = [reject(X=f32(2), says="needs the attribute dst_place_type", error=SchemaError)]


class Memcpy(Placed):
    """Out = X; the device of ``dst_place_type`` is ignored."""

    type = "memcpy"


class MemcpyD2h(Placed):
    """Out = X, a copy from a device to the host in PaddlePaddle."""

    type = "memcpy_d2h"
