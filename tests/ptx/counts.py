"""Count what a kernel is made of: loads and stores by width, instructions by kind, for a table kept beside the tests.

The table (counts.json) belongs to the compiler versions that it names. `python -m tests.ptx counts --write` renews it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from tests import cases

from .backends import CUTE, TARGETS, TRITON, launched, versions
from .parse import parse
from .scalars import SCALARS
from .syntax import Instruction, Kernel

TABLE = Path(__file__).with_name("counts.json")

# DeepSeek-V4's shapes, at a short and a long number of tokens as each backend chooses its variants by length.
SHORT, LONG = 1, 4096


def count(kernel: Kernel) -> dict[str, Any]:
    """Static counts of one kernel: global accesses by bits, the rest by the root of the opcode."""
    loads: Counter[str] = Counter()
    stores: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for ins in kernel.instructions:
        kinds[ins.root] += 1
        if ins.root in ("ld", "st") and "global" in ins.modifiers:
            (loads if ins.root == "ld" else stores)[f"{access_bits(ins)} bits"] += 1
    return {
        "loads": _sorted(loads),
        "stores": _sorted(stores),
        "instructions": dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))),
        "total": len(kernel.instructions),
    }


def access_bits(ins: Instruction) -> int:
    """Bits that one thread moves with a load or a store."""
    vector = next((int(m[1:]) for m in ins.modifiers if m in ("v2", "v4", "v8")), 1)
    return vector * SCALARS[ins.modifiers[-1]].bits


def deepseek_v4(fmt: str, tokens: int) -> cases.Case:
    """A call of DeepSeek-V4's indexer; its tensors hold nothing, only their shapes matter."""
    return cases.Case(
        name=f"deepseek_v4_{fmt}",
        fmt=fmt,
        positions=torch.empty(tokens, dtype=torch.int64),
        q=torch.empty(tokens, 64, 128, dtype=torch.bfloat16),
        cos_sin_cache=torch.empty(1024, 64),
        weights=torch.empty(tokens, 64, dtype=torch.bfloat16),
        softmax_scale=128**-0.5,
        head_scale=64**-0.5,
        options={"rope_style": "interleaved", "rope_at": "tail", "hadamard": False},
    )


def entries(backend: str, target: str) -> dict[str, Any]:
    """Counts of the kernels that DeepSeek-V4's shapes launch with one backend on one target, by format and length."""
    kernels = {}
    for fmt in cases.FORMATS:
        for tokens in (SHORT, LONG):
            program = launched(backend, deepseek_v4(fmt, tokens), target)
            kernels[f"{backend} {target} {fmt} T={tokens}"] = count(parse(program.ptx).kernel())
    return kernels


def table() -> dict[str, Any]:
    """The whole table, with the versions of the compilers that emitted the code."""
    kernels = {
        name: kernel
        for backend in (CUTE, TRITON)
        for target in TARGETS
        for name, kernel in entries(backend, target).items()
    }
    return {"compilers": versions(), "kernels": kernels}


def stored() -> dict[str, Any]:
    """The table that is kept in the repository."""
    content: dict[str, Any] = json.loads(TABLE.read_text())
    return content


def changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Lines that say which count of which kernel changed; both arguments map a kernel's name to its counts."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before is None or after is None:
            lines.append(f"{name}: {'new' if before is None else 'gone'}")
            continue
        for group in ("loads", "stores", "instructions"):
            for key in sorted(before[group].keys() | after[group].keys()):
                was, now = before[group].get(key, 0), after[group].get(key, 0)
                if was != now:
                    lines.append(f"{name}: {group} {key}: {was} -> {now}")
    return lines


def write() -> None:
    """Renew the table in the repository."""
    TABLE.write_text(json.dumps(table(), indent=1) + "\n")


def _sorted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda item: -int(item[0].split()[0])))
