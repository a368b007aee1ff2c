"""Writes episodes as one HTML page without other files: the function behind ``rltransformers look``."""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

from rltransformers.agents.load import KINDS, Agent, load_agent
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_path, replacing
from rltransformers.core.ranges import Count, Episodes, Seed, strict
from rltransformers.envs.make import source_name
from rltransformers.look.data import page_data
from rltransformers.look.pack import compress, frames_of
from rltransformers.look.watch import Episode, play

LARGEST_PAGE = 5_000_000  # bytes that pictures are made to fit into
LEAST_PICTURES = 500_000  # bytes that they may have in any case


@strict
def look(
    agent: Any,
    env: Any,
    output: str | os.PathLike[str] = "look.html",
    *,
    episodes: Episodes = 1,
    seed: Seed = 0,
    target_returns: Sequence[float] | float | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    wrappers: Sequence[Any] = (),
    deterministic: bool = True,
    longest_episode: Count | None = None,
) -> Path:
    """Play episodes and write one HTML page that shows them step by step; return its path.

    The page has what the agent saw (frames of ``render_mode`` "rgb_array", else its observations), action, value and
    reward of every step, and the attention of every head of every layer, as acting computed it. It needs no other file
    and no network, and stays below 5 MB for 500 steps with 8 heads. Of longer episodes the first 1,000 steps are shown.

    Args:
        agent: one of this package, or the path that ``load_agent`` takes: a saved agent or a run folder.
        env: Gymnasium id, a function that makes an environment, or an environment, which stays open and is drawn if its
            ``render_mode`` is "rgb_array".
        output: file to write.
        episodes: per target return; the first ones of an evaluation with the same ``seed``.
        target_returns: what a Decision Transformer is asked for, in reward units; the page switches between them. None
            for what ``DecisionTransformer.actor`` takes then.
        env_kwargs, wrappers: as for ``rltransformers.envs.make_vec_env``.
        deterministic: most likely actions, or samples.
        longest_episode: steps after which an episode that goes on is an error, as for ``evaluate_online``.

    Raises:
        ConfigError: for an agent of another library, target returns of an agent that takes none, other spaces than the
            agent's, and an output that does not end in .html.
        CheckpointError: for a file that holds no agent of this package.
        DataError: for what the environment may not return, and an episode that does not end.
    """
    path = check_path(output)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"the page is written to {path}, whose name must end in .html")
    if isinstance(agent, str | os.PathLike):
        agent = load_agent(agent, device="cpu")
    if not isinstance(agent, tuple(KINDS.values())):
        raise ConfigError(
            f"look shows agents of this package ({', '.join(sorted(KINDS))}), and this is a {type(agent).__name__}"
        )
    agent = cast(Agent, agent)
    asked = [target_returns] if isinstance(target_returns, int | float) else target_returns
    if asked is not None and not len(asked):
        raise ConfigError("target_returns is empty, so no episode would be played; name returns, or leave it out")
    played = play(
        agent,
        env,
        episodes=episodes,
        seed=seed,
        target_returns=[None] if asked is None else [float(target) for target in asked],
        env_kwargs=env_kwargs or {},
        wrappers=wrappers,
        deterministic=deterministic,
        longest_episode=longest_episode,
    )
    text = page(agent, source_name(env), played, deterministic)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def page(agent: Agent, name: str, episodes: Sequence[Episode], deterministic: bool) -> str:
    """The page as text: template, style, script, and data as JSON. Nothing in the data can end the script or run."""
    data = page_data(agent, name, episodes, deterministic)
    room = LARGEST_PAGE - len(as_json(data)) - 50_000
    frames = [frames_of(agent, episode) for episode in episodes]
    data["pictures"], numbers, stride = compress(frames, max(room, LEAST_PICTURES))
    for drawn, number in zip(data["episodes"], numbers, strict=True):
        drawn["picture"] = number
    if stride > 1:
        few = (
            f"For the size of the page, pictures are those of the steps 0, {stride}, {2 * stride}, ..., and stand for"
            " the steps behind them, too."
        )
        data["note"] = f"{data['note']} {few}".strip()
    folder = resources.files("rltransformers.look")
    style, script = ((folder / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    parts = {
        "title": html.escape(data["title"]),
        "style": style,
        "script": script,
        "data": as_json(data),
        "allowed": f"style-src {content_hash(style)}; script-src {content_hash(script)}",
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], (folder / "page.html").read_text("utf-8"))


def as_json(data: Any) -> str:
    """JSON in ASCII without characters that end a script or begin a comment in HTML."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def content_hash(text: str) -> str:
    """What a content security policy calls a text that may run."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
