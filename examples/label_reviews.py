"""Label a table of reviews from Python: as a column, then as a job that can be killed and repeated.

python examples/label_reviews.py [--rows N] [--model MODEL] [--into PATH]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from sparkinfer import llm_udf, run, session

REVIEWS = Path(__file__).parent / "data" / "reviews.parquet"
PROMPT = (
    "A customer wrote about something bought:\n{text}\nIs the customer's verdict great or something other than great?"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--model", default="sample")
    parser.add_argument("--into", default="out/example-labels")
    arguments = parser.parse_args()

    spark = session("label reviews")
    reviews = spark.read.parquet(str(REVIEWS)).limit(arguments.rows)
    label = llm_udf(model=arguments.model, prompt=PROMPT, choices=["great", "other"], on_overflow="truncate_middle")

    # 1. A column like any other. Nothing runs before an action asks for rows.
    reviews.limit(5).withColumn("predicted", label("text")).select("id", "label", "predicted").show()

    # 2. The error struct instead of a failed task.
    careful = llm_udf(model=arguments.model, prompt=PROMPT, choices=["great", "other"], fail_on_error=False)
    answered = reviews.limit(5).withColumn("answer", careful("text"))
    answered.select("id", "answer.result", "answer.errorMessage", "answer.prompt_tokens").show()

    # 3. A job: rows and errors counted, committed bucket by bucket; run this file again and only new rows are asked.
    result = run(spark, source=reviews, into=arguments.into, udf=label, key="id", keep=["label"], output="predicted")
    print(
        f"{result.rows} rows written, {result.already_done} were there, version {result.table_version} of {result.table}"
    )
    spark.stop()


if __name__ == "__main__":
    main()
