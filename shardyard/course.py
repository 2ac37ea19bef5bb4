"""What tests of an assignment are written with: checks, and ranks, stages and networks for them.

docs/teaching.md has examples.
"""

from orchestrator.course.checks import Check, Failure, check, close, equal, holds
from orchestrator.course.network import Collective, Network
from orchestrator.course.pipeline import Pipeline
from orchestrator.course.student import Student, Waiting
from orchestrator.course.training import Training
from trainer.course.protocol import Seed

__all__ = [
    "Check",
    "Collective",
    "Failure",
    "Network",
    "Pipeline",
    "Seed",
    "Student",
    "Training",
    "Waiting",
    "check",
    "close",
    "equal",
    "holds",
]
