"""How much code a reader passes: functions and files of this package that a call runs, and how deep they are nested.

python benchmarks/reading.py
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the working tree, not an installed copy

import numpy as np  # noqa: E402
import torch  # noqa: E402

from rltransformers.agents import GTrXLPPO  # noqa: E402
from rltransformers.backbone import Backbone, BackboneConfig  # noqa: E402
from rltransformers.envs import make_vec_env  # noqa: E402

NETWORK = {"attention", "backbone", "blocks", "functional", "memory", "mixers", "positions", "stacks"}
"""Folders whose functions a reader of an algorithm need not open."""


class Reading:
    """Code objects of this package that ran, how many calls there were, and how deep they were nested."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.deepest = self.calls = self._depth = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take in one event of ``sys.setprofile``."""
        code = frame.f_code
        path = Path(code.co_filename)
        if event not in ("call", "return") or code.co_name.startswith("<") or not _is_ours(path):
            return
        self.calls += event == "call"
        self._depth += 1 if event == "call" else -1
        self.deepest = max(self.deepest, self._depth)
        self.functions.add((str(path.resolve()), code.co_qualname, code.co_firstlineno))

    def row(self) -> str:
        """Functions and files, in all and without the network, the depth, and the calls."""
        outside = {each for each in self.functions if not set(Path(each[0]).parts) & NETWORK}
        counts = [len(self.functions), _files(self.functions), len(outside), _files(outside), self.deepest, self.calls]
        return "".join(f"{count:>10}" for count in counts)


def _is_ours(path: Path) -> bool:
    return path.is_relative_to(ROOT) and ".venv" not in path.parts and path != Path(__file__).resolve()


def _files(functions: set[tuple[str, str, int]]) -> int:
    return len({path for path, *_ in functions})


@contextmanager
def reading() -> Iterator[Reading]:
    """What runs in the block."""
    reader = Reading()
    sys.setprofile(reader)
    try:
        yield reader
    finally:
        sys.setprofile(None)


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What people do, each once warm."""
    env = make_vec_env("rltransformers/CueRecall-v0", num_envs=4, seed=0)
    backbone = {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 8}
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=16, policy_kwargs={"backbone": backbone}, seed=0, device="cpu")
    model.learn(128)
    _, callback = model._setup_learn(10**6, None, False)
    rollout = (model.env, callback, model.rollout_buffer, model.n_steps)
    yield "a rollout of PPO", lambda: model.collect_rollouts(*rollout)  # type: ignore[arg-type]
    yield "an update of PPO", model.train
    observation = np.asarray(model._last_obs)
    yield "predict", lambda: model.predict(observation)
    layer = Backbone({**backbone, "layers": 1})
    tokens, reset = torch.randn(2, 8, 16), torch.zeros(2, 1, dtype=torch.bool)
    state = layer.initial_state(2, cached=True)
    yield "a segment through one layer", lambda: layer(tokens)
    yield "a step", torch.no_grad()(lambda: layer(tokens[:, :1], state, reset))
    yield "making a config", lambda: BackboneConfig.from_dict(backbone)


def main() -> None:
    """Print the table."""
    print(
        f"{'call':<30}"
        + "".join(f"{name:>10}" for name in ("functions", "files", "no network", "files", "depth", "calls"))
    )
    for name, call in calls():
        with reading() as reader:
            call()
        print(f"{name:<30}{reader.row()}")


if __name__ == "__main__":
    main()
