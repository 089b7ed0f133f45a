"""Made-up environments with the interface that reinforcement learning programs of 2021 expect."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


class Env:
    """Ends after 20 steps; its observations are noise, its reward is the sum of one."""

    def __init__(self, observation: int = 4, actions: int = 2, *, continuous: bool = False):
        self._random = np.random.default_rng(0)
        self._left = 0
        high = np.full(1, 2.0, "float32")
        self.observation_space = SimpleNamespace(shape=(observation,))
        self.action_space = SimpleNamespace(
            shape=(1,) if continuous else (),
            n=actions,
            sample=lambda: int(self._random.integers(actions)),
            **({"high": high, "low": -high} if continuous else {}),
        )
        self._max_episode_steps = 20

    def seed(self, seed=None):
        self._random = np.random.default_rng(seed)

    def reset(self):
        self._left = self._max_episode_steps
        return self._observe()

    def step(self, action):
        self._left -= 1
        observed = self._observe()
        return observed, float(observed.sum()), self._left == 0, {}

    def render(self, mode="human"):
        pass

    def close(self):
        pass

    def _observe(self):
        return self._random.normal(size=self.observation_space.shape).astype("float32")


class Wrapper(Env):
    """Made by `make` only."""


ObservationWrapper = Wrapper


def make(name: str) -> Env:
    if "Pendulum" in name or "Continuous" in name:
        return Env(3, 1, continuous=True)
    return Env(8, 4) if "LunarLander" in name else Env()
