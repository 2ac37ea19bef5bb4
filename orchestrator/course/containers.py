"""Sandboxes for submissions that are containers: nothing but the submission to read."""

from __future__ import annotations

from pathlib import Path

from orchestrator.course.local import ONE_THREAD
from orchestrator.errors import InputError
from orchestrator.identity import identity
from orchestrator.runtimes.docker.engine import EngineError, reach
from orchestrator.runtimes.docker.image import image_id, image_trouble
from orchestrator.runtimes.docker.reaper import Reaper, remove_of_orchestrator, remove_orphans
from orchestrator.runtimes.docker.sandbox import ContainerSandbox, confined
from orchestrator.sandbox.base import Limits

SUBMISSION = "/submission"  # in the container


class ContainerSandboxes:
    """The engine, the image, and the clean-up of all containers of this process."""

    def __init__(self) -> None:
        """Raises InputError if there is no engine, or no image of these sources."""
        try:
            self.engine = reach()
            trouble = image_trouble(self.engine)
        except EngineError as error:
            trouble = str(error)
        if trouble:
            raise InputError(f"--runtime docker: {trouble}; or --runtime local, for code that you trust")
        self.image = image_id(self.engine)
        remove_orphans(self.engine)
        self._reaper = Reaper(identity())  # removes them if this process is killed

    def sandbox(self, directory: Path, limits: Limits) -> ContainerSandbox:
        """A sandbox for one submission, not yet started."""
        module = ["trainer.course", SUBMISSION]
        settings = confined(module, limits, {directory.resolve(): SUBMISSION}, ONE_THREAD)
        return ContainerSandbox(self.engine, self.image, settings, limits)

    def close(self) -> None:
        """Remove whatever is left."""
        remove_of_orchestrator(self.engine, identity())
