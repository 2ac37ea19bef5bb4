"""Fails if a container, network or volume of a sweep, a test or a bare `up` is left, as CI requires."""

from __future__ import annotations

import sys

from tests.support.containers import leftovers


def main() -> int:
    left = leftovers("shardyard.orchestrator")
    print("\n".join(left) or "no container, network or volume is left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
