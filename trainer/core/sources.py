"""What identifies the trainer's sources and its packages, on this machine and on others."""

from pathlib import Path


def digest_of(trainer: str, requirements: str) -> str:
    """16 hex digits that identify a trainer's sources and its packages.

    It runs inside an image, too, as text. So it needs nothing but Python's library.
    """
    import hashlib
    import pathlib

    digest = hashlib.sha256()
    root = pathlib.Path(trainer)
    for path in [*sorted(root.rglob("*.py")), pathlib.Path(requirements)]:
        name = path.relative_to(root) if path.suffix == ".py" else path.name
        for part in (str(name).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def own_digest() -> str:
    """The digest of this trainer."""
    trainer = Path(__file__).parents[1]
    return digest_of(str(trainer), str(trainer / "requirements.txt"))
