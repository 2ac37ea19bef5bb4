"""Which runs have traces. Imports no torch."""

from __future__ import annotations

from trainer.spec.run_spec import RunSpec


def untraced_reason(spec: RunSpec) -> str | None:
    """Why the ranks of a run write no traces; None: every rank writes one."""
    if spec.trace == "none":
        return "trace is none"
    if spec.strategy.untraced:
        return spec.strategy.untraced
    if spec.on_gpu:
        return "the CPU time of a rank does not show what its GPU computes"
    if spec.threads > 1:
        return "with several threads, the CPU time of a rank is not the time that it computes"
    if spec.on_loss == "continue":
        return "ranks may be lost, and others continue with work that no trace covers"
    if spec.restarts:
        return "ranks may be restarted, and only their last attempt would be in a trace"
    return None
