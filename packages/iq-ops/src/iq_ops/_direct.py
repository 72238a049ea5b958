"""Whether a call may go straight to its implementation, past PyTorch's dispatcher, which costs as much as a launch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad as _forward_ad
from torch.autograd import profiler as _profiler

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
try:
    from torch._C import _is_tracing, _len_torch_dispatch_stack, _len_torch_function_stack
    from torch._C._functorch import peek_interpreter_stack

    _functorch_level: Callable[[], object] = peek_interpreter_stack  # None outside of every transform
    _CAN_TELL = hasattr(_profiler, "_is_profiler_enabled") and hasattr(_forward_ad, "_current_level")
except ImportError:  # private names, which another PyTorch may lack: then every call goes through its op
    _CAN_TELL = False


def goes_unseen(
    positions: Tensor,
    q: Tensor,
    cos_sin_cache: Tensor,
    weights: Tensor,
    weights_softmax_scale: float,
    weights_head_scale: float,
    *outputs: Tensor,
) -> bool:
    """Whether nothing could tell if these arguments go to an op or to the function that implements it.

    The order is the ops'; outputs that iq_ops has allocated itself for such inputs need not be passed. Seen, or needed,
    the dispatcher is

    - by Dynamo, which traces through this function and puts the op into its graph;
    - by a torch_dispatch or torch_function mode: FakeTensorMode, make_fx, torch.export, counters, also the mode that
      `torch.set_default_device` leaves on;
    - by a functorch transform, as vmap, grad or functionalize, by forward-mode AD, and by torch.jit.trace;
    - by a profiler, which shows the op's name. (Only an ExecutionTraceObserver on its own, without one, goes without.)
    - for scales that are not floats: the op's schema converts or refuses them;
    - for a subclass: a DTensor, a FakeTensor, one with handlers of its own. A Parameter goes with them;
    - for a tensor whose memory holds its values negated, as `z.conj().imag` does: the dispatcher makes a plain copy;
    - for a device without an implementation: the meta device has its own, others have the dispatcher's error.

    Nothing else happens between an op and its implementation here: none has a kernel for autograd or autocast, the
    version counters of outputs are left alone, and each backend makes its device current itself.
    """
    if (
        _is_dynamo_compiling()
        or not _CAN_TELL
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or _functorch_level() is not None
        or _forward_ad._current_level >= 0
        or _is_tracing()
        or _profiler._is_profiler_enabled
        or type(weights_softmax_scale) is not float
        or type(weights_head_scale) is not float
    ):
        return False
    for tensor in (positions, q, cos_sin_cache, weights, *outputs):
        if type(tensor) is not Tensor or tensor.is_neg():
            return False
    return q.is_cuda or q.is_cpu
