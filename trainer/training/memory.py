"""Memory of a rank: activations kept for the backward pass, and the peak of the process."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import Parameter


def reset_peak_memory() -> None:
    """Count the peak from now on, without what the start of this process needed."""
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # see proc(5)


def peak_memory_mb() -> float | None:
    """The largest resident set of this process, in MiB; None on systems without /proc.

    VmHWM belongs to the process's own memory. getrusage's ru_maxrss survives exec, so a new process starts
    with the peak of the one that started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return int(peak[1]) / 2**10 if peak else None


class Activations:
    """Measures, within a `with` block, the peak bytes that autograd saves for the backward pass.

    Each storage counts once, however many tensors view it; parameters do not count. Tensors saved before
    the block are not seen. Nothing is copied or changed.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._bytes = 0
        self._references: Counter[int] = Counter()  # by the storage's address
        self._hooks = saved_tensors_hooks(
            lambda tensor: _SavedTensor(tensor, self), lambda saved: saved.tensor
        )

    def __enter__(self) -> Activations:
        self._hooks.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _acquire(self, address: int, size: int) -> None:
        self._references[address] += 1
        if self._references[address] == 1:
            self._bytes += size
            self.peak_bytes = max(self.peak_bytes, self._bytes)

    def _release(self, address: int, size: int) -> None:
        self._references[address] -= 1
        if self._references[address] == 0:
            self._bytes -= size


class _SavedTensor:
    """A tensor that autograd saves; autograd deletes it when it is no longer needed."""

    def __init__(self, tensor: Tensor, activations: Activations) -> None:
        self.tensor = tensor
        self._activations = activations
        source = tensor if tensor._base is None else tensor._base
        self._counts = not isinstance(source, Parameter)
        if self._counts:
            storage = tensor.untyped_storage()
            self._storage = storage.data_ptr(), storage.nbytes()
            activations._acquire(*self._storage)

    def __del__(self) -> None:
        if self._counts:
            self._activations._release(*self._storage)
