"""What runs in a Spark task's Python worker. In shared mode it imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparkinfer.config.specs import EngineSpec, TaskSpec
from sparkinfer.host.client import Client
from sparkinfer.udf import readers
from sparkinfer.udf.answers import AnswerWriter
from sparkinfer.udf.devices import with_task_gpus
from sparkinfer.udf.reading import RowReader
from sparkinfer.udf.slices import Slices
from sparkinfer.udf.stream import RowStream
from sparkinfer.udf.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """The recipe as it travels: two JSON texts and a few flags.

    Attributes:
        engine_json: an EngineSpec.
        task_json: a TaskSpec.
        is_struct: the column is the whole struct; else the answer alone, and a failed row fails the task.
        has_logprobs: the struct has the field ``logprobs``.
        engine_mode: ``shared`` or ``inline``.
        reads_all: see :class:`sparkinfer.udf.window.Window`.
    """

    engine_json: str
    task_json: str
    is_struct: bool
    has_logprobs: bool = False
    engine_mode: str = "shared"
    reads_all: bool = False

    def answers(self, batches: Iterator[pa.Array | tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        """One answer a row, in row order, in batches of the engine's pace."""
        engine, task = EngineSpec.from_json(self.engine_json), TaskSpec.from_json(self.task_json)
        writer = AnswerWriter(engine, task, is_struct=self.is_struct, logprobs=self.has_logprobs)
        stage = readers.current_stage()
        window = Window(reads_all=self.reads_all or readers.takes_every_row(stage), patience_s=readers.patience_s())
        stream = RowStream(
            reader=RowReader(task),
            connect=lambda: self._connect(engine, task),
            window=window,
            skip_blank=task.skip_blank,
        )
        rows = stream.answer(Slices(batches))
        try:
            for completions in rows:
                yield writer.write(completions)
                if not window.is_cautious:
                    readers.note_that_it_takes_every_row(stage)
        finally:
            rows.close()  # hangs up at once where the reader stops early

    def _connect(self, engine: EngineSpec, task: TaskSpec) -> Client:
        from sparkinfer import host

        engine = with_task_gpus(engine)
        return host.connect_inline(engine, task) if self.engine_mode == "inline" else host.connect(engine, task)
