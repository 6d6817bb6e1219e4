"""PPO in one file, in CleanRL's style: CartPole, several environments at once. NaP is the marked lines.

It prints the mean return while it learns; CartPole's maximum is 500.
"""

from __future__ import annotations

import argparse
import statistics
import time

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import nap

ENVS, STEPS, MINIBATCHES, EPOCHS = 4, 128, 4, 4
GAMMA, LAMBDA, CLIP, ENTROPY, VALUE, MAX_GRAD_NORM = 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    """Actor and critic: two networks without a shared forward."""

    def __init__(self, inputs: int, actions: int, width: int = 64):
        super().__init__()
        self.critic = nn.Sequential(
            *(layer(inputs, width), nn.Tanh(), layer(width, width), nn.Tanh(), layer(width, 1, 1.0))
        )
        self.actor = nn.Sequential(
            *(layer(inputs, width), nn.Tanh(), layer(width, width), nn.Tanh(), layer(width, actions, 0.01))
        )

    def act(self, seen: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        chances = Categorical(logits=self.actor(seen))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(seen).squeeze(-1)


def train(total_steps: int, seed: int, *, lr: float = 2.5e-4, use_nap: bool = True) -> list[float]:
    """The returns of all episodes."""
    torch.manual_seed(seed)
    envs = gymnasium.make_vec(
        "CartPole-v1",
        ENVS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
    )
    agent = Agent(4, 2)
    if use_nap:
        batch = torch.zeros(2, 4)  # NaP: step 1 for each network, before the optimizer is built
        nap.normalize_(agent.actor, batch)  # NaP
        nap.normalize_(agent.critic, batch)  # NaP
    optimizer = torch.optim.Adam(agent.parameters(), lr=lr, eps=1e-5)
    if use_nap:
        nap.Projector(agent, output="free").attach(optimizer)  # NaP: step 2, after each optimizer.step()

    updates = max(total_steps // (ENVS * STEPS), 1)
    seen, done = torch.from_numpy(envs.reset(seed=seed)[0]), torch.zeros(ENVS)
    returns, running = [], np.zeros(ENVS)
    for update in range(updates):
        optimizer.param_groups[0]["lr"] = lr * (1 - update / updates)  # a schedule: with NaP the only one
        memory: list[tuple[Tensor, ...]] = []
        for _ in range(STEPS):
            with torch.no_grad():
                action, log_prob, _, value = agent.act(seen)
            new, reward, terminated, truncated, _ = envs.step(action.numpy())
            memory.append((seen, action, log_prob, value, torch.from_numpy(reward).float(), done))
            seen, done = torch.from_numpy(new), torch.from_numpy(terminated | truncated).float()
            running += reward
            returns += running[done.bool().numpy()].tolist()
            running[done.bool().numpy()] = 0.0
        _learn(agent, optimizer, memory, seen, done)
        if (update + 1) % max(updates // 8, 1) == 0 and returns:
            steps = (update + 1) * ENVS * STEPS
            print(f"step {steps:6}  mean return of the last 20 episodes {mean(returns[-20:]):6.1f}")
    envs.close()
    return returns


def _learn(agent: Agent, optimizer: torch.optim.Optimizer, memory: list, seen: Tensor, done: Tensor) -> None:
    """Some epochs on what was collected, with generalized advantage estimation and a clipped objective."""
    observations, actions, log_probs, values, rewards, dones = (
        torch.stack(part) for part in zip(*memory, strict=True)
    )
    with torch.no_grad():
        after, carried, advantages = agent.critic(seen).squeeze(-1), torch.zeros(ENVS), []
        for t in reversed(range(STEPS)):
            goes_on = 1 - (done if t == STEPS - 1 else dones[t + 1])
            error = rewards[t] + GAMMA * goes_on * after - values[t]
            carried = error + GAMMA * LAMBDA * goes_on * carried
            after = values[t]
            advantages.append(carried)
    advantage = torch.stack(advantages[::-1]).flatten()
    goal = advantage + values.flatten()
    observations, actions, log_probs = observations.flatten(0, 1), actions.flatten(), log_probs.flatten()
    for _ in range(EPOCHS):
        for i in torch.randperm(len(actions)).chunk(MINIBATCHES):
            _, log_prob, entropy, value = agent.act(observations[i], actions[i])
            ratio = (log_prob - log_probs[i]).exp()
            gain = (advantage[i] - advantage[i].mean()) / (advantage[i].std() + 1e-8)
            policy_loss = -torch.min(gain * ratio, gain * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
            value_loss = 0.5 * (value - goal[i]).square().mean()
            loss = policy_loss - ENTROPY * entropy.mean() + VALUE * value_loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), MAX_GRAD_NORM)
            optimizer.step()


def mean(returns: list[float]) -> float:
    return statistics.fmean(returns) if returns else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--without-nap", action="store_true", help="train the plain agent")
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    returns = train(args.steps, args.seed, lr=args.lr, use_nap=not args.without_nap)
    print(f"first 20 episodes {mean(returns[:20]):.1f}, last 20 episodes {mean(returns[-20:]):.1f}", end="")
    print(f", {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
