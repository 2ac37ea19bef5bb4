"""Mistakes in what is reported of a training whose ranks are processes of this machine."""

from __future__ import annotations

from trainer.core.events import Event
from trainer.launch import processes


def test_the_first_cause_of_a_failure_is_a_death_then_what_is_about_no_other_rank() -> None:
    def failed(time: float, cause: str, peer: bool) -> list[Event]:
        return [Event(time, "", 0, "", "failed", {"cause": cause, "peer": peer, "traceback": ""})]

    lost, late, early = failed(1.0, "lost", True), failed(3.0, "late", False), failed(2.0, "early", False)
    ended = [Event(0.0, "", 0, "", "result", {})]
    for codes, events, cause in (
        ([0, 0], [ended, ended], None),
        ([1, 1, 1], [lost, late, early], "early"),
        ([1, 0], [lost, ended], "lost"),
        ([1, -9, 1], [early, [], lost], "rank 1 was killed by SIGKILL"),
        ([1, 0], [early, []], "rank 1 ended with exit code 0"),
    ):
        assert processes._failure(codes, events, None) == cause
