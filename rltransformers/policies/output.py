"""What policies compute for a step, for whoever wants to see more than the action."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rltransformers.core.spaces import Space, leaf_spaces, nest_leaves

Kinds = dict[str, dict[str, Any]]
"""Values by kind (a field of ``PolicyOutput``) and leaf of the action; the path of numbers of whole actions is ""."""
OF_LEAVES = ("action", "probabilities", "mean", "deviation", "q_values")
OF_ACTIONS = ("log_prob", "entropy", "value")


@dataclass(frozen=True)
class PolicyOutput:
    """Action, probabilities and value of one observation or of a batch of them; a field is None where there is none.

    Fields of leaves are nested as the action space, with None for leaves that have none. ``Actor.decide`` gives numpy
    arrays, without batch axis for one environment; ``evaluate_actions`` tensors [B, T, ...] that carry gradients.

    Attributes:
        action: what the environment takes: Boxes clipped.
        log_prob: logarithm of the probability of the action, the sum over its leaves, before Boxes are clipped; of a
            Box the density in the units in which the policy learns. None for a Box without a density.
        entropy: of the distribution in nats, in the same units, of a mixture a bound from below; None for squashed
            Boxes, of ``GTrXLSAC``.
        value: what the policy expects to earn from here on, in the units of the rewards it learned from. Of
            ``GTrXLDQN`` the value of the best action; of ``GTrXLSAC`` what the lowest critic says of the policy, whose
            Boxes take their most likely action; of a Decision Transformer what the lower of its critics says of the
            action, None without critics.
        probabilities: of Discrete the probability of every class [n], of MultiDiscrete those of all components side by
            side [sum of nvec], of MultiBinary of a 1 in every bit. An action that a mask forbids has 0.
        mean, deviation: of Boxes, in the units of the environment, before they are clipped; of a mixture those of the
            whole distribution, None for a flow.
        q_values: of ``GTrXLDQN``, the value of every action [n]; -inf where a mask forbids it.
        state: memory after the last step, which ``predict`` takes, always with a batch axis; None from
            ``evaluate_actions`` of a Decision Transformer. ``evaluate_actions`` of online policies takes it, too.
    """

    action: Any
    log_prob: Any = None
    entropy: Any = None
    value: Any = None
    probabilities: Any = None
    mean: Any = None
    deviation: Any = None
    q_values: Any = None
    state: Any = None

    @classmethod
    def of(cls, action_space: Space, kinds: Mapping[str, Mapping[str, Any]], state: Any = None) -> Self:
        """The record of these values, nested as the action space."""
        nested = {
            kind: nest_leaves(action_space, {path: kinds[kind].get(path) for path in leaf_spaces(action_space)})
            for kind in OF_LEAVES
            if kinds.get(kind)
        }
        return cls(**nested, **{kind: kinds[kind][""] for kind in OF_ACTIONS if kinds.get(kind)}, state=state)
