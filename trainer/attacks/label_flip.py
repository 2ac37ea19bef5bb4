"""Label flip: training on wrong labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.attacks.base import Attack

if TYPE_CHECKING:
    from torch import Tensor


class LabelFlip(Attack):
    """Train on label C − 1 − y in place of y, for C classes (Fang et al. 2020).

    The node trains and averages as all others do. Only its labels are wrong. With an odd number of classes
    the one in the middle keeps its label.

    Source: Fang et al. 2020, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning",
    the label flipping attack of the experiments; see also Tolpegin et al. 2020, "Data Poisoning Attacks
    Against Federated Learning Systems".
    """

    needs_classes: ClassVar[bool] = True

    def targets(self, targets: Tensor, classes: int) -> Tensor:
        return classes - 1 - targets
