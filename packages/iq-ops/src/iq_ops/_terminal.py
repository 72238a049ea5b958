"""What the command line writes to stderr: errors, warnings, and how far the work has come."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextlib.contextmanager
def failing_with(code: int, *errors: type[Exception]) -> Iterator[None]:
    """Turn errors of these types into their message on stderr and an exit code."""
    try:
        yield
    except errors as error:
        Console(stderr=True, highlight=False, emoji=False).print(
            "error:", str(error), style="red", markup=False, soft_wrap=True
        )
        raise typer.Exit(code) from error


@contextlib.contextmanager
def progress(label: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr that goes away at the end; yields the function to call with label, done and total.

    Where stderr is no terminal it writes nothing.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True, emoji=False)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)

        def step(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield step


def warn(message: object) -> None:
    """Print a warning as one line on stderr."""
    Console(stderr=True, highlight=False, emoji=False).print(
        f"warning: {message}", style="yellow", markup=False, soft_wrap=True
    )


def show_warning(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    """Print a warning, in the place of `warnings.showwarning`."""
    warn(message)
