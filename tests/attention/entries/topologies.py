"""Rows of topologies: what layers read besides their own stream."""

from rltransformers.laws import Limit
from tests.attention import twins
from tests.attention.row import GROUPED, GROUPED_SIZES, Row, zero

PRE = {"residual": "pre_ln"}

ROWS = {
    ("topology", "decoder"): Row(
        twin=twins.alone,
        limits=(Limit({"topology": "encoder_decoder", **PRE}, PRE, zero("cross.output.weight")),),
    ),
    ("topology", "encoder_decoder"): Row(
        twin=twins.looking,
        limits=(
            Limit({"topology": "encoder_decoder", **PRE}, PRE, zero("cross.output.weight")),
            "tests/attention/test_cross.py::test_one_element_is_read_as_it_is_whatever_the_query",
        ),
    ),
}
VARIANTS = {
    "elements read by grouped heads": Row(
        {**GROUPED_SIZES, "topology": "encoder_decoder", "residual": "post_ln", "position": "alibi"}
    ),
    "elements in a step of three tokens": Row({"topology": "encoder_decoder", "tokens_per_step": 3, "memory": 2}),
    "elements between layers with a state": Row(
        {**GROUPED, "topology": "encoder_decoder", "mixer": "linear", "ff": "sep_conv"}
    ),
    "elements on the way out of the stack": Row(
        {"topology": "encoder_decoder", "depth": "depth_adaptive", "position": "sinusoidal", "layers": 3}
    ),
    "elements of one layer applied again": Row(
        {"topology": "encoder_decoder", "depth": "universal", "position": "sinusoidal", "ff": "none"}
    ),
}
PRESET_ROWS: dict[str, Row] = {}
