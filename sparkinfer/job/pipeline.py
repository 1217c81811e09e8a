"""Two buckets in inference at once, commits in order behind them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sparkinfer.errors import DeadlineReached
from sparkinfer.job.commit import StagedBucket
from sparkinfer.job.deadline import AGAIN_S, Deadline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_Work = TypeVar("_Work", bound=Callable[..., Any])

#: While the last rows of one bucket are answered, the next one keeps the engine's batch full.
OVERLAP = 2


def answer_in_order(
    buckets: Sequence[int],
    answer: Callable[[int], StagedBucket],
    take: Callable[[StagedBucket], None],
    *,
    tag: JobTag,
    deadline: Deadline,
    overlap: int = OVERLAP,
) -> None:
    """Answer the buckets on ``overlap`` threads; hand each to ``take`` on this one, in the order asked for.

    At most ``overlap`` buckets are open, so a job that is killed loses no more. The first exception ends it: the open buckets
    are cancelled and waited for, the others stay untouched. A stop (Ctrl-C, SIGTERM, the deadline) ends it likewise, but what
    is whole by then is still taken.

    Args:
        buckets: in their order.
        answer: gives a bucket's finished rows.
        take: commits them.
        tag: what ``answer`` starts in Spark carries it.
        deadline: when to stop.
        overlap: how many buckets are open at once.

    Raises:
        DeadlineReached: the time was over before the last bucket was taken.
    """
    pool = ThreadPoolExecutor(overlap, thread_name_prefix="sparkinfer-bucket")
    begun: deque[Future[StagedBucket]] = deque()
    left = deque(buckets)
    try:
        while left or begun:
            while left and len(begun) < overlap:
                deadline.check()
                begun.append(pool.submit(tag.inherited(answer), left.popleft()))
            deadline.wait_for(begun[0])
            take(begun.popleft().result())
    except BaseException as error:
        _end(begun, tag)
        if isinstance(error, KeyboardInterrupt | DeadlineReached):
            _take_whole(begun, take)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end(begun: Iterable[Future[StagedBucket]], tag: JobTag) -> None:
    """Cancel until every open bucket lets go: one between two Spark jobs begins the next in spite of the first call."""
    tag.cancel()
    while wait(begun, timeout=AGAIN_S).not_done:
        tag.cancel()


def _take_whole(begun: Iterable[Future[StagedBucket]], take: Callable[[StagedBucket], None]) -> None:
    """What was finished before the stop; a failure here leaves it in staging and must not hide the stop."""
    for future in begun:
        if future.exception() is not None:
            continue
        try:
            take(future.result())
        except Exception as error:
            _LOG.warning("A finished bucket was not committed while the job stopped, and stays in staging: %s", error)
            return


class JobTag:
    """Marks the Spark jobs of one run, so that they can be cancelled together, from any thread.

    A classic session's own tags are a thread's, and ``interruptTag`` ends nothing of another thread: there the context's job
    tags do it. Over Connect the session's tags are the server's.

    Args:
        spark: the session.
        name: the tag.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._name = name
        self._add, self._remove, self._cancel = _tagging(spark)

    @contextmanager
    def on_this_thread(self) -> Iterator[None]:
        """Jobs that this thread starts inside the block carry the tag."""
        self._add(self._name)
        try:
            yield
        finally:
            self._unless_gone(self._remove)

    def inherited(self, work: _Work) -> _Work:
        """Work for another thread: its Spark jobs carry what those of this one do, the tag and the user's job group.

        Without it ``cancelJobGroup``, and with it a notebook's stop button, would not reach the buckets.
        """
        from pyspark import inheritable_thread_target

        def tagged(*arguments: Any) -> Any:
            with self.on_this_thread():
                return work(*arguments)

        takes_session = hasattr(self._spark, "addTag")  # since Spark 4.0, and over Connect
        target = inheritable_thread_target(self._spark)(tagged) if takes_session else inheritable_thread_target(tagged)
        return cast(_Work, target)

    def cancel(self) -> None:
        """End the jobs that carry the tag."""
        self._unless_gone(self._cancel)

    def _unless_gone(self, call: Callable[[str], object]) -> None:
        """Call it; a session that went has no jobs, and why the job ends must not be hidden by that."""
        try:
            call(self._name)
        except Exception as error:
            _LOG.info("The session's jobs could not be reached: %s", type(error).__name__)


def _tagging(spark: SparkSession) -> tuple[Callable[[str], object], Callable[[str], object], Callable[[str], object]]:
    """How this session adds a tag, removes it, and cancels what carries it."""
    try:
        context = spark.sparkContext
    except Exception:  # over Connect there is none
        return spark.addTag, spark.removeTag, spark.interruptTag
    return context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
