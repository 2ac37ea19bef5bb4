"""`python -m orchestrator`, and the command `shardyard`."""

# Every import here is one that a signal could interrupt with a traceback.
import sys

from orchestrator.interrupts import ignore, interruptible

MINIMUM = (3, 11)
BAD_INPUT, INTERRUPTED = 2, 130  # exit codes


def main() -> None:
    """Run the command line. A signal ends it without a traceback, also while it imports packages."""
    try:
        with interruptible():
            code = _run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    finally:
        ignore()  # temporary directories and sandboxes are removed at exit
    sys.exit(code)


def _run() -> int:
    """Run the command line, or say in one line what this Python lacks for it. Returns the exit code."""
    python = f"{sys.executable} (Python {sys.version_info[0]}.{sys.version_info[1]})"
    if sys.version_info < MINIMUM:
        return _refuse(f"Shardyard needs Python {MINIMUM[0]}.{MINIMUM[1]} or newer, not {python}")
    try:
        from orchestrator.cli import main as run
    except ModuleNotFoundError as error:
        if not error.name or error.name.partition(".")[0] in ("orchestrator", "trainer"):
            raise
        return _refuse(
            f"{python} has no package {error.name!r}; "
            "run `make venv` and use .venv/bin/python, or `pip install .`"
        )
    run()
    return 0


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    main()
