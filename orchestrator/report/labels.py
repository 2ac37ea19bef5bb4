"""What runs are called: their components with parameters, and the work that they have in common."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.spec import REGISTRIES, RunSpec


@dataclass(frozen=True)
class Work:
    """What is trained. Times and accuracies compare where it is equal."""

    dataset: str
    model: str
    optimizer: str
    lr: float
    batch_size: int  # samples per step on each node
    epochs: int
    threads: int  # per rank

    @classmethod
    def of(cls, run: RunSpec) -> Work:
        return cls(
            component_label(run, "dataset"),
            component_label(run, "model"),
            component_label(run, "optimizer"),
            run.lr,
            run.batch_size,
            run.epochs,
            run.threads,
        )

    @property
    def label(self) -> str:
        threads = "" if self.threads == 1 else f", {self.threads} threads per node"
        epochs = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
        return (
            f"{self.dataset}, {self.model}, {self.optimizer} lr {self.lr:g}, "
            f"batch {self.batch_size} per node, {epochs}{threads}"
        )


def component_label(run: RunSpec, field: str) -> str:
    """A component's name and the parameters that are not the default: `one_shot init=independent`."""
    shown = REGISTRIES[field].dump(getattr(run, field), exclude_defaults=True)
    return " ".join([shown.pop("name"), *(f"{name}={_written(value)}" for name, value in shown.items())])


def parameters(run: RunSpec, field: str) -> dict[str, str]:
    """All parameters of a component as they are written, defaults too."""
    shown = REGISTRIES[field].dump(getattr(run, field))
    return {name: _written(value) for name, value in shown.items() if name != "name"}


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
