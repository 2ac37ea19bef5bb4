"""Export: what other programs read. The known formats, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.core.registry import Registry

if TYPE_CHECKING:  # the command line lists the names
    from orchestrator.export.base import Exporter

EXPORTERS: Registry[Exporter] = Registry(
    "format",
    {
        "csv": "orchestrator.export.csv_files:CsvExporter",
        "kuberay": "orchestrator.export.kuberay:KubeRayExporter",
        "kubernetes": "orchestrator.export.kubernetes:KubernetesExporter",
        "tensorboard": "orchestrator.export.tensorboard:TensorBoardExporter",
    },
)
