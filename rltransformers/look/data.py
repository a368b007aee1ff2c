"""What a page shows, as JSON values. H heads, S steps that a head looks back, G tokens per step, T steps."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from rltransformers import __version__
from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.load import Agent
from rltransformers.core.spaces import leaf_spaces
from rltransformers.look.pack import Layers, attention_sums, pack_attention
from rltransformers.look.watch import Episode, action_leaves, backbone_of

MOST_NUMBERS = 64  # of an observation, that are drawn
OF_RETURNS = 7  # digits
METRICS = {
    "gate_openness": ("gates", "share of what a sublayer adds that its gate lets through"),
    "span": ("adaptive span", "tokens, mean over the heads of a layer"),
}
"""Title and explanation of what a backbone reports; the last part of a name says what it is."""
OF_ATTENTION = {"lookback", "entropy", "empty_slots"}
"""Reports that the page has no use for where it has the attention itself."""


def page_data(agent: Agent, name: str, episodes: Sequence[Episode], deterministic: bool) -> dict[str, Any]:
    """All but pictures, as JSON values."""
    config, layers = backbone_of(agent).config, Layers()
    mode = agent.settings.mode if isinstance(agent, DecisionTransformer) else None
    tokens = ["advantage" if mode == "advantage" else "return-to-go", "observation", "action"]
    for episode in episodes:
        for masses in episode.attention:
            for layer, mass in masses.items():
                layers[layer] = len(mass), max(mass.shape[1], layers.get(layer, (0, 0))[1])
    silent = [str(number) for number in range(config.layers) if f"layer{number}" not in layers]
    notes = [f"Layers whose mixer has no attention weights, so that there are none to show: {', '.join(silent)}."]
    notes = notes if silent else []
    every = agent.policy.decide_every if isinstance(agent, DecisionTransformer) else 1
    if every > 1 and layers:
        notes.append(
            f"The policy decides every {every} steps: 0, {every}, {2 * every}, ... Steps between take the actions that "
            "the last decision planned; no decision reads the attention that is shown there."
        )
    return {
        "title": f"{agent.kind} in {name}",
        "about": f"{int(agent.num_timesteps):,} training steps, {'most likely' if deterministic else 'sampled'} actions"
        f", rltransformers {__version__}",
        "kinds": ["step"] if config.tokens_per_step == 1 else tokens[-config.tokens_per_step :],
        "note": " ".join(notes),
        "layers": [
            {"name": layer.replace("layer", "layer "), "heads": heads, "steps": steps}
            for layer, (heads, steps) in layers.items()
        ],
        "actions": [
            action_kind(f"action {path}" if path else "action", leaf)
            for path, leaf in leaf_spaces(agent.action_space).items()
        ],
        "episodes": [episode_data(agent, episode, layers) for episode in episodes],
    }


def action_kind(name: str, space: spaces.Space[Any]) -> dict[str, Any]:
    """How the page draws a leaf of the action: ``sizes`` of the classes side by side, or bounds of a Box."""
    if isinstance(space, spaces.Box):
        low, high = (round_numbers(np.clip(bound.reshape(-1), -1e30, 1e30)) for bound in (space.low, space.high))
        return {"name": name, "low": low, "high": high}
    if isinstance(space, spaces.Discrete):
        return {"name": name, "sizes": [int(space.n)], "starts": [int(space.start)]}
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = (each.reshape(-1).tolist() for each in (space.nvec, space.start))
        return {"name": name, "sizes": sizes, "starts": starts}
    return {"name": name, "bits": int(np.prod(space.shape))}  # type: ignore[arg-type]  # a MultiBinary


def episode_data(agent: Agent, episode: Episode, layers: Layers) -> dict[str, Any]:
    """One episode as JSON values, without pictures."""
    outputs = episode.outputs
    actions: list[dict[str, Any]] = [{} for _ in leaf_spaces(agent.action_space)]
    for kind in ("action", "probabilities", "mean", "deviation", "q_values"):
        steps = [list(action_leaves(agent, output, kind).values()) for output in outputs]
        for leaf, values in zip(actions, zip(*steps, strict=True), strict=True):
            if values[0] is not None:
                unit = reward_unit(agent) if kind == "q_values" else 1.0
                leaf[kind] = [round_numbers(np.asarray(value, np.float64).reshape(-1) * unit) for value in values]
    return {
        "seed": episode.seed,
        "target": round_numbers([episode.target], OF_RETURNS)[0],
        "total": round_numbers([episode.total], OF_RETURNS)[0],
        "length": episode.length,
        "success": episode.success,
        "steps": len(outputs),
        "actions": actions,
        "tracks": [track for track in tracks_of(agent, episode) if track["lines"]],
        "seen": seen_numbers(episode),
        "attention": pack_attention(episode, layers),
        "sums": attention_sums(episode, layers),
    }


def tracks_of(agent: Agent, episode: Episode) -> Iterator[dict[str, Any]]:
    """Lines over the steps, with what they are."""

    def track(name: str, about: str, digits: int = 4, /, **lines: Sequence[float | None]) -> dict[str, Any]:
        named = [
            {"name": re.sub(r"layer(\d+)/?", r"layer \1 ", label).strip(), "values": round_numbers(values, digits)}
            for label, values in lines.items()
            if any(value is not None for value in values)
        ]
        return {"name": name, "about": about, "lines": named}

    outputs, rewards = episode.outputs, episode.rewards[: len(episode.outputs)]
    yield track("reward", "of the step, as the environment gave it", reward=rewards)
    total = np.cumsum(rewards).tolist()
    yield track("return so far", "rewards up to the step, its own included", OF_RETURNS, total=total)
    asked, predicted = zip(*episode.returns_to_go, strict=True)
    about = "what the rest of the episode is asked to return, and the prediction of the return head if there is one"
    yield track("return-to-go", about, OF_RETURNS, asked=asked, predicted=predicted)
    unit = reward_unit(agent)
    values = [None if output.value is None else float(output.value) * unit for output in outputs]
    yield track("value", "what the policy expects to earn from here on, in rewards", value=values)
    chances = [None if output.log_prob is None else -float(output.log_prob) for output in outputs]
    about = "minus the logarithm of the probability of the action, in nats; of a Box of its density, in policy units"
    yield track("surprise", about, surprise=chances)
    if not isinstance(agent, DecisionTransformer):
        later = [0.0 if ends else value for ends, value in zip(episode.ends, [*values[1:], None], strict=False)]
        errors = [
            None if value is None or following is None else reward + agent.gamma * following - value
            for reward, value, following in zip(rewards, values, later, strict=True)
        ]
        about = f"reward + {agent.gamma:g} * next value - value: how much better the step went than expected"
        yield track("value error", about, error=errors)
    entropy = [None if output.entropy is None else float(output.entropy) for output in outputs]
    yield track("entropy of the policy", "in nats; of a Box in policy units", entropy=entropy)
    attention = episode.attention
    back = {name: [mean_back(masses[name]) for masses in attention] for name in attention[0]}
    yield track("look-back", "steps back that attention looks on average, mean over the heads of a layer", **back)
    spread = {name: [mean_entropy(masses[name]) for masses in attention] for name in attention[0]}
    yield track("spread of attention", "entropy of the weights in nats, mean over the heads of a layer", **spread)
    kinds: dict[str, dict[str, Any]] = {}
    for name in episode.metrics[0]:
        place, _, kind = name.rpartition("/")
        if not (kind in OF_ATTENTION and place in attention[0]):
            kinds.setdefault(kind, {})[place] = [metrics.get(name) for metrics in episode.metrics]
    tokens = "; mean over all tokens that the step reads" if isinstance(agent, DecisionTransformer) else ""
    for kind, lines in kinds.items():
        title, about = METRICS.get(kind, (kind, "as the mixer reports it, mean over heads and channels"))
        yield track(title, about + tokens, **lines)


def mean_back(mass: NDArray[np.float32]) -> float:
    """Steps back, weighted by attention [H, S, G], of which a head may give less than 1; mean over heads."""
    by_step = mass.sum(2)
    return float((by_step @ np.arange(mass.shape[1]) / by_step.sum(1).clip(1e-12)).mean())


def mean_entropy(mass: NDArray[np.float32]) -> float:
    """Entropy of attention [H, S, G] in nats; mean over heads."""
    return float(-(mass * np.log(mass.clip(1e-12))).sum((1, 2)).mean())


def reward_unit(agent: Agent) -> float:
    """The rewards that 1 of the agent's values is worth."""
    return 1.0 if isinstance(agent, DecisionTransformer) else agent.reward_unit


def round_numbers(values: Any, digits: int = 4) -> list[float | None]:
    """``digits`` digits of every number, and all before the point; None for what is no finite number."""
    numbers = (None if value is None or not np.isfinite(value) else float(value) for value in values)
    return [
        None if value is None else float(f"{value:.{digits}g}" if abs(value) < 10**digits else round(value))
        for value in numbers
    ]


def seen_numbers(episode: Episode) -> list[dict[str, Any]]:
    """Observations that are numbers, by component, with the range that colors say."""
    drawn, room = [], MOST_NUMBERS
    for path, first in episode.observations[0].items():
        if (first.ndim > 1 and first.size > MOST_NUMBERS) or not room:
            continue
        values = np.stack([leaves[path].reshape(-1)[:room] for leaves in episode.observations]).astype(np.float64)
        room -= values.shape[1]
        drawn.append(
            {
                "name": path or "observation",
                "of": int(first.size),
                "low": round_numbers(values.min(0)),
                "high": round_numbers(values.max(0)),
                "values": [round_numbers(row) for row in values],
            }
        )
    return drawn
