"""Layers that differ in their pattern: a list that they take in turn, for instance local and full attention."""

from rltransformers.core.spec import Feature, Spec, Traits

SPEC = Spec(
    id="A16", name="schedule", axis="pattern",
    paper="Brown et al. 2020, arXiv 2005.14165, section 2.1; Beltagy et al. 2020, arXiv 2004.05150",
    summary="Layers take the patterns of a list in turn: `pattern: [a, b]`; a list inside it gives one per head.",
    settings="pattern: [a, b]", example={"layers": 3, "pattern": [{"name": "band", "window": 3}, "full"]},
    traits=Traits(horizon="that of each layer", state="that of each layer"),
    offers=(Feature.REACH,), needs=(Feature.PATTERNS,),
    formula="layer n: softmax over the s <= t that pattern n mod P allows",
)  # fmt: skip
