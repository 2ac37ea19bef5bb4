"""Heartbeats: each end of a connection notices when the other one has been silent for too long.

A node that is cut off the network closes no connection, and TCP notices it only after minutes. For
the orchestrator, the coordinator writes a line (channel.py).
"""

from __future__ import annotations

import time

BEAT_S = 2.0  # between an agent's heartbeats, each of which the coordinator answers
LOOK_S = 0.5  # between two looks at a silence
SUSPECT_S = BEAT_S + 1.0  # of silence, after which an agent may be cut off
AGENT_SILENCE_S = 15.0  # longest of an agent that a run needs; TCP bridges a cut of 5 s within 7 s
COORDINATOR_STUCK_S = 20.0  # longest for the orchestrator, which names it before agents end
COORDINATOR_SILENCE_S = 30.0  # longest of the coordinator; it names a node that is cut off before this


class Silence:
    """How long another end has sent nothing.

    Time in which this process did not run does not count: its machine was suspended, its container was
    paused, or it got no CPU. So one look adds at most the time of two.

    Attributes:
        seconds: the duration of the silence, at the last look.
    """

    def __init__(self) -> None:
        self.seconds, self._looked_at = 0.0, time.monotonic()

    def end(self) -> None:
        """The other end has sent something."""
        self.seconds = 0.0

    def look(self) -> float:
        """Measure the silence. Called every `LOOK_S`. Returns its seconds."""
        now = time.monotonic()
        self.seconds += min(now - self._looked_at, 2 * LOOK_S)
        self._looked_at = now
        return self.seconds
