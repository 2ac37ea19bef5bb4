"""Whose a process or a container is: the label of the orchestrator that started it."""

from __future__ import annotations

import os

import psutil


def identity() -> str:
    """This process, told from others that had or have its number: "1234 1700000000.12 pid:[4026531836]"."""
    process = psutil.Process()
    return f"{process.pid} {process.create_time():.2f} {_namespace()}"


def is_gone(label: str) -> bool:
    """Whether the orchestrator that a label names is gone; False where that cannot be told from here."""
    pid, _, rest = label.partition(" ")
    since, _, namespace = rest.partition(" ")
    if not pid.isdigit() or namespace != _namespace():
        return False  # not ours to judge
    try:
        process = psutil.Process(int(pid))
        return f"{process.create_time():.2f}" != since or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # in a container, numbers mean other processes
    except OSError:
        return "the only one"
