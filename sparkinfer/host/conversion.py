"""The text layer's two calls for one work, with a row's failure turned into its completion."""

from __future__ import annotations

import logging
from dataclasses import replace

from sparkinfer.engine.base import TokenOutput
from sparkinfer.errors import InferenceFailed, RowError, by_code
from sparkinfer.host.work import Work
from sparkinfer.text.task import Prompt
from sparkinfer.types import Completion, FinishReason, Usage

_LOG = logging.getLogger(__name__)


def prepare(work: Work) -> Prompt | Completion:
    """The row's prompt, or its completion where it needs no engine or cannot have one."""
    try:
        return work.session.text.prepare(work.request)
    except RowError as error:
        return work.failed(error.code, error.message)
    except Exception as error:  # one row's text must not end the others
        _LOG.exception("Preparing a prompt failed.")
        return work.failed(InferenceFailed.code, f"The row's prompt could not be made: {error!r}.")


def read(work: Work, output: TokenOutput) -> Completion | None:
    """Take one output in; the completion where that ends the row."""
    assert work.stream is not None, "only prepared work reaches the engine: this is a bug"
    assert work.prompt is not None, "only prepared work reaches the engine: this is a bug"
    work.cached_tokens = max(work.cached_tokens, output.cached_tokens)
    work.logprobs.extend(output.logprobs or ())
    if output.error is not None:
        return replace(work.failed(*output.error), usage=_usage(work))
    try:
        is_stopped = work.stream.push(output.token_ids)
        if not is_stopped and output.finish_reason is None:
            return None
        answer = work.stream.close(FinishReason.STOP if is_stopped else output.finish_reason or FinishReason.STOP)
    except RowError as error:
        return replace(work.failed(error.code, error.message), usage=_usage(work))
    except Exception as error:  # one row's text must not end the others
        _LOG.exception("Reading an answer failed.")
        return replace(
            work.failed(InferenceFailed.code, f"The row's answer could not be read: {error!r}."), usage=_usage(work)
        )
    return Completion(
        row=work.request.row,
        input_hash=work.request.input_hash,
        result=answer.result,
        raw_text=answer.raw_text,
        warnings=answer.warnings,
        finish_reason=answer.finish_reason,
        usage=_usage(work),
        logprobs=tuple(work.logprobs) if work.prompt.sampling.logprobs is not None else None,
    )


def _usage(work: Work) -> Usage:
    prompt_tokens = 0 if work.prompt is None else len(work.prompt.ids)
    completion_tokens = 0 if work.stream is None else work.stream.num_ids
    return Usage(prompt_tokens=prompt_tokens, cached_tokens=work.cached_tokens, completion_tokens=completion_tokens)


def may_be_kept(completion: Completion) -> bool:
    """Whether asking again would give the same: an answer, or an error that is the row's own."""
    return completion.error_code is None or not by_code(completion.error_code).transient


def poison_message(log_name: str) -> str:
    """What stands in a quarantined row."""
    return (
        "This row ended the engine process when it ran alone and is not run again on this executor; "
        f"look at the end of the engine's log {log_name}, then shorten or leave out the row."
    )
