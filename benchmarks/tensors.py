"""Speed of collecting and learning with 1,024 environments in tensors, against the same environments in numpy."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from stable_baselines3.common.env_util import make_vec_env as make_dummy_vec_env
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.harness import Pair, Row, Stopwatch, interleave, parameters
from rltransformers.agents import GTrXLPPO
from rltransformers.envs import make_vec_env
from rltransformers.policies.steps import Acting

ENVS, STEPS = 1024, 32
SMALL = {"preset": "gtrxl", "width": 16, "layers": 1, "heads": 2, "memory": 8, "ff_width": 16}
USUAL = {"preset": "gtrxl", "width": 64, "layers": 2, "heads": 4, "memory": 64, "ff_width": 64}


@dataclass(frozen=True)
class Peer:
    """Environments in numpy."""

    name: str
    make: Callable[[str], VecEnv]


OURS = Peer("our NumPy environments", lambda env_id: make_vec_env(env_id, ENVS, seed=0))
OF_SB3 = Peer("DummyVecEnv", lambda env_id: make_dummy_vec_env(env_id, ENVS, seed=0))


def tensors_loop(*, repetitions: int = 5) -> Iterator[Row]:
    """Collect and update; the environments of our memory tasks in numpy are one program already, CartPoles are not."""
    cues = "rltransformers/CueRecall-v0"
    for peer in (OF_SB3, OURS):
        yield from loop_rows("CartPole-v1", peer, SMALL, 1, ">= 3", repetitions)
        yield from loop_rows("CartPole-v1", peer, SMALL, 1, ">= 3", repetitions, "compiled")
    yield from loop_rows(cues, OF_SB3, SMALL, 1, ">= 3", repetitions)
    yield from loop_rows(cues, OURS, SMALL, 1, "", repetitions)
    yield from loop_rows("CartPole-v1", OF_SB3, USUAL, 3, "", repetitions)


def loop_rows(
    env_id: str,
    peer: Peer,
    backbone: dict[str, Any],
    epochs: int,
    target: str,
    repetitions: int,
    acting: Acting = "eager",
) -> Iterator[Row]:
    """Steps per second of whole iterations, and of their rollouts."""
    settings: dict[str, Any] = {
        "n_steps": STEPS, "n_epochs": epochs, "target_kl": None, "acting": acting, "updates": acting, "seed": 0,
        "device": "cpu", "policy_kwargs": {"backbone": backbone},
    }  # fmt: skip
    ours = GTrXLPPO("GTrXLPolicy", make_vec_env(env_id, ENVS, seed=0, processes="tensors"), **settings)
    theirs = GTrXLPPO("GTrXLPolicy", peer.make(env_id), **settings)
    watches = Stopwatch(), Stopwatch()

    def iteration(model: GTrXLPPO, watch: Stopwatch) -> Callable[[], None]:
        def run() -> None:
            model.learn(ENVS * STEPS, callback=watch, reset_num_timesteps=False)

        return run

    whole = interleave(iteration(ours, watches[0]), iteration(theirs, watches[1]), repetitions)
    rollout = Pair(watches[0].rollouts[-repetitions:], watches[1].rollouts[-repetitions:])
    update = sum(whole.ours) - sum(rollout.ours)
    task, width = env_id.rpartition("/")[2].partition("-")[0], backbone["width"]
    setting = (
        f"{ENVS} environments x {STEPS} steps, epochs {epochs}, batches of a quarter; width {width}, "
        f"layers {backbone['layers']}, memory {backbone['memory']}, {parameters(ours.policy)} parameters"
    )
    form = "" if acting == "eager" else f", {acting}"
    share = f"the update takes {update / sum(whole.ours):.0%} of ours"
    for name, pair, bound, note in (("loop", whole, target, share), ("rollout", rollout, "", "")):
        row = pair.row(f"Tensors: {task}, width {width}{form}, {name}", setting, "steps/s", peer.name, bound, note=note)
        yield replace(row, ours=ENVS * STEPS / row.ours, peer=ENVS * STEPS / row.peer)
