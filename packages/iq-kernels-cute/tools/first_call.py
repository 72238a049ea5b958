"""Print how long the first call takes and how many kernels it builds: cold, and with a warm disk cache.

`python packages/iq-kernels-cute/tools/first_call.py [--arch sm_90]`: each figure comes from a process of its own, after
`import torch`. With a GPU it is the time of one call that launches; without one, of building the kernel for `--arch`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

MEASURED = """
import json, sys, time
import torch
arch = sys.argv[1]
gpu = torch.cuda.is_available()
if gpu:
    torch.empty(1, device="cuda")
start = time.perf_counter()
from iq_kernels_cute import provider
from iq_kernels_cute import _abi
workload = _abi.Workload("indexer_q_fp8", 64, 128, 64, "int64", "float32", "bfloat16", "float32", "interleaved", "tail",
                         False, arch, None)
if gpu:
    q = torch.zeros(8, 64, 128, dtype=torch.bfloat16, device="cuda")
    provider.load("indexer_q_fp8")(
        positions=torch.zeros(8, dtype=torch.int64, device="cuda"), q=q,
        cos_sin_cache=torch.zeros(16, 64, device="cuda"), weights=q[:, :, 0].contiguous(),
        weights_softmax_scale=1.0, weights_head_scale=1.0,
        q_fp8=torch.empty(8, 64, 128, dtype=torch.uint8, device="cuda"),
        weights_out=torch.empty(8, 64, device="cuda"),
    )
    torch.cuda.synchronize()
else:
    from iq_kernels_cute import cache
    from iq_kernels_cute.indexer_q import config
    cache.get(config.choose(workload, 8, dense=True))
print(json.dumps({"seconds": time.perf_counter() - start, "kernels": provider.compile_count()}))
"""


def main() -> None:
    """Measure three processes with an empty cache each, then three with what the last of them left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", default="sm_90", help="target without a GPU (default: %(default)s)")
    arch = parser.parse_args().arch
    with tempfile.TemporaryDirectory() as place:
        folders = [os.path.join(place, str(number)) for number in range(3)]
        for name, used in (("cold", folders), ("disk-warm", [folders[-1]] * 3)):
            runs = [_measure(arch, folder) for folder in used]
            best = min(runs, key=lambda run: run["seconds"])
            print(f"{name:10} {best['seconds']:.2f} s, compile_count {best['kernels']}")


def _measure(arch: str, folder: str) -> dict[str, float]:
    environment = {**os.environ, "IQ_KERNELS_CACHE_DIR": folder}
    command = [sys.executable, "-W", "ignore", "-c", MEASURED, arch]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(answer.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
