"""`tacc.amp`: the scaler of scripts that train in float16. The ranks scale the loss themselves (`compute.fp16`, `compute.grad_scaler`)."""

from __future__ import annotations

from typing import Any


class GradScaler:
    """As torch.amp.GradScaler in a loop, around a loss that is scaled where the gradients are."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def scale(self, outputs: Any) -> Any:
        """What is given."""
        return outputs

    def unscale_(self, optimizer: Any) -> None:
        """Nothing: gradients are not scaled here."""

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """The optimizer's step; the ranks skip it if gradients are not finite."""
        return optimizer.step(*args, **kwargs)

    def update(self, *_: Any) -> None:
        """Nothing: the ranks do it with each step."""

    def get_scale(self) -> float:
        """1: of the loss here."""
        return 1.0

    def is_enabled(self) -> bool:
        """False: of the loss here."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Nothing: checkpoints of the job have its loss scale."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing, as `state_dict`."""
