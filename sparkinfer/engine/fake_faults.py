"""What goes wrong in the fake engine, and when: options of its URI, so that a test or a dry run can ask for any fault.

TEXT is looked for in the prompt::

    crash=TEXT       kills the process (SIGKILL) when the prompt's batch runs
    crash_once=TEXT  the same, but once a prompt (needs log=: what was killed is remembered there)
    crash_loads=N    the first N loads end in SIGKILL, as under the kernel's out-of-memory killer (needs log=)
    lame=PATH        no load succeeds on the executor whose engine is the first to make this file; on others all do
    hang=TEXT        the step never returns
    slow=TEXT        the step takes slow_ms longer (default 1000)
    hog=TEXT         takes hog_mb of memory (default 1024) for the prompt; fails with OUT_OF_MEMORY where it is refused
    oom=TEXT         fails with OUT_OF_MEMORY;  fail=TEXT with INFERENCE_FAILED;  late=TEXT with ROW_TIMEOUT;
                     refuse=TEXT with INVALID_MESSAGES (permanent)
    flaky=P          each attempt at a prompt fails with INFERENCE_FAILED with this probability,
    seed=N           drawn from seed, prompt and attempt, so that every run fails alike (default 0)
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sparkinfer.errors import EngineStartFailed

_ERRORS = {
    "oom": ("OUT_OF_MEMORY", "The fake device is out of memory for this row."),
    "fail": ("INFERENCE_FAILED", "The fake engine refused this row."),
    "late": ("ROW_TIMEOUT", "The fake engine was not done with this row in time."),
    "refuse": ("INVALID_MESSAGES", "The fake engine will never take this row."),
}
_FLAKY = ("INFERENCE_FAILED", "The fake engine failed by chance.")


class Faults:
    """The faults that one fake engine was asked for.

    Args:
        options: of the model's URI.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._attempts: Counter[bytes] = Counter()

    def are_asked(self, option: str, prompt: bytes) -> bool:
        """Whether the option's text stands in the prompt."""
        marker = self._options.get(option)
        return marker is not None and marker.encode() in prompt

    def while_loading(self) -> None:
        """What happens to a load.

        Raises:
            EngineStartFailed: this executor is lame.
        """
        if "lame" in self._options and self._is_lame(Path(self._options["lame"])):
            raise EngineStartFailed("The fake engine cannot start: this executor is lame (asked for by lame=).")
        if self._remembered("load_crash") < int(self._options.get("crash_loads", 0)):
            self._kill("load_crash", b"")

    def on(self, prompt: bytes) -> tuple[str, str] | None:
        """What happens to a prompt in its batch: code and message of its failure, None where it is answered."""
        if self.are_asked("crash", prompt):
            self._kill("crash", prompt)
        if self.are_asked("crash_once", prompt) and not self._remembered("crash", prompt):
            self._kill("crash", prompt)
        while self.are_asked("hang", prompt):
            time.sleep(1)
        if self.are_asked("slow", prompt):
            time.sleep(float(self._options.get("slow_ms", 1000)) / 1000)
        if self.are_asked("hog", prompt) and not self._takes_memory():
            return _ERRORS["oom"]
        asked = (error for option, error in _ERRORS.items() if self.are_asked(option, prompt))
        return next(asked, _FLAKY if self._fails_by_chance(prompt) else None)

    def _takes_memory(self) -> bool:
        """Touch so much memory; whether the process was given it (or killed for it)."""
        try:
            return len(b"x" * (int(self._options.get("hog_mb", 1024)) * 1024 * 1024)) > 0
        except MemoryError:
            return False

    def _is_lame(self, path: Path) -> bool:
        """Whether the file holds this executor's engine folder, which is the process's current one."""
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(str(Path.cwd()))
        except FileExistsError:
            return path.read_text(encoding="utf-8") == str(Path.cwd())
        return True

    def _fails_by_chance(self, prompt: bytes) -> bool:
        probability = float(self._options.get("flaky", 0))
        if not probability:
            return False
        self._attempts[prompt] += 1
        draw = f"{self._options.get('seed', 0)}:{self._attempts[prompt]}:".encode() + prompt
        return int.from_bytes(hashlib.sha256(draw).digest()[:8], "big") < probability * 2**64

    def _remembered(self, event: str, prompt: bytes | None = None) -> int:
        """How often the log says that this has happened (to this prompt)."""
        path = Path(self._options.get("log", os.devnull))
        if not path.is_file():
            return 0
        events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        text = None if prompt is None else prompt.decode("utf-8", "replace")
        return sum(e["event"] == event and text in (None, e["prompt"]) for e in events)

    def _kill(self, event: str, prompt: bytes) -> None:
        if "log" in self._options:
            line = {
                "event": event,
                "prompt": prompt.decode("utf-8", "replace"),
                "pid": os.getpid(),
                "time": time.time(),
            }
            with Path(self._options["log"]).open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
        os.kill(os.getpid(), signal.SIGKILL)
