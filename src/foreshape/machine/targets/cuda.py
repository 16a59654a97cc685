"""NVIDIA's GPUs. Nothing said of them here has been shown by a run on one."""

from foreshape.machine.targets.target import DeviceTarget, Feature

CUDA = DeviceTarget("cuda", frozenset({Feature.CUDNN}), block=512)  # of torch's caching allocator
