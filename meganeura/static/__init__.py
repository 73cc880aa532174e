"""The static API: a graph written down first, then built into a session that is fed, stepped and read by name.

In: `Graph` (inputs, parameters, constants, ops as methods), `SessionConfig`. Out: a `StaticSession` and a `Trainer` for it.
It is thin: the graph is a list of calls of the public ops, which `compile` traces as it does any function.
"""

from .config import SessionConfig
from .graph import Eager, Graph, Node
from .session import StaticSession, build_session
from .trainer import History, TrainConfig, Trainer

__all__ = ["Eager", "Graph", "History", "Node", "SessionConfig", "StaticSession", "TrainConfig", "Trainer", "build_session"]
