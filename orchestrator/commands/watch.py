"""The command `watch`: serve the page of a sweep that another process runs, until Ctrl-C."""

from __future__ import annotations

from functools import partial
from threading import Event

from rich.console import Console

from orchestrator.results.store import SweepPaths, is_claimed, read_record


def watch(paths: SweepPaths, port: int, console: Console) -> None:
    """Serve the page until a signal. Raises InputError if the directory is of no sweep, or for the port."""
    from orchestrator.watch.server import serve  # loads the server

    read_record(paths)
    try:
        with serve(paths, port, partial(is_claimed, paths)) as address:
            console.print(f"watch {paths.directory}: {address}")
            console.print("the page changes nothing; Ctrl-C ends it, and the sweep goes on")
            Event().wait()
    except KeyboardInterrupt:
        console.print("")
