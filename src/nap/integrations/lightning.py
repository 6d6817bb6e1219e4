"""PyTorch Lightning: `Trainer(callbacks=[NaPCallback()])`, and `load_from_checkpoint` of what it wrote."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the same library under its other name
    from pytorch_lightning import Callback  # type: ignore[assignment]

from nap.checkpoints import plans_of, rebuild_
from nap.conversion.normalize import normalize_, plan
from nap.integrations.late import LateProjector, is_converted
from nap.integrations.monitor import Monitor
from nap.projection.project import Projector
from nap.weights import Role

PLANS = "nap_plans"  # the key of a checkpoint


class NaPCallback(Callback):
    """Both steps of NaP in a Lightning run: norms before the optimizers are made, projection after each step.

    A module on which `nap.normalize_` was called, or on a part of it, is left as it is. Another one gets
    its norms from a forward of its `example_input_array`. All optimizers of `configure_optimizers` are
    followed, in manual optimization too. The radii are in the checkpoint: a resumed run projects to the
    norms that the first one started with.

    Args:
        normalize: options of `nap.normalize_`, such as `{"norm": "rms"}`; False takes the model as it is,
            for step 2 alone or where `configure_model` builds and converts it.
        options: those of `nap.Projector`, such as `output="free"`.
    """

    def __init__(self, *, normalize: Mapping[str, Any] | bool = True, **options: Any):
        self._normalize = normalize
        self._late = LateProjector(**options)

    @property
    def projector(self) -> Projector | None:
        """The projector, once training has started."""
        return self._late.projector

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # before a checkpoint is loaded and optimizers are made, so that both know the norms
        if self._normalize is not False and not is_converted(pl_module):
            _convert_(pl_module, {} if self._normalize is True else dict(self._normalize))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._late.start(pl_module, trainer.optimizers, resumed=trainer.ckpt_path is not None)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._late.stop()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint[PLANS] = plans_of(pl_module)

    def state_dict(self) -> dict[str, Any]:
        return self._late.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._late.load_state_dict(state_dict)


def _convert_(module: Any, options: dict[str, Any]) -> None:
    kind, example = type(module).__name__, module.example_input_array
    if example is None:
        raise ValueError(
            f"{kind} has no example_input_array, so there is nothing to trace it with; set it, or call "
            "nap.normalize_ in its __init__, or take it without norms: NaPCallback(normalize=False)"
        )
    named = example if isinstance(example, dict) else None
    found = plan(module, () if named else example, named, **options)
    unused = [row.name for row in found.weights.of(Role.UNUSED) if module.get_parameter(row.name).ndim > 1]
    if unused and not found.problems:
        raise ValueError(
            f"{', '.join(unused)}: not used when {kind} is called with its example_input_array, so what "
            "they need is not known; call nap.normalize_ in __init__, on each part with inputs of its own"
        )
    normalize_(module, found)


def load_from_checkpoint(kind: Any, path: str | os.PathLike[str], **options: Any) -> Any:
    """`kind.load_from_checkpoint` of what a Trainer with `NaPCallback` wrote: its norms are rebuilt.

    A module that converts itself in `__init__` or `configure_model` does as well without this.

    Args:
        kind: a LightningModule class.
        options: those of `kind.load_from_checkpoint`, such as `map_location` or arguments of `__init__`.
    """

    def on_load_checkpoint(self: Any, checkpoint: dict[str, Any]) -> None:
        if not checkpoint.get(PLANS):
            raise ValueError(
                f"{path} has no plan of nap: it was written without NaPCallback, or from a module without "
                f"layers of nap. Of one without them: {kind.__name__}.load_from_checkpoint, then "
                "nap.normalize_. Of one with them: call nap.normalize_ in its __init__, as it was called then"
            )
        rebuild_(self, checkpoint[PLANS])
        kind.on_load_checkpoint(self, checkpoint)

    rebuilt: Any = type(kind.__name__, (kind,), {"on_load_checkpoint": on_load_checkpoint})
    module = rebuilt.load_from_checkpoint(path, **options)
    module.__class__ = kind
    return module


class MonitorCallback(Callback):
    """Logs what `nap.integrations.monitor.Monitor` measures, under "nap/", to the loggers of the trainer.

    The numbers are also in `trainer.callback_metrics`, where other callbacks can watch them. List it after
    NaPCallback: then it sees projected weights.

    Args:
        probe: a fixed batch, as the module is called with it: a tuple lists the arguments, a dict names them.
        options: those of `Monitor`, such as `every=100`.
    """

    def __init__(self, probe: Any, **options: Any):
        self._probe, self._options = probe, options
        self._monitor: Monitor | None = None
        self._fresh: dict[str, float] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def log(numbers: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)
            self._fresh = numbers

        self._monitor = Monitor(pl_module, self._probe, log, **self._options)
        self._monitor.attach(*trainer.optimizers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *rest: Any) -> None:
        if self._fresh:
            pl_module.log_dict(self._fresh, logger=False)  # inside of an optimizer's step it is not allowed
            self._fresh = {}

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._monitor is not None:
            self._monitor.detach()
