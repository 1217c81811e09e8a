"""Two buckets in inference at once, commits in order behind them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sparkinfer.job.commit import StagedBucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)

#: While the last rows of one bucket are answered, the next one keeps the engine's batch full.
OVERLAP = 2


def answered_in_order(
    buckets: Sequence[int],
    answer: Callable[[int], StagedBucket],
    *,
    cancel: Callable[[], None],
    overlap: int = OVERLAP,
) -> Generator[StagedBucket, None, None]:
    """Answer the buckets on ``overlap`` threads; give them in the order asked for, each as soon as it is its turn.

    At most ``overlap`` buckets are open, so a job that is killed loses no more. The first exception ends it, and so does
    closing the generator: ``cancel`` is called, the open buckets are waited for, the others stay untouched.
    """
    pool = ThreadPoolExecutor(overlap, thread_name_prefix="sparkinfer-bucket")
    begun: deque[Future[StagedBucket]] = deque()
    left = deque(buckets)
    try:
        while left or begun:
            while left and len(begun) < overlap:
                begun.append(pool.submit(answer, left.popleft()))
            yield begun.popleft().result()
    except BaseException:
        cancel()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class JobTag:
    """Marks the Spark jobs of one run, so that they can be cancelled together (classic sessions: since Spark 4.0).

    Args:
        spark: the session.
        name: the tag.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name
        self._is_known = hasattr(spark, "addTag") and hasattr(spark, "interruptTag")

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Jobs that this thread starts inside the block carry the tag."""
        if not self._is_known:
            yield
            return
        self._spark.addTag(self._name)
        try:
            yield
        finally:
            self._unless_gone(self._spark.removeTag)

    def cancel(self) -> None:
        """End the jobs that carry the tag."""
        if self._is_known:
            self._unless_gone(self._spark.interruptTag)

    def _unless_gone(self, call: Callable[[str], object]) -> None:
        """Call it; a session that went has no jobs, and why the job ends must not be hidden by that."""
        try:
            call(self._name)
        except Exception as error:
            _LOG.info("The session's jobs could not be reached: %s", type(error).__name__)
