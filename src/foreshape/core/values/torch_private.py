"""The private names of torch: the purpose of each, its first release, and the way without it.

They are attributes of `private`, as ``private.fused_sgd_(...)``, found at their first use and kept. No other file names a private of torch. Torch 2.11, 2.13
and 2.14 have them all; dropping one costs as its entry tells, and the error names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from foreshape.core.values.openmp import load
from foreshape.errors import ExecutionError, needs


class PrivateName(NamedTuple):
    """A private name of torch.

    Args:
        path: from the module ``torch`` on.
        purpose: its use; it begins the error.
        since: the first release of torch with this form.
        otherwise: the way without it, called with the same arguments; None: its user has one, or an error.
    """

    path: str
    purpose: str
    since: str
    otherwise: Callable[..., Any] | None = None


def _softmax_gradient(grad: Any, out: Any, dim: int, dtype: Any) -> Any:
    product = grad * out
    return (product - out * product.sum(dim, keepdim=True)).to(dtype)


def _log_softmax_gradient(grad: Any, out: Any, dim: int, dtype: Any) -> Any:
    return (grad - out.exp() * grad.sum(dim, keepdim=True)).to(dtype)


def _multiply(tensors: list[Any], factor: float) -> None:
    for tensor in tensors:
        tensor.mul_(factor)


def _bag_sums(table: Any, ids: Any, starts: Any, scaled: bool, mode: int, sparse: bool, weights: Any, closed: bool, padding: int) -> tuple[Any]:
    functional: Any = load("torch.nn.functional")
    return (functional.embedding_bag(ids, table, starts, scale_grad_by_freq=scaled, mode="sum", include_last_offset=closed),)


def _never(tensor: Any) -> bool:
    return False


def _many(storage: int) -> int:
    return 1 << 30


def _not_active() -> bool:
    return False


def _inference_mode(on: bool) -> Any:
    return load("torch").inference_mode(on)


def _no_hooks(tracing: bool) -> None:
    return None


def _no_grad() -> Any:
    return load("torch").no_grad()


def _without_autocast() -> Any:
    return load("torch").autocast("cpu", enabled=False)


NAMES = {
    # how a step is run
    "InferenceMode": PrivateName("_C._InferenceMode", "running without a record for gradients, at a third of inference_mode's price", "1.9", _inference_mode),
    "BelowAutograd": PrivateName("_C._AutoDispatchBelowAutograd", "running without a record for gradients, with results that can be recorded", "2.0", _no_grad),
    "is_any_autocast_enabled": PrivateName("_C._is_any_autocast_enabled", "leaving autocast out", "2.0", lambda: True),
    "DisableAutocast": PrivateName("_C._DisableAutocast", "leaving autocast out, on all devices", "1.13", _without_autocast),
    "len_torch_function_stack": PrivateName("_C._len_torch_function_stack", "leaving out what overrides torch's functions", "2.0", lambda: 1),
    "DisableTorchFunction": PrivateName("_C.DisableTorchFunction", "leaving out what overrides torch's functions", "2.0"),
    # results
    "storage_users": PrivateName("_C._storage_Use_Count", "results of a block without a copy", "2.1", _many),
    # feeds
    "DisableTorchFunctionSubclass": PrivateName("_C.DisableTorchFunctionSubclass", "feeding tensors of a class of their own", "2.0"),
    "is_functorch_wrapped_tensor": PrivateName("_C._functorch.is_functorch_wrapped_tensor", "refusing tensors of torch.func", "2.0", _never),
    "nested_tensor_size": PrivateName("Tensor._nested_tensor_size", "feeding nested tensors of strided layout", "1.13"),
    # forecasts of memory
    "current_autograd_node": PrivateName("_C._current_autograd_node", "the user's line of a gradient in a forecast", "2.1"),
    "sequence_number": PrivateName("autograd._get_sequence_nr", "the user's line of a gradient in a forecast", "2.1"),
    "flash_attention": PrivateName("ops.aten._scaled_dot_product_flash_attention.default", "attention on CUDA in a forecast", "2.1"),
    "efficient_attention": PrivateName("ops.aten._scaled_dot_product_efficient_attention.default", "attention on CUDA in a forecast", "2.1"),
    "cudnn_attention": PrivateName("ops.aten._scaled_dot_product_cudnn_attention.default", "attention on CUDA in a forecast", "2.5"),
    "composed_attention": PrivateName("ops.aten._scaled_dot_product_attention_math.default", "attention on CUDA in a forecast", "2.5"),
    "softmax": PrivateName("ops.aten._softmax.default", "softmax from halves to fp32 in a forecast", "1.11"),
    "log_softmax": PrivateName("ops.aten._log_softmax.default", "log_softmax from halves to fp32 in a forecast", "1.11"),
    # networks as modules of torch
    "keeps_graph": PrivateName("_C._autograd._get_current_graph_task_keep_graph", "backward a second time", "2.3"),
    "saved_hooks": PrivateName("_C._autograd._top_saved_tensors_default_hooks", "hooks for what a gradient needs", "2.0", _no_hooks),
    "DelayedError": PrivateName("_C._functions.DelayedError", "an error in words for a gradient of a gradient", "1.0"),
    # networks of torch
    "pack_padded_sequence": PrivateName("_VF._pack_padded_sequence", "packed sequences of a network of torch", "1.0"),
    "pad_packed_sequence": PrivateName("_VF._pad_packed_sequence", "packed sequences of a network of torch", "1.0"),
    "pack_padded": PrivateName("ops.aten._pack_padded_sequence.default", "recurrent layers with lengths in an exported program", "1.0"),
    "pad_packed": PrivateName("ops.aten._pad_packed_sequence.default", "recurrent layers with lengths in an exported program", "1.0"),
    "set_grad_enabled": PrivateName("_C._set_grad_enabled", "a gradient of a network's own, beside its trace", "1.0"),
    "FunctionBase": PrivateName("_C._FunctionBase", "the backward of an autograd.Function", "1.0"),
    "SingleLevelFunction": PrivateName("autograd.function._SingleLevelFunction", "the backward of an autograd.Function", "2.0"),
    "is_functorch_active": PrivateName("_C._are_functorch_transforms_active", "an autograd.Function within torch.func", "2.0", _not_active),
    "check": PrivateName("_check", "telling a trace what holds for sizes", "2.1"),
    # processes
    "get_default_store": PrivateName("distributed.distributed_c10d._get_default_store", "joining a process group that is there", "1.9"),
    # optimizers: one pass over all tensors
    "foreach_mul_": PrivateName("_foreach_mul_", "Adam's powers of beta", "1.9", _multiply),
    "fused_sgd_": PrivateName("_fused_sgd_", "momentum in one pass on the CPU", "2.4"),
    "fused_adamw_": PrivateName("_fused_adamw_", "Adam in one pass on the CPU", "2.4"),
    # oneDNN's kernels: without them BLAS computes (kernels/products, kernels/frozen)
    "linear_pointwise": PrivateName("ops.mkldnn._linear_pointwise.default", "products by oneDNN", "2.0"),
    "convolution_pointwise": PrivateName("ops.mkldnn._convolution_pointwise.default", "convolutions with packed weights", "2.0"),
    "convolution_pointwise_binary": PrivateName("ops.mkldnn._convolution_pointwise.binary", "convolutions with packed weights and a sum", "2.0"),
    "reorder_convolution_weight": PrivateName("ops.mkldnn._reorder_convolution_weight.default", "packing a convolution's weight", "2.1"),
    "reorder_linear_weight": PrivateName("ops.mkldnn._reorder_linear_weight.default", "packing a product's weight", "2.1"),
    "rnn_layer": PrivateName("ops.aten.mkldnn_rnn_layer.default", "an LSTM by oneDNN", "2.0"),
    "rnn_layer_backward": PrivateName("ops.aten.mkldnn_rnn_layer_backward.default", "an LSTM's gradient by oneDNN", "2.0"),
    # kernels without a public function
    "schema": PrivateName("ops.aten.threshold_backward.grad_input._schema", "kernels that write into a tensor that is given", "1.12"),
    "softmax_gradient": PrivateName("ops.aten._softmax_backward_data.default", "softmax_grad", "1.11", _softmax_gradient),
    "log_softmax_gradient": PrivateName("ops.aten._log_softmax_backward_data.default", "log_softmax_grad", "1.11", _log_softmax_gradient),
    "attention": PrivateName("ops.aten._scaled_dot_product_flash_attention_for_cpu.default", "attention on the CPU", "2.3"),
    "attention_gradient": PrivateName("ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default", "attention's gradient on the CPU", "2.3"),
    "cudnn_rnn": PrivateName("ops.aten._cudnn_rnn.default", "recurrent layers by cuDNN", "1.10"),
    "cudnn_rnn_gradient": PrivateName("ops.aten._cudnn_rnn_backward.default", "the gradient of recurrent layers by cuDNN", "1.10"),
    "varied_attention": PrivateName("ops.aten._efficient_attention_forward.default", "attention of sequences of several lengths on a GPU", "2.2"),
    "varied_attention_gradient": PrivateName("ops.aten._efficient_attention_backward.default", "the gradient of that attention", "2.2"),
    "bag_sums": PrivateName("ops.aten._embedding_bag_forward_only.default", "sums over segments without what a gradient needs", "1.9", _bag_sums),
    "pool2d_gradient": PrivateName("ops.aten._adaptive_avg_pool2d_backward.default", "adaptive pooling's gradient", "1.0"),
    "pool3d_gradient": PrivateName("ops.aten._adaptive_avg_pool3d_backward.default", "adaptive pooling's gradient of volumes", "1.9"),
    "fft_c2c": PrivateName("ops.aten._fft_c2c.default", "fft_c2c with PaddlePaddle's normalizations", "1.8"),
    "fft_r2c": PrivateName("ops.aten._fft_r2c.default", "fft_r2c with PaddlePaddle's normalizations", "1.8"),
    "fft_c2r": PrivateName("ops.aten._fft_c2r.default", "fft_c2r with PaddlePaddle's normalizations", "1.8"),
    "unique": PrivateName("ops.aten._unique2.default", "unique with places and counts", "1.0"),
    "standard_gamma": PrivateName("ops.aten._standard_gamma.default", "gamma distributions with a generator", "1.0"),
    "ctc_loss": PrivateName("ops.aten._ctc_loss.default", "warpctc with what its gradient needs", "1.0"),
    "ctc_loss_gradient": PrivateName("ops.aten._ctc_loss_backward.default", "warpctc's gradient", "1.0"),
}


def find(path: str) -> Any:
    """Return the object at a path in torch. Raise `AttributeError`: this torch has it not."""
    with needs("running a program (on PyTorch)"):
        value: Any = load("torch")
    if path.startswith("distributed."):
        importlib.import_module("torch.distributed.distributed_c10d")
    for part in path.split("."):
        value = getattr(value, part)
    return value


@cache
def has(*names: str) -> bool:
    """Return whether this torch has all of these."""
    try:
        for name in names:
            find(NAMES[name].path)
    except AttributeError:
        return False
    return True


def writing(kernel: Any) -> Callable[..., Any]:
    """Return a kernel with all its overloads as a function into a given tensor: ``writing(torch.ops.aten.elu)(x, 1.0, into=x)``."""
    function = getattr(kernel, "grad_input" if "grad_input" in kernel.overloads() else "out")
    place: str = function._schema.arguments[-1].name

    def write(*args: Any, into: Any, **keywords: Any) -> Any:
        keywords[place] = into
        return function(*args, **keywords)

    return write


class _Private:
    def __getattr__(self, attribute: str) -> Any:
        """Find a private name, or the way without it, and keep it. Raise `ExecutionError`: this torch has it not, and there is no way without it."""
        self.__dict__[attribute] = value = self._find(NAMES[attribute])  # the next access is an ordinary attribute
        return value

    def _find(self, name: PrivateName) -> Any:
        try:
            return find(name.path)
        except AttributeError as error:
            if name.otherwise is not None:
                return name.otherwise
            version = load("torch").__version__
            raise ExecutionError(f"{name.purpose}: torch.{name.path} is needed, which torch has since {name.since}; torch {version} has it not") from error


class _PrivateInto(_Private):
    def _find(self, name: PrivateName) -> Any:
        try:
            return writing(find(name.path.removesuffix(".default")))
        except AttributeError:
            kernel = super()._find(name)

            def write(*args: Any, into: Any) -> Any:
                return into.copy_(kernel(*args))

            return write


private: Any = _Private()
private_into: Any = _PrivateInto()
"""The same kernels, into a given tensor: ``private_into.softmax_gradient(..., into=d)``."""
