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
from types import FunctionType, ModuleType
from typing import Any, get_args, get_type_hints

import torch
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, jaxtyped


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
    signature, known = inspect.signature(function), set[object]()
    places = [place for place, name in enumerate(signature.parameters) if name in hints]
    results = "return" in hints
    last = max(places, default=-1)

    def check(args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> None:
        values = {**signature.bind(*args, **kwargs).arguments, "return": found}
        with jaxtyped("context"):  # one size per letter and call
            for name in filter(values.__contains__, hints):  # in the order of the signature, the result last
                where = f"{function.__module__}.{function.__qualname__}, {name}: "
                die_if_unbearable(values[name], hints[name], exception_prefix=where)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)  # first, since an error that the package raises itself says more
        if torch.compiler.is_compiling():  # no tracer can read what the check does, nor what it holds
            return found
        count = len(args)  # from here on every microsecond counts: there are millions of calls
        given = places if last < count else [place for place in places if place < count]
        form = tuple([_form(args[place]) for place in given])
        if kwargs:
            form += tuple([(name, _form(value)) for name, value in kwargs.items() if name in hints])
        if results:
            form += (_form(found),)
        if form not in known:
            check(args, kwargs, found)
            known.add(form)
        return found

    return call


def _form(value: Any) -> object:
    """Shape and dtype of every tensor."""
    kind = type(value)
    if kind is torch.Tensor or isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    if value is None or kind is int or kind is bool:
        return kind
    if isinstance(value, tuple | list):
        return tuple([_form(each) for each in value])
    if isinstance(value, dict):
        return tuple([(key, _form(each)) for key, each in value.items()])
    return kind


def _names_shape(hint: object) -> bool:
    """``Float[Tensor, "B T"] | None`` does, ``int | None`` does not."""
    is_shape = inspect.isclass(hint) and issubclass(hint, AbstractArray)
    return is_shape or any(map(_names_shape, get_args(hint)))
