"""The backend that does nothing is a whole backend: a call over it goes through all of iq_ops and no further."""

from __future__ import annotations

import cases
import iq_ops
from benchmarks import noop_provider


def test_iq_ops_takes_it():
    with noop_provider.installed():
        (backend,) = (backend for backend in iq_ops.backends() if backend.name == "noop")
        assert (backend.state, backend.reason) == ("ready", None)
        for fmt in cases.FORMATS:
            case = cases.random_case(1, fmt=fmt, tokens=3)
            iq_ops.fused_indexer_q_rope_quant(*case.positional, backend="noop")
    assert "noop" not in {backend.name for backend in iq_ops.backends()}
