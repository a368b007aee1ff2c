"""Check a mechanism: hold every law of the library against it, at small sizes in float64, and print what came out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rltransformers import laws
from rltransformers.backbone import AXES, PLAIN, BackboneConfig
from rltransformers.conformance.comparing import Inapplicable
from rltransformers.core.errors import ConfigError, did_you_mean, error_line, refuse_unknown
from rltransformers.core.extensions import EXTENSIONS
from rltransformers.core.ranges import UnitInterval, annotations, check
from rltransformers.core.spec import Spec
from rltransformers.laws.gradients import TWIN_AXES, Limit, Reference
from rltransformers.laws.partners import settings_of, sized
from rltransformers.mechanisms import TABLES, add, check_spec

BASES: tuple[dict[str, Any], ...] = (
    {"position": "trxl", "memory": 6},
    {"position": "none", "memory": 6},
    {"position": "trxl"},
    {"position": "none"},
)
"""Settings around a mechanism; the first that accept it are taken."""

HELD, FAILED, EXEMPT = "held", "failed", "not applicable"


@dataclass(frozen=True)
class LawResult:
    """What came out of one law, "L1" to "L13".

    Attributes:
        says: the law in a few words.
        status: "held", "failed" or "not applicable".
        note: how it failed, or why it does not apply.
        figure: the largest difference that was compared; None where nothing was.
    """

    law: str
    says: str
    status: str
    note: str = ""
    figure: float | None = None


@dataclass(frozen=True)
class Report:
    """Results of all laws for a mechanism, by axis and name; ``print`` shows a table."""

    name: str
    results: tuple[LawResult, ...]

    @property
    def held(self) -> bool:
        """Whether no law failed."""
        return all(result.status != FAILED for result in self.results)

    def failed(self) -> dict[str, str]:
        """Return the laws that failed, each with how."""
        return {result.law: result.note for result in self.results if result.status == FAILED}

    def __str__(self) -> str:
        lines = [self.name]
        for result in self.results:
            figure = "" if result.figure is None else f"{result.figure:.1e}"
            lines.append(f"  {result.law:4} {result.says:44} {result.status:15} {figure:8} {result.note}".rstrip())
        return "\n".join(lines)


@dataclass
class Subject:
    """A mechanism under examination, and what is known about it."""

    spec: Spec
    values: Mapping[str, Any]  # settings that choose it
    config: BackboneConfig  # the same as a small config, with positions where these are accepted
    reference: Reference | None  # a slow forward pass of a whole backbone
    limits: Sequence[Limit]  # settings under which it becomes another mechanism
    tolerance: float  # of float64
    single: float  # of float32
    half: float  # of bfloat16
    figure: float | None = None  # the largest difference of the law that is tried
    note: str = ""  # what else there is to say about it

    def case(self) -> laws.Case:
        return laws.Case.of(laws.perturbed(self.config), tolerance=self.tolerance)

    def on_case(self, *functions: Callable[[laws.Case], Any]) -> None:
        for function in functions:
            case = self.case()
            function(case)
            self.take(case)

    def take(self, case: laws.Case) -> None:
        """Keep the largest difference of all comparisons."""
        self.figure = max(self.figure or 0.0, case.difference)


def calls(subject: Subject) -> None:
    """Hold L2: compare calls of any length, acting, and both modes."""
    subject.on_case(
        laws.split_invariance, laws.block_invariance, laws.acting_equals_training, laws.training_equals_evaluation,
        laws.acting_from_keys, laws.outputs_left_out,
    )  # fmt: skip
    subject.take(laws.long_streams(subject.config, subject.tolerance))


def references(subject: Subject) -> None:
    """Hold L5: compare with the slow reference."""
    if subject.reference is None:
        argument = "twin" if subject.spec.axis in TWIN_AXES else "reference"
        raise Inapplicable(f"no slow twin was passed, {argument}=...")
    subject.take(laws.equals_reference(laws.perturbed(subject.config), subject.reference, subject.tolerance))


def limits(subject: Subject) -> None:
    """Hold L6: compare with the other mechanism at every limit."""
    if not subject.limits:
        raise Inapplicable("no settings that make it another mechanism were passed, limits=...")
    for limit in subject.limits:
        special, plain = (BackboneConfig(**{**PLAIN, **sized(each)}) for each in (limit.special, limit.plain))
        subject.take(laws.becomes_another(special, plain, limit))


def gradients(subject: Subject) -> None:
    """Hold L7: compare gradients with finite differences; every weight gets one."""
    stopped = subject.spec.traits.stops_gradient
    subject.note = f"none through {stopped}" if stopped else ""
    subject.figure = max(laws.finite_differences(subject.config), laws.far_gradients(subject.config))
    laws.gradients_everywhere(subject.config)


def costs(subject: Subject) -> None:
    """Hold L8: count operations and bytes of segments and steps."""
    subject.note = f"as T^{laws.grows_as_declared(subject.config):.2f}"
    laws.constant_steps(subject.config)


def precision(subject: Subject) -> None:
    """Hold L10: compare lower precisions with float64."""
    subject.note = subject.spec.traits.rounding
    laws.autocast(subject.case(), subject.half)
    subject.figure = laws.low_precision(subject.case(), subject.single, subject.half)


def exports(subject: Subject) -> None:
    """Hold L11: compare an exported step with the eager one."""
    if subject.spec.axis == "losses":
        raise Inapplicable("a step computes no loss")
    subject.take(laws.exported_equals_eager(laws.step_of(subject.config), tolerance=10 * subject.tolerance))


def steps(subject: Subject) -> None:
    """Hold L12: shapes and addresses stay, tables follow the weights."""
    for function in (laws.fixed_addresses, laws.no_tensors_from_numbers, laws.fresh_tables):
        function(laws.step_of(subject.config))


def pairs(subject: Subject) -> None:
    """Hold L13: each of two mechanisms changes the output."""
    if subject.spec.axis == "losses":
        raise Inapplicable("a loss changes no output")
    subject.note = f"beside {laws.each_acts(subject.spec, subject.values)} mechanisms"


LAWS: dict[str, tuple[str, Callable[[Subject], None]]] = {
    "L1": ("nothing depends on the future", lambda subject: subject.on_case(laws.causality)),
    "L2": ("any split into calls gives the same", calls),
    "L3": ("an episode in a stream equals it alone", lambda subject: subject.on_case(laws.episode_isolation)),
    "L4": ("padding and other streams change nothing", lambda subject: subject.on_case(laws.padding)),
    "L5": ("values and gradients equal the twin", references),
    "L6": ("at its limit it is another mechanism", limits),
    "L7": ("gradients are right and reach every weight", gradients),
    "L8": ("cost grows as declared", costs),
    "L9": (
        "states and weights are saved and continued",
        lambda subject: subject.on_case(laws.portable_states, laws.same_weights),
    ),
    "L10": ("float32 and bfloat16 stay near float64", precision),
    "L11": ("an exported step equals the eager one", exports),
    "L12": ("a step has fixed shapes, follows weights", steps),
    "L13": ("two mechanisms side by side both act", pairs),
}  # fmt: skip
"""The laws: what each says, and the function that tries it."""


def check_mechanism(
    spec: Spec,
    options: Mapping[str, Any] | None = None,
    twin: Callable[..., Any] | None = None,
    *,
    reference: Reference | None = None,
    limits: Sequence[Limit] = (),
    settings: Mapping[str, Any] | None = None,
    tolerance: float = laws.EXACT,
    single: float | None = None,
    half: float | None = None,
    only: str | Sequence[str] = tuple(LAWS),
) -> Report:
    """Hold the laws of the library against a mechanism, registered or not; takes about a minute on a processor.

    Args:
        spec: the mechanism, of an axis of the backbone.
        options: values of its options that differ from their defaults.
        twin: a slow, independent form for one episode, of a mixer or feed-forward part ``twin(module, h)``, of a
            residual ``twin(module, x, y)``, all on [t, D] and returning [t, D]; ``module`` is what ``spec.build`` made.
        reference: in place of a twin, a slow forward pass of the whole backbone: ``reference(backbone, x)`` on [t, D]
            returns outputs [t, D] and the final state by name, or None.
        limits: settings under which it computes what another mechanism does.
        settings: other settings of ``BackboneConfig`` to check it with.
        tolerance: of float64, relative to numbers of size 1, from 0 to 1.
        single, half: of float32 and bfloat16, relative to the largest output; default what the traits declare.
        only: laws to try, as ("L1", "L13"); a text is one law.

    Raises:
        ConfigError: for what ``register`` refuses, an encoder or a readout, options that no small config accepts, a
            twin of an axis that takes none or beside a reference, bounds outside 0 to 1, unknown settings or laws, and
            no law at all.
    """
    check_spec(spec)
    single, half = spec.traits.single if single is None else single, spec.traits.half if half is None else half
    for name, bound in {"tolerance": tolerance, "single": single, "half": half}.items():
        check(bound, UnitInterval, name)
    names = check_laws(only)
    refuse_unknown(settings or {}, annotations(BackboneConfig), "settings.")
    if spec.axis not in AXES:
        raise ConfigError(f"{spec.axis} {spec.name!r} is a part of policies; the laws are about those of a backbone")
    if twin is not None and reference is not None:
        raise ConfigError("L5 compares with a twin or with a reference; pass one of the two")
    if twin is not None and spec.axis not in TWIN_AXES:
        raise ConfigError(
            f"a twin stands in for a {' or '.join(TWIN_AXES)}; of {spec.axis} {spec.name!r} pass reference="
        )
    with torch.random.fork_rng(devices=[]), registered(spec), laws.in_double():
        values, config = smallest(spec, options or {}, settings or {})
        if twin is not None:
            reference = laws.reference_of(spec.axis, twin)
        subject = Subject(spec, values, config, reference, limits, tolerance, single, half)
        return Report(f"{spec.axis} {spec.name}", tuple(tried(law, subject) for law in LAWS if law in names))


def check_laws(only: str | Sequence[str]) -> Sequence[str]:
    """Return the names of laws; ConfigError for one that there is not, and for none at all."""
    names: Sequence[str] = [only] if isinstance(only, str) else check(only, Sequence[str], "only")
    for name in names:
        if name not in LAWS:
            raise ConfigError(f"only: unknown law {name!r}; {did_you_mean(name, LAWS)}")
    if not names:
        raise ConfigError(f"only names no law; leave it out, or name some of {', '.join(LAWS)}")
    return names


def tried(law: str, subject: Subject) -> LawResult:
    """Return what comes out of one law."""
    says, function = LAWS[law]
    subject.figure, subject.note = None, ""
    torch.manual_seed(0)
    try:
        function(subject)
    except Inapplicable as reason:
        return LawResult(law, says, EXEMPT, str(reason))
    except laws.LawError as error:
        return LawResult(law, says, FAILED, str(error), subject.figure)
    except Exception as error:  # somebody else's module may raise anything
        return LawResult(law, says, FAILED, f"it raised {error_line(error)[:300]}", subject.figure)
    return LawResult(law, says, HELD, subject.note, subject.figure)


@contextmanager
def registered(spec: Spec) -> Iterator[None]:
    """Register a mechanism for the block, unless it is registered already."""
    table: Any = TABLES[spec.axis]
    if table.get(spec.name) is spec:
        yield
        return
    before = table.get(spec.name), EXTENSIONS.get((spec.axis, spec.name))
    add(spec, str(getattr(spec.build, "__module__", "")))
    try:
        yield
    finally:
        del table[spec.name], EXTENSIONS[spec.axis, spec.name]
        if before[1] is not None:  # an older definition of the same function
            table[spec.name], EXTENSIONS[spec.axis, spec.name] = before[0], before[1]


def smallest(
    spec: Spec, options: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[dict[str, Any], BackboneConfig]:
    """Find small settings that accept a mechanism, and the config that they make; ConfigError where none does."""
    own = dict(settings_of(spec.axis, spec.name, spec.example))
    if options or spec.axis not in own:
        own[spec.axis] = {"name": spec.name, **options}
    if spec.axis == "losses":
        own["losses"] = {spec.name: {"weight": 1.0, **options}}
    elif isinstance(own[spec.axis], str):
        own[spec.axis] = spec.name
    elif isinstance(own[spec.axis], Mapping):
        own[spec.axis] = {**own[spec.axis], "name": spec.name}
    refusal: ConfigError | None = None
    for base in BASES:
        try:
            return {**own, **settings}, BackboneConfig(**{**PLAIN, **sized({**base, **own, **settings})})
        except ConfigError as error:
            refusal = error
    raise ConfigError(f"{spec.axis} {spec.name!r} is accepted by none of the small configs: {refusal}") from refusal
