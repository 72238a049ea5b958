"""Use an installed iq-ops as a stranger would: `check_install.py DIST GOLDEN`.

It runs outside the tree, in a clean environment where only `iq-ops` was asked for. That must have brought the Triton
kernels along, import without importing a compiler, answer `iq-ops doctor` and `iq-ops demo`, and give the contract's
bytes for every golden vector.
"""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

DIST, GOLDEN = Path(sys.argv[1]), Path(sys.argv[2])
SCRIPTS = Path(sys.executable).parent


def check_distributions() -> None:
    """The wheels of DIST are what is installed, and nobody asked for the CuTe ones."""
    for name in ("iq-ops", "iq-kernels-triton"):
        version = importlib.metadata.version(name)
        wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
        assert (DIST / wheel).exists(), f"{name} {version} is installed, and there is no {DIST / wheel}"
        print(f"{name} {version}")
    installed = {distribution.name for distribution in importlib.metadata.distributions()}
    assert "iq-kernels-cute" not in installed, "iq-kernels-cute came along, though nobody asked for iq-ops[cute]"


def check_import() -> None:
    """`import iq_ops` comes from this environment and imports no compiler."""
    import iq_ops

    assert Path(sys.prefix) in Path(iq_ops.__file__).parents, f"iq_ops is {iq_ops.__file__}, outside {sys.prefix}"
    imported = {"triton", "cutlass", "iq_kernels_triton.indexer_q"} & set(sys.modules)
    assert not imported, f"importing iq_ops imported {imported}"
    print(f"imports from {iq_ops.__file__}")


def run(*arguments: str) -> str:
    """Standard output of `iq-ops ARGUMENTS`, which must succeed."""
    done = subprocess.run([SCRIPTS / "iq-ops", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, f"iq-ops {' '.join(arguments)} exited {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def check_commands() -> None:
    """`doctor` knows both installed backends, in words and in JSON; `demo` runs."""
    report = json.dumps(json.loads(run("doctor", "--json")))
    for word in ("reference", "triton", "iq-kernels-triton"):
        assert word in report, f"iq-ops doctor --json does not mention {word}: {report}"
    print(run("doctor"))
    print(run("demo"))


def check_golden(path: Path) -> None:
    """The public function gives the golden bytes of one case."""
    import torch

    import iq_ops

    case = np.load(path)
    options = json.loads(str(case["options"]))
    tensor = {name: torch.from_numpy(case[name]) for name in ("positions", "q", "cache", "weights")}
    for name in ("q", "cache"):
        if case[name].dtype == np.uint16:
            tensor[name] = torch.from_numpy(case[name].view(np.int16)).view(torch.bfloat16)
    spec = iq_ops.IndexerQSpec(**{name: options[name] for name in ("rope_style", "rope_at", "hadamard")})
    codes, weights_out = iq_ops.fused_indexer_q_rope_quant(
        tensor["positions"],
        tensor["q"],
        tensor["cache"],
        tensor["weights"],
        options["weights_softmax_scale"],
        options["weights_head_scale"],
        options["format"] == "mxfp4",
        spec=spec,
    )
    if options["format"] == "mxfp4":
        codes, scales = codes
        assert scales.view(torch.uint8).numpy().tobytes() == case["scales"].tobytes(), f"{path.stem}: scales differ"
    assert codes.view(torch.uint8).numpy().tobytes() == case["codes"].tobytes(), f"{path.stem}: codes differ"
    got, expected = weights_out.numpy(), case["weights_out"]
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert got.shape == expected.shape, f"{path.stem}: weights_out has shape {got.shape}, not {expected.shape}"
    assert same.all(), f"{path.stem}: weights_out differs in {(~same).sum()} places"
    print(f"{path.stem}: {codes.nbytes} code bytes as the contract says")


if __name__ == "__main__":
    check_distributions()
    check_import()
    check_commands()
    cases = sorted(GOLDEN.glob("*.npz"))
    assert cases, f"no golden vectors in {GOLDEN}"
    for golden_path in cases:
        check_golden(golden_path)
