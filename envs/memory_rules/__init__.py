"""The rules of our memory tasks: mazes, rooms and tasks that ask; ``interface`` says what rules are."""

from rltransformers.envs.memory_rules.interface import DOWN, LEFT, RIGHT, UP, Array, Length, Rules, RulesOutcome, State
from rltransformers.envs.memory_rules.mazes import ActiveTMaze, DistractorTMaze, EndlessTMaze, PassiveTMaze
from rltransformers.envs.memory_rules.questions import CueRecall, Dihedral, LastKey, MovingCue, Parity
from rltransformers.envs.memory_rules.rooms import KeyToDoor, ProofOfMemory, Stitching, TwoGates

__all__ = [
    "DOWN", "LEFT", "RIGHT", "UP", "ActiveTMaze", "Array", "CueRecall", "Dihedral", "DistractorTMaze", "EndlessTMaze",
    "KeyToDoor", "LastKey", "Length", "MovingCue", "Parity", "PassiveTMaze", "ProofOfMemory", "Rules", "RulesOutcome",
    "State", "Stitching", "TwoGates",
]  # fmt: skip
