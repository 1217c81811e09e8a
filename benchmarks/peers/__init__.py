"""What is compared: one module a peer, each with a class ``Peer`` that runs in a fresh process of its own.

A peer's module imports only the standard library at its top, so that it loads in the environment that it is for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One row as a peer gets it: the same text, prompt ids and tokens out for all.

    ``prompt_ids`` are the chat-templated prompt for peers that take ids; peers on Spark make them from ``text`` themselves.
    """

    text: str
    max_tokens: int
    prompt_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What holds for all peers of a run.

    Attributes:
        folder: model folder for ``from_pretrained``, fp32.
        prompt: template with ``{text}``.
        threads: CPU threads in all.
        max_model_len: prompt and answer together, in tokens.
        scratch: a folder of the cell's own.
        options: the peer's batch size and the like, tuned before.
        model: what sparkinfer calls that model.
    """

    folder: str
    prompt: str
    threads: int
    max_model_len: int
    scratch: str
    options: dict[str, Any]
    model: str = "sample"

    def message(self, text: str) -> str:
        """The user's message of a row."""
        return self.prompt.replace("{text}", text)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one run gave, rows in order.

    Attributes:
        answers: token ids, or the text where the peer gives no ids.
        ends_at_eos: whether the texts end before the first end token although the tokens went on.
        first_row_s: seconds until the first row was complete; None where the peer does not tell.
        facts: figures of the peer: steps, batch (mean sequences a step), cached_tokens ...
    """

    answers: list[list[int]] | list[str]
    first_row_s: float | None = None
    ends_at_eos: bool = False
    facts: dict[str, float] = field(default_factory=dict)


class PeerProtocol(Protocol):
    """One way to answer rows. Constructed once a process; what it needs to be ready is done by ``load``."""

    def __init__(self, setting: Setting) -> None: ...

    def load(self) -> None:
        """Load the model; afterwards :meth:`run` measures nothing but answering."""

    def run(self, asks: list[Ask], options: dict[str, Any]) -> Outcome:
        """Answer the rows, all of them, as fast as it can."""

    def where(self, asks: list[Ask]) -> dict[str, float]:
        """Seconds by kind of work, from a run under a profiler; empty where there is no way to tell."""

    def close(self) -> None:
        """End what was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """What is known of a peer without loading it.

    Attributes:
        name: module below ``benchmarks.peers`` (or of the entry's ``module``), and its name in ``ONLY``.
        title: for tables.
        module: the module that holds it, where it is not called like the peer.
        fixed: options that are not tuned.
        tuning: options of which the fastest on the tuning rows is taken.
        repeats: fresh processes that measure it.
        environment: folder below ``.bench-envs`` that it runs in; empty: this project's own.
        is_ours: whether it is sparkinfer.
    """

    name: str
    title: str
    module: str = ""
    fixed: dict[str, Any] = field(default_factory=dict)
    tuning: tuple[dict[str, Any], ...] = ()
    repeats: int = 1
    environment: str = ""
    is_ours: bool = False


_BATCHES = ({"batch": 4}, {"batch": 8}, {"batch": 16})

PEERS = {
    peer.name: peer
    for peer in (
        PeerInfo(name="ours", title="sparkinfer, engine alone", repeats=3, is_ours=True),
        PeerInfo(
            name="spark1",
            title="sparkinfer on Spark, 1 slot",
            module="spark",
            fixed={"slots": 1},
            is_ours=True,
        ),
        PeerInfo(
            name="spark2",
            title="sparkinfer on Spark, 2 slots",
            module="spark",
            fixed={"slots": 2},
            repeats=3,
            is_ours=True,
        ),
        PeerInfo(
            name="reuse",
            title="sparkinfer on Spark, 2 slots, equal rows once",
            module="spark",
            fixed={"slots": 2, "reuse": True},
            repeats=3,
            is_ours=True,
        ),
        PeerInfo(
            name="vllm",
            title="vLLM for CPU 0.32.0",
            tuning=({"batch": 4}, {"batch": 8}, {"batch": 256}),
            environment="vllm",
        ),
        PeerInfo(
            name="openvino",
            title="OpenVINO GenAI, fp32",
            tuning=({"batch": 4}, {"batch": 8}, {"batch": 256}),
            repeats=3,  # the nearest peer, where it was measured
            environment="openvino",
        ),
        PeerInfo(
            name="generate_batch",
            title="transformers generate_batch",
            tuning=({"max_batch_tokens": 64}, {"max_batch_tokens": 256}, {"max_batch_tokens": 1024}),
        ),
        PeerInfo(name="distribatch", title="distribatch 0.1.0a1 on Spark", tuning=_BATCHES),
        PeerInfo(name="predict_batch_udf", title="predict_batch_udf, fixed batches", tuning=_BATCHES),
        PeerInfo(name="row_by_row", title="generate row by row in a pandas UDF", tuning=({"slots": 1}, {"slots": 2})),
    )
}
