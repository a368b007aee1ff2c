"""One attention backbone for all agents."""

from rltransformers.backbone.axes import AXES, PLAIN, catalogue
from rltransformers.backbone.config import BackboneConfig
from rltransformers.backbone.model import Backbone
from rltransformers.backbone.presets import PRESETS
from rltransformers.backbone.state import State
from rltransformers.core.record import Record

__all__ = ["AXES", "PLAIN", "PRESETS", "Backbone", "BackboneConfig", "Record", "State", "catalogue"]
