"""`python -m orchestrator`, and the command `shardyard`."""

import sys
from typing import NoReturn

MINIMUM = (3, 11)


def main() -> None:
    """Run the command line, or say in one line what this Python lacks for it."""
    python = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    if sys.version_info < MINIMUM:
        _refuse(f"Shardyard needs Python {MINIMUM[0]}.{MINIMUM[1]} or newer, not {python}")
    try:
        from orchestrator.cli import main as run
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] in ("orchestrator", "trainer"):
            raise
        _refuse(
            f"{python} has no package {error.name!r}; "
            "run `make venv` and use .venv/bin/python, or `pip install .`"
        )
    run()


def _refuse(reason: str) -> NoReturn:
    print(f"error: {reason}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
