"""sb3-contrib `RecurrentPPO`: a run that stops in mid-episode forgets

The file does not contain the state of the LSTM. By default `load` resets the
environment, and nothing is lost. With `force_reset=False` the episode
continues, but the memory is zeros. (`predict` returns its state to the
caller, who can store it.)
"""

from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env

env = make_vec_env("CartPole-v1", n_envs=1, seed=0)
model = RecurrentPPO(
    "MlpLstmPolicy", env, n_steps=8, batch_size=8, seed=0
).learn(8)
model.save("run")
loaded = RecurrentPPO.load("run", env=env, force_reset=False)
print(
    "an episode begins:",
    model._last_episode_starts,
    loaded._last_episode_starts,
)
memories = [each._last_lstm_states.pi[0] for each in (model, loaded)]
for name, memory in zip(("before", "after loading"), memories):
    print(f"largest number in the memory {name}:", float(memory.abs().max()))
print("difference:", float((memories[0] - memories[1]).abs().max()))
