"""Clients that come and go while the service's own threads are at work."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from sparkinfer.engine.fake import FakeEngine
from sparkinfer.text.task import OutputText, Prompt, TextTask
from sparkinfer.types import Request
from tests.support.engines import TASK, eventually, row
from tests.support.services import Inbox, ask, service_of


@dataclass
class SlowText:
    """The text layer, with prompts that take until they are allowed to be ready."""

    text: TextTask
    is_preparing: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def prepare(self, request: Request) -> Prompt:
        self.is_preparing.set()
        self.may_go_on.wait(60)
        prompt = self.text.prepare(request)
        assert isinstance(prompt, Prompt)
        return prompt

    def stream(self, prompt: Prompt) -> OutputText:
        return self.text.stream(prompt)


def test_a_row_whose_client_leaves_while_its_prompt_is_made_never_reaches_the_engine() -> None:
    with service_of(FakeEngine("fake")) as service:
        session = service.open(TASK, Inbox())
        text = SlowText(session.text)
        session.text = text  # type: ignore[assignment]
        service.submit(session, [row(1)])
        assert text.is_preparing.wait(60)
        service.close(session)
        eventually(service.loop._commands.empty)  # the drop has been obeyed
        text.may_go_on.set()
        ask(service, [row(2)])
        assert service.stats()["in_flight"] == 0
        assert service.loop._engine.stats()["requests"] == 1
