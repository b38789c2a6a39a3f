"""All cases, in the order in which they are run."""

from . import (
    beside_gloo, collectives, compiled, ends, failures, lists, memory, messages, models, partings,
    pipelines, rollcalls, sharded, shrinking, works,
)
from .case import CASES

__all__ = [
    "CASES", "beside_gloo", "collectives", "compiled", "ends", "failures", "lists", "memory",
    "messages", "models", "partings", "pipelines", "rollcalls", "sharded", "shrinking", "works",
]
