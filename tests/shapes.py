"""Shapes and dtypes in annotations, checked at every call while the tests run.

The hook of jaxtyping doubles the time of tests. This one wraps only functions whose annotations name a shape, and
checks only shapes and dtypes that no earlier call of the function had. Functions inside functions are left alone.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from inspect import Parameter, Signature
from types import FunctionType, ModuleType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import torch
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, jaxtyped

CALLS: dict[Any, str] = {
    Parameter.KEYWORD_ONLY: "{0}={0}",
    Parameter.VAR_POSITIONAL: "*{0}",
    Parameter.VAR_KEYWORD: "**{0}",
}
"""How a call hands on an argument of a kind, where not by its place."""


def check_package(name: str) -> None:
    """Check the calls of a package that nobody has imported yet."""
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already; its shapes can be checked only from the first import on")
    sys.meta_path.insert(0, _Finder(name))


class _Finder(MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name, member in list(vars(module).items()):
            if getattr(member, "__module__", None) != module.__name__:
                continue
            if inspect.isclass(member):
                for inner, value in list(vars(member).items()):
                    if (with_checks := _checked(value)) is not value:
                        setattr(member, inner, with_checks)
            else:
                setattr(module, name, _checked(member))


def _checked(member: Any) -> Any:
    """A function, method or property that checks its shapes; anything else as it is."""
    if isinstance(member, property):
        return member.getter(_checked(member.fget))
    if isinstance(member, staticmethod | classmethod):
        return type(member)(_checked(member.__func__))
    return _checked_function(member) if isinstance(member, FunctionType) else member


def _checked_function(function: Callable[..., Any]) -> Callable[..., Any]:
    if not any(map(_names_shape, function.__annotations__.values())):
        return function
    hints = {name: hint for name, hint in get_type_hints(function).items() if _names_shape(hint)}  # classes, not names
    known = set[object]()

    def check(values: dict[str, Any], form: object) -> None:
        with jaxtyped("context"):  # one size per letter and call
            for name, value in values.items():  # in the order of the signature, the result last
                where = f"{function.__module__}.{function.__qualname__}, {name}: "
                die_if_unbearable(value, hints[name], exception_prefix=where)
        if form is not None:
            known.add(form)

    names = {"_function": function, "_check": check, "_known": known, "_form": _form}
    return functools.wraps(function)(_compiled(function, hints, names))


def _compiled(function: Callable[..., Any], hints: dict[str, Any], names: dict[str, Any]) -> FunctionType:
    """Compile a function that calls ``function`` and checks only forms that are not yet known.

    Its code names the arguments and reads their forms in place, since there are millions of calls: a loop over any
    arguments takes as long as the tests of small networks themselves.
    """
    takes, gives, read, signature = [], [], {}, inspect.signature(function)
    for name, parameter in signature.parameters.items():
        default = Parameter.empty if parameter.default is Parameter.empty else None  # stands for its own
        takes.append(parameter.replace(annotation=Parameter.empty, default=default))
        gives.append(CALLS.get(parameter.kind, "{0}").format(name))
        if name in hints:
            read[name] = name
    if "return" in hints:
        read["return"] = "_result"
    forms = "".join(f"{_reading(place, hints[name])}, " for name, place in read.items())
    code = f"""def call{Signature(takes)}:
    _result = _function({", ".join(gives)})  # first, since an error that the package raises itself says more
    if _is_compiling():  # no tracer can read what the check does, nor what it holds
        return _result
    try:
        _seen = ({forms})
    except (AttributeError, IndexError, TypeError):  # no form of what the annotations say
        _seen = None
    if _seen not in _known:
        _check({{{", ".join(f"{name!r}: {place}" for name, place in read.items())}}}, _seen)
    return _result
"""
    place = f"<shapes of {function.__module__}.{function.__qualname__}>"
    exec(compile(code, place, "exec"), names := names | {"_is_compiling": torch.compiler.is_compiling})
    call = cast(FunctionType, names["call"])
    given = [parameter for parameter in signature.parameters.values() if parameter.default is not Parameter.empty]
    call.__defaults__ = tuple([each.default for each in given if each.kind is not Parameter.KEYWORD_ONLY])
    call.__kwdefaults__ = {each.name: each.default for each in given if each.kind is Parameter.KEYWORD_ONLY}
    return call


def _reading(place: str, hint: Any) -> str:
    """An expression for shape and dtype of every tensor at a place that is annotated with a hint."""
    if not _names_shape(hint):
        return f"{place}.__class__"
    if _is_shape(hint) and hint.array_type is torch.Tensor:
        return f"{place}.shape, {place}.dtype"
    options = get_args(hint)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        if len(options) == 2 and options[1] is type(None):
            return f"None if {place} is None else ({_reading(place, options[0])})"
    elif get_origin(hint) is tuple and ... not in options:
        inner = [_reading(f"{place}[{index}]", each) for index, each in enumerate(options)]
        return ", ".join([f"{place}.__class__, len({place})", *inner])
    return f"_form({place})"


def _form(value: Any) -> object:
    """Shape and dtype of every tensor."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if isinstance(value, tuple | list):
        return tuple([_form(each) for each in value])
    if isinstance(value, dict):
        return tuple([(key, _form(each)) for key, each in value.items()])
    return kind


def _names_shape(hint: object) -> bool:
    """``Float[Tensor, "B T"] | None`` does, ``int | None`` does not."""
    return _is_shape(hint) or any(map(_names_shape, get_args(hint)))


def _is_shape(hint: object) -> bool:
    return inspect.isclass(hint) and issubclass(hint, AbstractArray)
