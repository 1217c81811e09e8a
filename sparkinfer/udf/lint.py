"""What a query's plan says about how often its language models will be asked.

Spark may run a UDF twice for one row (``docs/architecture.md``, decision on memos). An engine answers the second time from its memo,
but each executor has an engine of its own: what runs a second time in another task may be asked, and paid, on another executor.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: A node of an explained plan: the drawing before it (three characters a level), perhaps the number of its generated code, itself.
_NODE = re.compile(r"^(?P<drawing>[ :]*(?:[:+]- )?)(?:\*\(\d+\) )?(?P<text>\S.*)$")
#: The evaluation of iterator UDFs (251: Arrow, 204: pandas), which llm_udf is.
_EVALUATION = re.compile(r"^ArrowEvalPython \[(?P<calls>.*)\], \[pythonUDF.*\], (?:251|204)$")
_CALL = re.compile(r"(?P<name>\w+)\(.*?\)#(?P<id>\d+)(?:, |$)")
#: Rows leave the task here.
_SHUFFLES = ("Exchange", "BroadcastExchange")
#: What may be joined to one partition, because nobody has said how many there shall be.
_MAY_COLLAPSE = ("ENSURE_REQUIREMENTS", "REPARTITION_BY_COL")


@dataclass(eq=False, slots=True)
class _Node:
    text: str
    parent: _Node | None = None
    children: list[_Node] = field(default_factory=list)

    def is_a(self, *names: str) -> bool:
        return self.text.split(" ", 1)[0] in names

    def calls(self) -> dict[str, str]:
        """Of an evaluation: id of each call -> its name."""
        found = _EVALUATION.match(self.text)
        return {} if found is None else {m["id"]: m["name"] for m in _CALL.finditer(found["calls"])}

    def above(self) -> Iterator[_Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent


def lint(frame: DataFrame) -> list[str]:
    """Sentences about what this query would pay for twice, or leave to one task; empty where all is well.

    It reads the plan and runs nothing. What the memo of a single executor covers is no finding.

    Args:
        frame: a query with ``llm_udf`` in it, as it would be written or shown.
    """
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain()
    conf = frame.sparkSession.conf
    names = (
        "spark.master",
        "spark.executor.instances",
        "spark.dynamicAllocation.enabled",
        "spark.sparkinfer.engine.memo",
    )
    settings = {name: value for name in names if (value := conf.get(name, None)) is not None}
    has_memo = settings.get("spark.sparkinfer.engine.memo", "true").lower() != "false"
    return findings(shown.getvalue(), one_memo=has_memo and _has_one_executor(settings), has_memo=has_memo)


def findings(plan: str, *, one_memo: bool, has_memo: bool) -> list[str]:
    """The findings of an explained physical plan.

    Args:
        plan: as ``DataFrame.explain()`` prints it.
        one_memo: all tasks share the memo of one executor.
        has_memo: engines remember answers at all.
    """
    places: dict[str, list[_Node]] = defaultdict(list)
    names: dict[str, str] = {}
    for node in _nodes(plan):
        for call, name in node.calls().items():
            places[call].append(node)
            names[call] = name
    found = []
    for call, nodes in places.items():
        tasks = [node for node in nodes if not any(_in_one_task(other, node) for other in nodes)]
        paid = len(nodes) if not has_memo else 1 if one_memo else len(tasks)
        if paid > 1:
            found.append(
                f"{names[call]} is evaluated {paid} times a row, in parts of the query that run apart"
                f"{_why(has_memo)}. Write its result to a table, or cache() it, and go on from there."
            )
        if not one_memo and any(_is_sampled(node) for node in nodes):
            found.append(
                f"{names[call]} stands below a sort or a range partitioning, for which Spark evaluates it twice, once for a "
                f"sample{_why(has_memo)}. Sort what has been written or cached, or sort before the call."
            )
        if any(_may_collapse(node) for node in nodes):
            found.append(
                f"{names[call]} stands above a shuffle that Spark may join to a single task, which leaves one slot to ask for all "
                "rows. Call repartition(n, ...) with a number before it."
            )
    return found


def _why(has_memo: bool) -> str:
    return (
        ", and each executor's engine remembers its own answers only"
        if has_memo
        else ", and no engine remembers its answers"
    )


def _nodes(plan: str) -> Iterator[_Node]:
    """The plan's nodes, each with its parent. Below what is cached nothing is run (or was, once)."""
    path: list[tuple[int, _Node]] = []
    hidden_below: int | None = None
    for line in plan.splitlines():
        found = _NODE.match(line)
        if found is None or line.startswith("== "):
            continue
        # In a plan that has run: "+- == Final Plan ==", whose root stands below it, not further right.
        is_heading = found["text"].startswith("== ")
        depth = len(found["drawing"]) - is_heading
        if hidden_below is not None and depth > hidden_below:
            continue
        hidden_below = None
        while path and path[-1][0] >= depth:
            path.pop()
        node = _Node(found["text"], path[-1][1] if path else None)
        if node.parent is not None:
            node.parent.children.append(node)
        path.append((depth, node))
        if node.is_a("InMemoryTableScan", "ReusedExchange") or "== Initial Plan ==" in node.text:
            hidden_below = depth
        yield node


def _in_one_task(above: _Node, node: _Node) -> bool:
    """Whether ``above`` runs on rows that ``node`` has seen, in the same task."""
    for ancestor in node.above():
        if ancestor is above:
            return True
        if ancestor.is_a(*_SHUFFLES):
            return False
    return False


def _is_sampled(node: _Node) -> bool:
    shuffle = next((ancestor for ancestor in node.above() if ancestor.is_a(*_SHUFFLES)), None)
    return shuffle is not None and "rangepartitioning(" in shuffle.text


def _may_collapse(node: _Node) -> bool:
    is_adaptive = any(ancestor.is_a("AdaptiveSparkPlan") for ancestor in node.above())
    while is_adaptive and len(node.children) == 1 and not node.is_a(*_SHUFFLES):
        node = node.children[0]
    return is_adaptive and node.is_a("Exchange") and any(reason in node.text for reason in _MAY_COLLAPSE)


def _has_one_executor(settings: Mapping[str, str]) -> bool:
    if re.match(r"local(\[|$)", settings.get("spark.master", "")):
        return True
    is_fixed = settings.get("spark.dynamicAllocation.enabled", "false").lower() != "true"
    return is_fixed and settings.get("spark.executor.instances") == "1"
