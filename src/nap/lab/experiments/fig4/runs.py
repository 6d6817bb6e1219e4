"""The runs of Figure 4: networks × streams × optimizer treatments × arms."""

from __future__ import annotations

from dataclasses import replace

from nap.lab.aliases import slug
from nap.lab.experiments.common.runs import arm_run, at_task_changes
from nap.lab.experiments.experiment import Run
from nap.lab.experiments.fig4 import HIDDEN, Fig4Config, layer_norm_with
from nap.lab.loops.population.settings import LAYER_NORM, Arm, Network, OptimizerState, StreamKind, continual


def runs(config: Fig4Config) -> list[Run]:
    """Networks × streams × treatments of the optimizer × (methods without and with NaP, LayerNorm)."""
    arms = [_arm(config, method, nap) for method in config.methods for nap in (False, True)]
    arms += [_layer_norm(method) for method in config.layer_norm if method in ("none", *config.methods)]
    return [
        run
        for network in config.networks
        for stream in config.streams
        for arm in arms
        for run in _runs(config, network, stream, arm)
    ]


def _arm(config: Fig4Config, method: str, nap: bool) -> Arm:
    arm = Arm(f"NaP + {method}" if nap else method, method=method)
    return config.nap(replace(arm, norm="layer", project="step")) if nap else arm


def _layer_norm(method: str) -> Arm:
    """LayerNorm without projection, by itself or with a method."""
    return replace(LAYER_NORM, name=layer_norm_with(method), method=method)


def _runs(config: Fig4Config, network: Network, stream: StreamKind, arm: Arm) -> list[Run]:
    nap = arm.project == "step"
    alone = arm.norm == LAYER_NORM.norm and not nap
    # rows without NaP and with a norm are no method's of the paper: the arm's name is theirs
    method = arm.name if alone else arm.method
    tags = {"experiment": "fig4", "network": network, "stream": stream, "method": method, "nap": nap}
    width = HIDDEN[network] // config.narrow

    def run(name: str, state: OptimizerState, more: dict[str, str]) -> Run:
        settings = continual(config, network=network, stream=stream, width=width, optimizer_state=state)
        kind = "NaP" if nap else LAYER_NORM.name if alone else "plain"
        made = arm_run(name, arm, settings, tags | more)
        # methods take the rate that is best without one: else each would hide how it changes the network
        return replace(made, group=slug(f"{network} {stream} {kind} {state}"), decides=arm.method == "none")

    return [run(*each) for each in at_task_changes(f"{network} {stream} {arm.name}", config.optimizer_state)]
