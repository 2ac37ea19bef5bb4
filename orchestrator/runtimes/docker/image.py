"""The trainer image: the digest of its sources, and building it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.results.environment import PACKAGES
from orchestrator.runtimes.docker.engine import Engine, EngineError
from orchestrator.shipped import COMPOSE, ROOT, command

IMAGE = "shardyard-trainer"
DERIVED = ROOT / "docker"  # what builds an image with further packages
LABEL = "shardyard.source"


def image_name() -> str:
    """The name of the image, as in compose/common.yml."""
    return os.environ.get("SHARDYARD_IMAGE") or IMAGE


def source_digest(project: Path = ROOT) -> str:
    """16 hex digits that name what the image is built from: docker/Dockerfile and the nodes' sources."""
    digest = sha256()
    sources = [project / "docker" / "Dockerfile", project / "trainer" / "requirements.txt"]
    packages = [path for name in ("trainer", "shardyard") for path in (project / name).rglob("*.py")]
    for path in sorted([*sources, *packages]):
        for part in (str(path.relative_to(project)).encode(), path.read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def pinned_packages(project: Path = ROOT) -> dict[str, str]:
    """The image's versions of the packages that results record."""
    lines = (project / "trainer" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    return {package: pins[package] for package in PACKAGES if package in pins}


def image_id(engine: Engine) -> str:
    """The ID of the image. A sweep uses one image, even if another is built with the same name."""
    from docker.errors import DockerException

    try:
        return str(engine.client.images.get(image_name()).id)
    except DockerException as error:
        raise EngineError(f"image {image_name()} cannot be found: {error}") from error


def image_trouble(engine: Engine) -> str | None:
    """Why the engine's image cannot be used and how to fix it, or None."""
    from docker.errors import DockerException, ImageNotFound

    name = image_name()
    try:
        labels = engine.client.images.get(name).labels
    except ImageNotFound:
        return f"image {name} is not there: {command('image')}"
    except DockerException as error:
        raise EngineError(f"the Docker engine cannot be asked for image {name}: {error}") from error
    built_from = labels.get(LABEL, "unknown")
    if built_from == "unknown":  # built by `docker compose up`
        return f"image {name} does not say which sources it was built from: {command('image')}"
    if built_from != source_digest():
        return f"image {name} was built from other sources than these: {command('image')}"
    return None


def build(engine: Engine, wheels: Path | None) -> int:
    """Build the image and label it with the digest of its sources. Returns docker's exit code.

    wheels: a directory of wheels that take precedence over any index.
    """
    environment = _build_environment(wheels)
    compose = ("compose", "-f", str(COMPOSE / "ddp.yml"), "build", "data")
    try:
        return subprocess.run(engine.command(*compose), env=environment).returncode
    except OSError as error:
        raise EngineError(f"docker cannot be run ({error.strerror})") from error


def image_with(engine: Engine, requirements: Path) -> str:
    """The ID of the image with the packages of a requirements file, built unless it is there.

    Raises:
        InputError: The packages cannot be installed.
    """
    from docker.errors import ImageNotFound

    content = requirements.read_bytes()
    digest = sha256(image_id(engine).encode() + content).hexdigest()[:16]
    name = f"{IMAGE}-requirements:{digest}"
    try:
        return str(engine.client.images.get(name).id)
    except ImageNotFound:
        pass
    with tempfile.TemporaryDirectory(prefix="shardyard-image-") as directory:
        (Path(directory) / "requirements.txt").write_bytes(content)
        shutil.copy(DERIVED / "requirements.Dockerfile", directory)
        environment = {
            **_build_environment(None),
            "SHARDYARD_IMAGE": image_name(),
            "SHARDYARD_DERIVED": name,
            "SHARDYARD_REQUIREMENTS": directory,
        }
        compose = ("compose", "-f", str(DERIVED / "requirements.yml"), "build", "image")
        done = subprocess.run(engine.command(*compose), env=environment, capture_output=True, text=True)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise InputError(f"{requirements}: cannot be installed in the image: {' '.join(lines[:3])[:500]}")
    return str(engine.client.images.get(name).id)


def _build_environment(wheels: Path | None) -> dict[str, str]:
    environment = {**os.environ, "SHARDYARD_SOURCE": source_digest()}
    if found := wheels or _wheels_of_pip():
        environment["SHARDYARD_WHEELS"] = str(found.resolve())
    return environment


def _wheels_of_pip() -> Path | None:
    """The first directory in this machine's pip configuration (find-links)."""
    if "SHARDYARD_WHEELS" in os.environ:
        return None
    try:
        output = subprocess.run(
            ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    for line in output.splitlines():
        name, _, value = line.partition("=")
        if name.endswith("find-links"):
            for place in value.strip("'\"").replace("\\n", " ").split():
                path = Path(place.removeprefix("file://"))
                if path.is_dir():
                    return path
    return None
