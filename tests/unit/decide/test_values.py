"""What decisions take and give are values: they cannot be changed, and their fields go by name."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

import msgspec
import pytest

import interlock.decide

MODULES = [import_module(f"interlock.decide.{module.name}") for module in iter_modules(interlock.decide.__path__)]
VALUES = [
    value
    for module in MODULES
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
]
BY_POSITION = {"Saturated"}  # its fields are named in the order of the sentence


def test_they_are_found() -> None:
    assert {"Settlement", "Outcome", "Due", "Wait", "LaneKey", *BY_POSITION} <= {value.__name__ for value in VALUES}


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value.__name__)
def test_they_cannot_be_changed(value: type[msgspec.Struct]) -> None:
    assert value.__struct_config__.frozen


@pytest.mark.parametrize(
    "value", [v for v in VALUES if v.__name__ not in BY_POSITION], ids=lambda value: value.__name__
)
def test_their_fields_go_by_name(value: type[msgspec.Struct]) -> None:
    with pytest.raises(TypeError, match="positional"):
        value(*value.__struct_fields__)
