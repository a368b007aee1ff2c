"""One attention backbone for both agents."""

from rltransformers.backbone.config import BackboneConfig, catalogue
from rltransformers.backbone.model import Backbone
from rltransformers.backbone.presets import PRESETS
from rltransformers.backbone.state import State
from rltransformers.core.record import Record

__all__ = ["PRESETS", "Backbone", "BackboneConfig", "Record", "State", "catalogue"]
