"""Hooks of a bench run: its order, the machine in its report, and a compact table at its end for the wide one."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import machine, report

ROWS = pytest.StashKey[list[report.Row]]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep pytest-benchmark's own table, a line of 200 columns a case, for --benchmark-verbose."""
    config.stash[ROWS] = []
    config.option.benchmark_quiet = True


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Add the GPU, the versions and which cases were asked for; drop the host's name."""
    machine_info.pop("node", None)
    machine_info.update(machine.describe())
    machine_info["selection"] = " and ".join(filter(None, (config.option.markexpr, config.option.keyword)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the calls under torch.compile last: what it leaves in the process slows every call measured after it."""
    items.sort(key=_is_compiled)


def _is_compiled(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("way") == "compiled"


@pytest.fixture
def rows(request: pytest.FixtureRequest) -> list[report.Row]:
    """What the table at the end shows: a case appends its row."""
    return request.config.stash[ROWS]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    for line in report.table(config.stash.get(ROWS, [])):
        terminalreporter.write_line(line)
