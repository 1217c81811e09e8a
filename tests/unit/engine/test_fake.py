from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparkinfer.config.settings import EngineSettings
from sparkinfer.engine.base import EngineRequest, TokenOutput
from sparkinfer.engine.fake import FIRST_BYTE_ID, FakeEngine
from sparkinfer.errors import EngineStartFailed
from sparkinfer.types import FinishReason, SamplingParams


def ask(
    request_id: int, prompt: str = "hello", *, sampling: SamplingParams | None = None, **fields: object
) -> EngineRequest:
    return EngineRequest(
        request_id=request_id,
        prompt_ids=[byte + FIRST_BYTE_ID for byte in prompt.encode()],
        sampling=sampling or SamplingParams(),
        **fields,  # type: ignore[arg-type]
    )


def answer(engine: FakeEngine, request: EngineRequest) -> TokenOutput:
    engine.add(request)
    (output,) = engine.step()
    return output


def text_of(output: TokenOutput) -> bytes:
    return bytes(i - FIRST_BYTE_ID for i in output.token_ids)


def test_the_answer_depends_on_the_prompt_alone() -> None:
    one, two = FakeEngine("fake"), FakeEngine("fake:?")
    first = answer(one, ask(0, "a"))
    assert first.token_ids == answer(two, ask(7, "a")).token_ids
    assert first.token_ids != answer(one, ask(1, "b")).token_ids
    assert text_of(first).startswith(b"answer-")
    assert first.finish_reason is FinishReason.STOP


def test_drawn_answers_depend_on_the_noise_key_too() -> None:
    engine, drawn = FakeEngine("fake"), SamplingParams(temperature=1.0)
    answers = {answer(engine, ask(i, sampling=drawn, noise_key=i)).token_ids for i in range(4)}
    assert len(answers) == 4


def test_an_answer_longer_than_max_tokens_is_cut_and_says_so() -> None:
    output = answer(FakeEngine("fake:?answer=abcdef"), ask(0, sampling=SamplingParams(max_tokens=3, logprobs=0)))
    assert text_of(output) == b"abc"
    assert output.finish_reason is FinishReason.LENGTH
    assert output.logprobs == (0.0, 0.0, 0.0)


def test_only_a_choice_comes_out_and_it_is_whole() -> None:
    engine = FakeEngine("fake")
    choices = ((5, 6, 7), (8,))
    for number in range(10):
        output = answer(engine, ask(number, str(number), choices=choices, sampling=SamplingParams(max_tokens=1)))
        assert output.token_ids in choices


def test_a_step_takes_the_batch_that_running_ids_named() -> None:
    engine = FakeEngine("fake", EngineSettings(max_batch_size=2))
    for request in (ask(0), ask(1, deadline=0.0), ask(2, priority=3), ask(3)):
        engine.add(request)
    assert engine.running_ids() == [2, 1]
    assert [o.request_id for o in engine.step()] == [2, 1]
    assert engine.has_work()


def test_aborted_and_finished_requests_give_no_output() -> None:
    engine = FakeEngine("fake")
    for number in range(3):
        engine.add(ask(number))
    engine.abort(0)
    engine.finish(1)
    engine.abort(99)
    assert [o.request_id for o in engine.step()] == [2]
    assert not engine.has_work()


def test_loads_and_requests_are_logged_a_line_each(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    engine = FakeEngine(f"fake:?log={log}")
    answer(engine, ask(0, "grüß", noise_key=5))
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["event"] for e in events] == ["load", "request"]
    assert (events[1]["prompt"], events[1]["noise_key"], events[1]["pid"]) == ("grüß", 5, os.getpid())


@pytest.mark.parametrize(("option", "code"), [("oom", "OUT_OF_MEMORY"), ("fail", "INFERENCE_FAILED")])
def test_a_marked_row_fails_and_the_others_do_not(option: str, code: str) -> None:
    engine = FakeEngine(f"fake:?{option}=BAD")
    engine.add(ask(0, "good"))
    engine.add(ask(1, "a BAD one"))
    good, bad = engine.step()
    assert good.error is None
    assert bad.error is not None
    assert bad.error[0] == code
    assert bad.finish_reason is FinishReason.ERROR


def test_garbage_is_no_utf8() -> None:
    output = answer(FakeEngine("fake:?garbage=X"), ask(0, "X"))
    with pytest.raises(UnicodeDecodeError):
        text_of(output).decode()


def test_loading_can_fail_in_the_words_given() -> None:
    with pytest.raises(EngineStartFailed, match="no such device"):
        FakeEngine("fake:?load_error=no such device")


def test_size_and_context_are_as_asked() -> None:
    info = FakeEngine("fake:?context=77&load_mb=1").info
    assert (info.max_model_len, info.weights_bytes) == (77, 1024 * 1024)
    assert FakeEngine("fake").info.max_model_len == 4096


def test_counters_count_and_close_lets_the_ballast_go() -> None:
    engine = FakeEngine("fake:?load_mb=1&answer=abc")
    answer(engine, ask(0, "four"))
    assert engine.stats() == {"requests": 1, "steps": 1, "prompt_tokens": 4, "completion_tokens": 3}
    engine.close()
    assert engine._ballast == b""


def run_apart(location: str, *, wait: float | None = None) -> int:
    """Exit status of a process that answers the prompt BAD; None seconds: wait for its end, else kill it then."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.unit.engine.test_fake import FakeEngine, ask\n"
        f"engine = FakeEngine({location!r}); engine.add(ask(0, 'BAD')); print('begun', flush=True); engine.step(); print('done')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    if wait is not None:
        time.sleep(wait)
        assert process.poll() is None, "it should hang"
        process.kill()
    rest, _ = process.communicate(timeout=60)
    assert rest == ""
    return process.returncode


def test_a_crashing_row_kills_the_process() -> None:
    assert run_apart("fake:?crash=BAD") == -signal.SIGKILL


def test_a_hanging_row_never_returns() -> None:
    assert run_apart("fake:?hang=BAD", wait=1.2) == -signal.SIGKILL


def test_a_flaky_engine_fails_by_seed_prompt_and_attempt() -> None:
    def failures(seed: int) -> list[bool]:
        engine = FakeEngine(f"fake:?flaky=0.5&seed={seed}")
        return [answer(engine, ask(i, f"prompt {i % 50}")).error is not None for i in range(200)]

    assert failures(1) == failures(1) != failures(2)
    assert 70 < sum(failures(1)) < 130  # four standard deviations around 100
    assert not any(answer(FakeEngine("fake:?flaky=0"), ask(0)).error for _ in range(3))


def test_a_prompt_that_crashes_once_is_answered_by_the_next_engine(tmp_path: Path) -> None:
    location = f"fake:?crash_once=BAD&log={tmp_path / 'log.jsonl'}"
    program = f"""
from sparkinfer.engine.fake import FakeEngine
from tests.unit.engine.test_fake import answer, ask
print(answer(FakeEngine({location!r}), ask(0, "a BAD one")).error)
"""
    run = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False) for _ in range(2)
    ]
    assert [done.returncode for done in run] == [-signal.SIGKILL, 0]
    assert run[1].stdout == "None\n"


def test_only_slow_prompts_are_slow() -> None:
    engine = FakeEngine("fake:?slow=SLOW&slow_ms=200")
    began = time.monotonic()
    answer(engine, ask(0, "a SLOW one"))
    assert time.monotonic() - began >= 0.2


def test_one_executor_is_lame_and_the_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    for name, is_lame in (("one", True), ("two", False), ("one", True)):
        monkeypatch.chdir(tmp_path / name)
        if is_lame:
            with pytest.raises(EngineStartFailed, match="lame"):
                FakeEngine(f"fake:?lame={tmp_path / 'file'}")
        else:
            assert FakeEngine(f"fake:?lame={tmp_path / 'file'}").info.label == "fake"


def test_a_late_row_fails_with_its_own_code() -> None:
    output = answer(FakeEngine("fake:?late=slow"), ask(0, "a slow one"))
    assert output.error is not None
    assert output.error[0] == "ROW_TIMEOUT"
