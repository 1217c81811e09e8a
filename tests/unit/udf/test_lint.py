"""Findings in plans as Spark 4.2 prints them."""

from __future__ import annotations

import pytest

from sparkinfer.udf.lint import findings

FILTERED = """== Physical Plan ==
*(3) Project [pythonUDF0#34.result AS result#5]
+- ArrowEvalPython [llm_udf(concat(x, cast(id#0L as string)))#2], [pythonUDF0#34], 251
   +- *(2) Project [id#0L]
      +- *(2) Filter (pythonUDF0#33.input_hash > 8)
         +- ArrowEvalPython [llm_udf(concat(x, cast(id#0L as string)))#2], [pythonUDF0#33], 251
            +- *(1) Range (0, 20, step=1, splits=2)
"""
SORTED = """== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- Sort [id#0L ASC NULLS FIRST], true, 0
   +- Exchange rangepartitioning(id#0L ASC NULLS FIRST, 8), ENSURE_REQUIREMENTS, [plan_id=78]
      +- Project [id#0L, text#1, pythonUDF0#36 AS r#3]
         +- ArrowEvalPython [llm_udf(text#1)#2], [pythonUDF0#36], 251
            +- Range (0, 20, step=1, splits=2)
"""
UNION = """== Physical Plan ==
Union
:- *(2) Project [id#0L, text#1, pythonUDF0#37 AS r#3]
:  +- ArrowEvalPython [llm_udf(text#1)#2], [pythonUDF0#37], 251
:     +- *(1) Range (0, 20, step=1, splits=2)
+- *(4) Project [id#7L, text#8, pythonUDF0#38 AS r#9]
   +- ArrowEvalPython [llm_udf(text#8)#2], [pythonUDF0#38], 251
      +- *(3) Range (0, 20, step=1, splits=2)
"""
BY_COLUMN = """== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- Project [pythonUDF0#46 AS llm_udf(text)#25]
   +- ArrowEvalPython [llm_udf(text#23)#24], [pythonUDF0#46], 251
      +- Exchange hashpartitioning(text#23, 8), REPARTITION_BY_COL, [plan_id=224]
         +- Range (0, 20, step=1, splits=1)
"""
CACHED = """== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
+- Sort [id#0L ASC NULLS FIRST], true, 0
   +- Exchange rangepartitioning(id#0L ASC NULLS FIRST, 8), ENSURE_REQUIREMENTS, [plan_id=390]
      +- InMemoryTableScan [id#0L, text#1, r#3]
            +- InMemoryRelation [id#0L, text#1, r#3], StorageLevel(disk, memory, deserialized, 1 replicas)
                  +- *(2) Project [id#0L, text#1, pythonUDF0#51 AS r#3]
                     +- ArrowEvalPython [llm_udf(text#1)#2], [pythonUDF0#51], 251
                        +- *(1) Range (0, 20, step=1, splits=2)
"""
TWO_UDFS = """== Physical Plan ==
*(2) Project [pythonUDF0#47 AS llm_udf(text)#28, pythonUDF0#48 AS llm_udf(text)#29]
+- ArrowEvalPython [llm_udf(text#1)#27], [pythonUDF0#48], 251
   +- ArrowEvalPython [llm_udf(text#1)#26], [pythonUDF0#47], 251
      +- *(1) Range (0, 20, step=1, splits=2)
"""
SORTED_AFTER_A_SHUFFLE = SORTED.replace(
    "         +- ArrowEvalPython",
    "         +- Exchange hashpartitioning(id#0L, 8), REPARTITION_BY_NUM\n            +- ArrowEvalPython",
).replace("            +- Range", "               +- Range")


@pytest.mark.parametrize("plan", [FILTERED, SORTED, UNION, CACHED, TWO_UDFS])
def test_one_executor_pays_once_whatever_the_query(plan: str) -> None:
    assert findings(plan, one_memo=True, has_memo=True) == []


@pytest.mark.parametrize("plan", [FILTERED, CACHED, TWO_UDFS, SORTED_AFTER_A_SHUFFLE])
def test_what_one_task_evaluates_twice_or_not_at_all_is_covered_on_a_cluster_too(plan: str) -> None:
    assert findings(plan, one_memo=False, has_memo=True) == []


def test_a_sort_above_the_call_is_found_on_a_cluster() -> None:
    (finding,) = findings(SORTED, one_memo=False, has_memo=True)
    assert finding.startswith("llm_udf stands below a sort or a range partitioning")


def test_branches_of_a_union_are_found_on_a_cluster() -> None:
    (finding,) = findings(UNION, one_memo=False, has_memo=True)
    assert finding.startswith("llm_udf is evaluated 2 times a row")


def test_a_shuffle_that_may_become_one_task_is_found_everywhere() -> None:
    for one_memo in (True, False):
        (finding,) = findings(BY_COLUMN, one_memo=one_memo, has_memo=True)
        assert "single task" in finding
    assert findings(BY_COLUMN.replace("BY_COL", "BY_NUM"), one_memo=True, has_memo=True) == []


def test_without_a_memo_every_evaluation_is_paid() -> None:
    (finding,) = findings(FILTERED, one_memo=False, has_memo=False)
    assert "2 times" in finding
    assert "no engine remembers" in finding


def test_other_udfs_are_nobodys_business_here() -> None:
    plain = UNION.replace("251", "200")
    assert findings(plain, one_memo=False, has_memo=False) == []
