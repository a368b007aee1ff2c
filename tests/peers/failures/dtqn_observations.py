"""DTQN: acting rounds observations of a Box to whole numbers

For a Box, `get_env_obs_mask` returns the whole number -5. `Context` fills its
array with it, NumPy makes that an array of integers, and every observation
that is written into it is cut to its integer part. The replay buffer asks for
float32 and keeps observations as they are, so training sees others than
acting. In Car Flag of the repository, positions from -1.1 to 1.1 become -1, 0
or 1, and speeds up to 0.07 become 0. A mask of -5.0 passes.
"""

import sys
from types import SimpleNamespace

import gym
import numpy as np

sys.path.insert(0, "DTQN")
from dtqn.buffers.replay_buffer import ReplayBuffer
from utils.context import Context
from utils.env_processing import get_env_obs_mask
from utils.random import RNG

RNG.rng = np.random.default_rng(0)
box = gym.spaces.Box(-1, 1, (3,))
env = SimpleNamespace(observation_space=box, reset=box.sample)
mask = get_env_obs_mask(env)
observation = np.array([0.9, -0.4, 0.3], np.float32)
context = Context(8, mask, 2, 3)
context.reset(observation)
buffer = ReplayBuffer(100, 3, mask, 10, 8)
buffer.store_obs(observation)
print("mask:", mask)
print("acting sees:", context.obs[0].tolist())
print("replay has: ", buffer.obss[0, 0].tolist())
print("difference:", float(np.abs(context.obs[0] - buffer.obss[0, 0]).max()))
