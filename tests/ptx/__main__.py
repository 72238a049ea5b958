"""Command line of the interpreter: run a kernel on the CPU, print its PTX, count its instructions.

python -m tests.ptx run --backend cute --target sm_100 --case v4_mxfp4 [--ptx edited.ptx]
python -m tests.ptx show --backend triton --target sm_90 --case v4_fp8 > kernel.ptx
python -m tests.ptx counts [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests import cases

from . import counts
from .backends import CUTE, TARGETS, TRITON, difference, interpret, launched
from .errors import PtxError
from .parse import parse


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: all bytes as expected; 1: a difference, a wrong access, or changed counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.ptx", description="Run the kernels' PTX on the CPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, purpose in (("run", "interpret a kernel on a golden case"), ("show", "print its PTX")):
        command = commands.add_parser(name, help=purpose)
        command.add_argument("--backend", choices=(CUTE, TRITON), default=CUTE)
        command.add_argument("--target", default="sm_100", help=f"{', '.join(TARGETS)} or another (default sm_100)")
        command.add_argument("--case", choices=cases.golden_names(), default="v4_mxfp4")
        if name == "run":
            command.add_argument("--ptx", type=Path, help="interpret this text instead, launched alike")
    command = commands.add_parser("counts", help="compare instruction counts with the table, or renew it")
    command.add_argument("--write", action="store_true", help="write the table")
    options = parser.parse_args(arguments)
    if options.command == "counts":
        return _counts(options.write)
    case = cases.golden(options.case)
    program = launched(options.backend, case, options.target)
    if options.command == "show":
        print(program.ptx)
        return 0
    text = options.ptx.read_text() if options.ptx else program.ptx
    print(f"{program.label}, {options.case}")
    try:
        problem = difference(interpret(program, case, text), case.expected)
    except PtxError as error:
        problem = str(error)
    print(problem or "every byte is as expected")
    print(json.dumps(counts.count(parse(text).kernel())))
    return 1 if problem else 0


def _counts(write: bool) -> int:
    if write:
        counts.write()
        return 0
    changes = counts.changes(counts.stored()["kernels"], counts.table()["kernels"])
    print("\n".join(changes) or "as in the table")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
