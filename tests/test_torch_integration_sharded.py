"""DTensors: sharded over tokens or heads they go through without communication; a shard over D is refused."""

from __future__ import annotations

import faulthandler
import tempfile
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import cases

PLACEMENTS = ("tokens", "heads", "replicated")


def worker(rank: int, meeting_point: str, backend: str, world: int) -> None:
    """Run every check on one rank; a failure ends the process with the error."""
    faulthandler.dump_traceback_later(120, exit=True)  # a rank that waits for another one says where, and ends
    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    # A file, and no port that another process may take between its choice and its use.
    store = dist.FileStore(meeting_point, world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    mesh = dist.init_device_mesh(device, (world,))
    try:
        for fmt in cases.FORMATS:
            # Odd numbers of tokens and heads: the shards differ in size.
            case = cases.random_case(1, fmt=fmt, tokens=13, num_heads=5, device=device)
            for placement in PLACEMENTS:
                check_placement(case, placement, mesh)
                check_out(case, placement, mesh)
            check_plain_cache(case, mesh)
            check_refusals(case, mesh)
    finally:
        dist.destroy_process_group()


def placed(case, placement, mesh):
    """The case's four tensors as DTensors, and the placements that the outputs must have."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    q = {"tokens": Shard(0), "heads": Shard(1), "replicated": Replicate()}[placement]
    others = {
        "positions": Shard(0) if placement == "tokens" else Replicate(),
        "cos_sin_cache": Replicate(),
        "weights": q,
    }
    tensors = {name: distribute_tensor(getattr(case, name), mesh, [where]) for name, where in others.items()}
    return replace(case, q=distribute_tensor(case.q, mesh, [q]), **tensors), (q,)


def parts(case, result):
    quantized, weights_out = result
    return [*quantized, weights_out] if case.fmt == "mxfp4" else [quantized, weights_out]


def check_placement(case, placement, mesh):
    from torch.distributed.tensor.debug import CommDebugMode

    import iq_ops

    sharded, expected_placements = placed(case, placement, mesh)
    with CommDebugMode() as communication:
        result = iq_ops.fused_indexer_q_rope_quant(*sharded.positional)
    assert communication.get_total_counts() == 0
    whole = iq_ops.fused_indexer_q_rope_quant(*case.positional)
    for part, expected in zip(parts(case, result), parts(case, whole), strict=True):
        assert part.placements == expected_placements
        assert (part.shape, part.dtype, part.stride()) == (expected.shape, expected.dtype, expected.stride())
        gathered = part.to_local().view(torch.uint8)
        start, size = offset_of(part)
        reference = expected[start[0] : start[0] + size[0], start[1] : start[1] + size[1]].contiguous()
        same_bits(gathered, reference.view(torch.uint8))


def offset_of(part):
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    size, start = compute_local_shape_and_global_offset(part.shape, part.device_mesh, part.placements)
    return start, size


def same_bits(actual, expected):
    difference = cases.first_difference("shard", actual, expected)
    assert difference is None, difference


def check_out(case, placement, mesh):
    from torch.distributed.tensor import distribute_tensor

    import iq_ops

    sharded, placements = placed(case, placement, mesh)
    buffers = {
        name: distribute_tensor(buffer, mesh, list(placements))
        for name, buffer in cases.poisoned_outputs(case, 0).items()
    }
    iq_ops.fused_indexer_q_rope_quant_out(
        *sharded.positional, q_out=buffers["q_fp8" if case.fmt == "fp8" else "q_packed"],
        weights_out=buffers["weights_out"], q_scale_out=buffers.get("q_scale"),
    )  # fmt: skip
    for name, expected in cases.reference(case).items():
        start, size = offset_of(buffers[name])
        window = expected[start[0] : start[0] + size[0], start[1] : start[1] + size[1]].contiguous()
        cases.assert_same({name: buffers[name].to_local()}, {name: window}, placement)


def check_plain_cache(case, mesh):
    """Every rank holds the whole cache anyway, so that a plain tensor will do where a replicated one is due."""
    import iq_ops

    sharded, _ = placed(case, "tokens", mesh)
    plain = replace(sharded, cos_sin_cache=case.cos_sin_cache)
    both = [parts(case, iq_ops.fused_indexer_q_rope_quant(*each.positional)) for each in (sharded, plain)]
    for one, other in zip(*both, strict=True):
        same_bits(one.to_local().view(torch.uint8), other.to_local().view(torch.uint8))


def check_refusals(case, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    import iq_ops

    sharded, _ = placed(case, "tokens", mesh)
    over_dims = distribute_tensor(case.q, mesh, [Shard(2)])
    for wrong, message in (
        (replace(sharded, q=over_dims), r"index_q: expected Replicate\(\), Shard\(0\) over tokens or Shard\(1\)"),
        (replace(sharded, positions=case.positions), "positions: expected a DTensor placed"),
        (replace(sharded, weights=distribute_tensor(case.weights, mesh, [Shard(1)])), "index_weights: expected placem"),
    ):
        with pytest.raises(ValueError, match=message):
            iq_ops.fused_indexer_q_rope_quant(*wrong.positional)


def run_ranks(backend: str, world: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(worker, (f"{folder}/store", backend, world), nprocs=world, start_method="spawn")


def test_two_cpu_processes_with_gloo():
    run_ranks("gloo", 2)


@pytest.mark.gpu
def test_two_gpus_with_nccl():
    if torch.cuda.device_count() < 2:
        run_ranks("nccl", 1)  # one rank still takes every placement through the same code
    else:
        run_ranks("nccl", 2)
