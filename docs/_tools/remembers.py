"""Draws docs/remembers.gif, the moving picture of the README: one episode without memory beside one with it.

python docs/_tools/remembers.py PPO_RUN GTRXL_RUN   # run folders of the suite first_contact, task cartpole_masked
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
from PIL import Image, ImageDraw, ImageFont
from stable_baselines3 import PPO

from rltransformers.agents import GTrXLPPO
from rltransformers.envs import DropIndices

PICTURE = Path(__file__).resolve().parents[1] / "remembers.gif"
STEPS, EVERY, SECONDS_PER_STEP = 240, 4, 0.02  # of CartPole: 4.8 seconds, 60 frames
SEED, SIZE, CROP = 3, (300, 200), (0, 100, 600, 400)


def main() -> None:
    """Two episodes from the same seed, next to each other; the first stops moving where it ends."""
    without, remembering = (Path(run) / "last.zip" for run in sys.argv[1:])
    actor = GTrXLPPO.load(remembering).actor()
    actor.reset()
    memoryless = PPO.load(without)
    left = list(frames(lambda observation, _: memoryless.predict(observation, deterministic=True)[0], "PPO, no memory"))
    right = list(frames(lambda observation, reward: actor(observation, reward), "GTrXL, with memory"))
    pictures = [beside(left[min(step, len(left) - 1)], right[step]) for step in range(0, len(right), EVERY)]
    milliseconds = round(1000 * EVERY * SECONDS_PER_STEP)
    pictures[0].save(PICTURE, save_all=True, append_images=pictures[1:], duration=milliseconds, loop=0, optimize=True)
    print(
        f"{PICTURE}: {len(pictures)} frames, {PICTURE.stat().st_size / 1000:.0f} kB; {len(left)} and {len(right)} steps"
    )


def frames(act: Callable[[Any, Any], Any], title: str) -> Iterator[Image.Image]:
    """A picture with text per step of an episode without velocities."""
    env = DropIndices(gymnasium.make("CartPole-v1", render_mode="rgb_array"), indices="velocities")
    observation, _ = env.reset(seed=SEED)
    reward: Any = None
    done, step = False, 0
    while not done and step < STEPS:
        observation, reward, terminated, truncated, _ = env.step(act(observation, reward))
        done, step = terminated or truncated, step + 1
        yield label(env.render(), title, f"fell after {step} steps" if terminated else f"step {step}")
    env.close()


def label(frame: Any, *lines: str) -> Image.Image:
    """A frame, smaller, with text in its corner."""
    picture = Image.fromarray(frame).crop(CROP).resize(SIZE, Image.Resampling.LANCZOS)
    draw = ImageDraw.Draw(picture)
    for number, text in enumerate(lines):
        draw.text((8, 6 + 18 * number), text, fill=(40, 40, 40), font=ImageFont.load_default(14))
    return picture


def beside(left: Image.Image, right: Image.Image) -> Image.Image:
    """Both, with few colors, as a GIF holds them."""
    both = Image.new("RGB", (2 * SIZE[0] + 8, SIZE[1]), (200, 200, 200))
    both.paste(left, (0, 0))
    both.paste(right, (SIZE[0] + 8, 0))
    return both.quantize(32)


if __name__ == "__main__":
    main()
