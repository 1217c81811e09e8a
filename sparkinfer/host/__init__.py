"""One engine process per executor, model and device set, and the clients that share it.

``connect`` and ``connect_inline`` are all that the layers above need; ``metrics`` asks a running engine for its counters.
"""

from __future__ import annotations

from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.host.client import Client, SharedClient
from sparkinfer.host.place import here
from sparkinfer.host.running import metrics
from sparkinfer.host.watch import active_watch

__all__ = ["Client", "active_watch", "connect", "connect_inline", "metrics"]


def connect(engine: EngineSpec, task: TaskSpec) -> Client:
    """A client of this executor's engine process, which is started where there is none.

    Raises:
        HostError: no engine could be had.
        ModelError: the model cannot be loaded here.
    """
    return SharedClient(here(), engine, task)


def connect_inline(engine: EngineSpec, task: TaskSpec) -> Client:
    """A client of an engine in this very process, loaded where there is none yet.

    Raises:
        ModelError: the model cannot be loaded here.
    """
    from sparkinfer.host.inline import InlineClient  # brings the text layer, which workers of shared mode do without

    return InlineClient(here(), engine, task)
