"""The laws that every backbone keeps, as functions of a backbone, a config or a step.

A law that does not hold raises ``LawError`` with a sentence that says how. They expect ``in_double()``.
"""

from rltransformers.laws.costs import constant_steps, grows_as_declared, of_one_layer, window_of_16
from rltransformers.laws.gradients import (
    Limit,
    becomes_another,
    equals_reference,
    far_gradients,
    finite_differences,
    gradients_everywhere,
    reference_of,
)
from rltransformers.laws.pairs import each_acts
from rltransformers.laws.segments import (
    acting_equals_training,
    acting_from_keys,
    block_invariance,
    causality,
    episode_isolation,
    long_streams,
    outputs_left_out,
    padding,
    split_invariance,
    training_equals_evaluation,
)
from rltransformers.laws.states import autocast, low_precision, portable_states, same_weights
from rltransformers.laws.steps import (
    BackboneStep,
    exported_equals_eager,
    fixed_addresses,
    fresh_tables,
    no_tensors_from_numbers,
    step_of,
)
from rltransformers.laws.streams import EXACT, Case, LawError, backbone_of, in_double, perturbed

__all__ = [
    "EXACT", "BackboneStep", "Case", "LawError", "Limit", "acting_equals_training", "acting_from_keys", "autocast",
    "backbone_of", "becomes_another", "block_invariance", "causality", "constant_steps",
    "each_acts", "episode_isolation", "equals_reference", "exported_equals_eager", "far_gradients",
    "finite_differences", "fixed_addresses", "fresh_tables", "gradients_everywhere", "grows_as_declared", "in_double",
    "long_streams", "low_precision", "no_tensors_from_numbers", "of_one_layer", "outputs_left_out", "padding",
    "perturbed", "portable_states", "reference_of", "same_weights", "split_invariance", "step_of",
    "training_equals_evaluation", "window_of_16",
]  # fmt: skip
