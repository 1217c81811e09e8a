"""A fake model whose engine logs each load and each request that it really executes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote


@dataclass(frozen=True)
class CountingModel:
    """A ``fake:`` model and what its engines have done."""

    log: Path
    options: str = ""

    @property
    def uri(self) -> str:
        return f"fake:?log={self.log}{self.options}"

    def with_options(self, **options: str) -> CountingModel:
        """The same log with more options of the fake engine; another model, as far as engines go."""
        return CountingModel(
            self.log, self.options + "".join(f"&{name}={quote(value)}" for name, value in options.items())
        )

    def events(self, kind: str) -> list[dict]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    @property
    def loads(self) -> int:
        return len(self.events("load"))

    @property
    def requests(self) -> int:
        return len(self.events("request"))

    @property
    def prompts(self) -> Counter[str]:
        return Counter(event["prompt"] for event in self.events("request"))
