"""DQN on CartPole in one file, with NaP in two lines.

It prints the mean return of the latest episodes while it learns; CartPole's maximum is 500.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nap

GAMMA, BATCH_SIZE = 0.99, 64
LEARNING_RATE, LAST_LEARNING_RATE = 1e-3, 1e-5
LEARN_FROM_STEP, LEARN_EVERY_STEPS, TARGET_EVERY_STEPS = 500, 2, 250
EXPLORE_STEPS, LAST_EPSILON = 4_000, 0.03  # ε falls linearly to its last value


class Replay:
    """The transitions so far, as tensors."""

    def __init__(self, size: int, width: int):
        self.seen, self.next = torch.zeros(size, width), torch.zeros(size, width)
        self.action, self.count = torch.zeros(size, dtype=torch.long), 0
        self.reward, self.goes_on = torch.zeros(size), torch.zeros(size)

    def add(self, seen: np.ndarray, action: int, reward: float, new: np.ndarray, terminated: bool) -> None:
        i = self.count
        self.seen[i], self.next[i] = torch.from_numpy(seen), torch.from_numpy(new)
        self.action[i], self.reward[i], self.goes_on[i] = action, reward, 1.0 - terminated
        self.count += 1

    def draw(self, size: int) -> tuple[Tensor, ...]:
        i = torch.randint(self.count, (size,))
        return self.seen[i], self.action[i], self.reward[i], self.next[i], self.goes_on[i]


def q_network(inputs: int, actions: int, width: int = 128) -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU()),
        *(nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, actions),
    )


def loss(network: nn.Module, target: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
    """Huber loss of the double-DQN error."""
    seen, action, reward, new, goes_on = batch
    with torch.no_grad():
        best = network(new).argmax(1, keepdim=True)
        goal = reward + GAMMA * goes_on * target(new).gather(1, best).squeeze(1)
    return F.smooth_l1_loss(network(seen).gather(1, action[:, None]).squeeze(1), goal)


def train(steps: int, seed: int, *, use_nap: bool = True) -> list[float]:
    """The returns of all episodes."""
    torch.manual_seed(seed)
    choose = np.random.default_rng(seed)
    env = gymnasium.make("CartPole-v1")
    network = q_network(4, 2)
    if use_nap:
        nap.normalize_(network, torch.zeros(2, 4))  # NaP: step 1, before optimizer and target
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    if use_nap:
        nap.Projector(network, output="free").attach(optimizer)  # NaP: step 2; values have a scale to find
    updates = (steps - LEARN_FROM_STEP) // LEARN_EVERY_STEPS
    schedule = nap.schedules.linear(optimizer, total_steps=max(updates, 1), end_value=LAST_LEARNING_RATE)

    replay, returns, total = Replay(steps, 4), [], 0.0
    seen, _ = env.reset(seed=seed)
    for step in range(steps):
        epsilon = max(LAST_EPSILON, 1 - step / EXPLORE_STEPS)
        action = int(choose.integers(2))
        if choose.random() > epsilon:
            with torch.no_grad():
                action = int(network(torch.from_numpy(seen)[None]).argmax())
        new, reward, terminated, truncated, _ = env.step(action)
        replay.add(seen, action, float(reward), new, terminated)
        seen, total = new, total + float(reward)
        if terminated or truncated:
            returns.append(total)
            total, (seen, _) = 0.0, env.reset()
        if step >= LEARN_FROM_STEP and step % LEARN_EVERY_STEPS == 0:
            optimizer.zero_grad()
            loss(network, target, replay.draw(BATCH_SIZE)).backward()
            optimizer.step()
            schedule.step()
        if step % TARGET_EVERY_STEPS == 0:
            target.load_state_dict(network.state_dict())
        if (step + 1) % (steps // 8) == 0 and returns:
            print(f"step {step + 1:6}  mean return of the last 10 episodes {mean(returns[-10:]):6.1f}")
    env.close()
    return returns


def mean(returns: list[float]) -> float:
    return statistics.fmean(returns) if returns else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-nap", action="store_true", help="train the plain agent")
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    returns = train(args.steps, args.seed, use_nap=not args.without_nap)
    print(f"first 10 episodes {mean(returns[:10]):.1f}, last 10 episodes {mean(returns[-10:]):.1f}", end="")
    print(f", {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
