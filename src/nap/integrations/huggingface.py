"""Hugging Face: `Trainer(model, args, callbacks=[NaPCallback()])` after `nap.normalize_(model, (), batch)`.

`save_pretrained` and `from_pretrained` write and rebuild a converted model. accelerate needs nothing of this:
`nap.Projector(model).attach(optimizer)` takes a prepared optimizer, and
`accelerator.register_for_checkpointing(projector)` keeps its radii.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedModel, TrainerCallback
from transformers.trainer_callback import ExportableState

from nap.checkpoints import plans_of, rebuild_, unwrapped_model
from nap.integrations.late import LateProjector, from_json, is_converted, to_json
from nap.integrations.monitor import Monitor
from nap.projection.project import Projector

PLANS = "nap_plans"  # the key of config.json


class NaPCallback(TrainerCallback, ExportableState):
    """Step 2 of NaP in a Trainer, which makes its optimizer when it starts to train.

    Call `nap.normalize_` on the model before you build the Trainer (or inside of `model_init`). The radii
    are in `trainer_state.json` of each checkpoint: a resumed run projects to the norms that the first one
    started with. The plan is in its `config.json`, so that `from_pretrained` below reads it.

    Args:
        normalized: False takes a model that `nap.normalize_` has not seen: step 2 alone.
        options: those of `nap.Projector`, such as `every=10`; `exclude` by name, to fit into a checkpoint.
    """

    def __init__(self, *, normalized: bool = True, **options: Any):
        exclude = options.get("exclude", ())
        if not all(isinstance(name, str) for name in ([exclude] if isinstance(exclude, str) else exclude)):
            raise ValueError("exclude: NaPCallback is saved as JSON; name parameters or modules by strings")
        self._args = {"normalized": normalized, **options}
        self._normalized = normalized
        self._late = LateProjector(**options)

    @property
    def projector(self) -> Projector | None:
        """The projector, once training has started."""
        return self._late.projector

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model, optimizer = kwargs["model"], kwargs["optimizer"]
        if self._normalized and not is_converted(model):
            raise ValueError(
                f"this {type(model).__name__} never went through nap.normalize_; call it before you build "
                "the Trainer, or take the model without norms: NaPCallback(normalized=False)"
            )
        if isinstance(plain := unwrapped_model(model), PreTrainedModel):
            _note_plans_(plain)
        resumed = state.global_step > 0
        if resumed:
            saved = state.stateful_callbacks.get(type(self).__name__, {})
            self._late.load_state_dict(from_json(saved["attributes"]["radii_and_counts"]) if saved else {})
        self._late.start(model, [optimizer], resumed=resumed)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._late.stop()

    def state(self) -> dict[str, Any]:
        """What Trainer writes into a checkpoint."""
        return {"args": self._args, "attributes": {"radii_and_counts": to_json(self._late.state_dict())}}


def save_pretrained(model: PreTrainedModel, folder: str | os.PathLike[str], **options: Any) -> None:
    """`model.save_pretrained` of a model that `nap.normalize_` converted, with the plan in its config."""
    if not is_converted(model):
        raise ValueError(
            f"this {type(model).__name__} has no layers of nap; call nap.normalize_ first, or write it with "
            "model.save_pretrained"
        )
    _note_plans_(model)
    model.save_pretrained(folder, **options)


def from_pretrained(kind: Any, folder: str | os.PathLike[str], **options: Any) -> Any:
    """`kind.from_pretrained` of what `save_pretrained`, or a Trainer with `NaPCallback`, wrote.

    Args:
        kind: a model class, or an Auto class.
        options: those of `kind.from_pretrained`, such as `dtype="bfloat16"` or `device_map="auto"`.
    """
    config = options.pop("config", None) or AutoConfig.from_pretrained(folder)
    plans = getattr(config, PLANS, None)
    if not plans:
        raise ValueError(
            f"the config in {folder} has no plan of nap, so it was written without nap's save_pretrained and "
            f"NaPCallback. Of a model without layers of nap: {kind.__name__}.from_pretrained, then "
            "nap.normalize_. Of one with them: build the model from its config, call nap.normalize_ as was "
            "done then, and load the state"
        )
    if not issubclass(kind, PreTrainedModel):
        with torch.device("meta"):
            kind = type(kind.from_config(config))
    frozen: list[str] = []

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)
        rebuild_(self, plans)
        frozen.extend(name for name, parameter in self.named_parameters() if not parameter.requires_grad)

    rebuilt: Any = type(kind.__name__, (kind,), {"__init__": init})
    loaded = rebuilt.from_pretrained(folder, config=config, **options)
    model = loaded[0] if isinstance(loaded, tuple) else loaded  # with output_loading_info=True
    model.__class__ = kind
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return loaded


def _note_plans_(model: PreTrainedModel) -> None:
    setattr(model.config, PLANS, plans_of(model))


class MonitorCallback(TrainerCallback):
    """Logs what `nap.integrations.monitor.Monitor` measures, under "nap/", to all that Trainer reports to.

    Add it to a Trainer that is there: `trainer.add_callback(MonitorCallback(trainer, probe))`.

    Args:
        probe: a fixed batch, as the model is called with it: a dict names the arguments.
        options: those of `Monitor`, such as `every=100`.
    """

    def __init__(self, trainer: Any, probe: Any, **options: Any):
        self._trainer, self._probe, self._options = trainer, probe, options
        self._monitor: Monitor | None = None
        self._fresh: dict[str, float] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._monitor = Monitor(kwargs["model"], self._probe, self._fresh.update, **self._options)
        self._monitor.attach(kwargs["optimizer"])
        self._flush()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._flush()  # only now has the Trainer counted the step

    def _flush(self) -> None:
        if self._fresh:
            self._trainer.log(dict(self._fresh))
            self._fresh.clear()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._monitor is not None:
            self._monitor.detach()
