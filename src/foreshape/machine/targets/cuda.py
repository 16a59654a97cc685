"""NVIDIA's GPUs. Nothing said of them here has been shown by a run on one."""

from foreshape.machine.targets.target import DeviceTarget

CUDA = DeviceTarget("cuda", block=512)  # of torch's caching allocator
