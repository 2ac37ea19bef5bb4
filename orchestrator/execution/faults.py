"""What a run's events say about the faults that it injected into itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.results.records import InjectedFault
from orchestrator.runtimes.launch_plan import rank_name
from trainer.core.events import Event
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.attempts import Attempts


def contradicts(spec: RunSpec, event: Event) -> bool:
    """Whether an event reports a fault that the spec does not inject into its rank."""
    if event.kind != "fault":
        return False
    number = event.fields["fault"]
    if number >= len(spec.faults) or event.rank >= spec.world_size:
        return True
    fault = spec.faults[number]
    return (fault.action, fault.node) != (event.fields["action"], event.rank // spec.processes_per_node)


def injected_faults(spec: RunSpec, attempts: Attempts) -> list[InjectedFault]:
    """The faults that fired, in the order of the spec; of a node with several ranks, the first's report."""
    found: dict[int, InjectedFault] = {}
    for number in range(attempts.effective + 1):
        for event in attempts.events_of(number):
            if event.kind != "fault" or contradicts(spec, event):
                continue
            fields = {name: value for name, value in event.fields.items() if name != "earlier"}
            node = event.rank // spec.processes_per_node
            found.setdefault(fields["fault"], InjectedFault(node=node, rank=event.rank, **fields))
    return [found[number] for number in sorted(found)]


def fault_flags(spec: RunSpec, injected: Sequence[InjectedFault]) -> list[str]:
    """What was injected, and what was not because its moment never came."""
    flags = []
    if injected:
        described = "; ".join(f"{fault.action} of node {fault.node} {_place(fault)}" for fault in injected)
        noun = "fault was" if len(injected) == 1 else "faults were"
        flags.append(f"{len(injected)} {noun} injected: {described}")
    fired = {fault.fault for fault in injected}
    flags += [
        f"fault {number} was never injected: training ended before {fault.title}"
        for number, fault in enumerate(spec.faults)
        if number not in fired
    ]
    return flags


def fault_of_loss(spec: RunSpec, cause: str | None, injected: Sequence[InjectedFault]) -> str | None:
    """The cause of a failed run; names the fault that killed the node in it, if one did."""
    for fault in injected:
        name = rank_name(fault.rank, spec.processes_per_node)
        if cause and fault.action == "kill" and f"{name} " in cause and "SIGKILL" in cause:
            return f"{cause}, by fault {fault.fault} of the spec {_place(fault)}"
    return cause


def repeated_steps(attempts: Attempts) -> int:
    """Steps that were trained, lost with an attempt, and trained again, by the rank that lost most.

    Summed over the restarts. Exact where a fault of the spec killed a rank of a synchronous strategy: its
    event says how many steps it had taken, and `resumed` how many the checkpoint holds. Otherwise a lower
    bound: a rank reports its progress every half second, and a rank that was killed may have been further.
    """
    seen: set[tuple[int, int]] = set()
    repeated, lost_at = 0, 0
    for number in range(attempts.effective + 1):
        events = attempts.events_of(number)
        fired, reached = 0, 0
        for event in events:
            fields = event.fields
            if event.kind == "fault" and (event.rank, fields["fault"]) not in seen:
                seen.add((event.rank, fields["fault"]))
                if fields.get("earlier"):  # in a command that this one resumes
                    lost_at = max(lost_at, fields["step"])
                else:
                    fired = max(fired, fields["step"])
            elif event.kind == "step":
                reached = max(reached, (fields["epoch"] - 1) * fields["steps"] + fields["step"])
        resumed = [event.fields.get("steps_taken", 0) for event in events if event.kind == "resumed"]
        repeated += max(0, lost_at - min(resumed, default=0))
        lost_at = max(fired, reached)
    return repeated


def _place(fault: InjectedFault) -> str:
    where = f"in epoch {fault.epoch}" if fault.epoch else "before epoch 1"
    return f"{where} after {fault.step:,} steps"
