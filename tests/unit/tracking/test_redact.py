from __future__ import annotations

import pytest

from sparkinfer.tracking.redact import redact, redact_text


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "hf_token",
        "spark.hadoop.fs.s3a.secret.key",
        "api_key",
        "apiKey",
        "db.password",
        "AWS_ACCESS_KEY_ID",
        "sas",
    ],
)
def test_a_setting_with_a_secret_name_loses_its_value(name: str) -> None:
    assert redact({name: "plain-looking"}) == {name: "***"}


@pytest.mark.parametrize("name", ["max_tokens", "udf.max_tokens", "prompt_tokens", "max_batch_tokens", "key", "keep"])
def test_a_setting_that_only_sounds_secret_keeps_its_value(name: str) -> None:
    assert redact({name: "16"}) == {name: "16"}


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://user:hunter2@mlflow.example.com/path", "hunter2"),
        ("postgresql://user:p%40ss@host/db", "p%40ss"),
        ("https://store.example.com/x?sv=1&sig=AbC%2Bdef&se=2", "AbC%2Bdef"),
        ("https://b.example.com/o?X-Amz-Signature=00ff00ff", "00ff00ff"),
        ("Authorization: Bearer abcdefghijklmnop1234", "abcdefghijklmnop1234"),
        ("use hf_abcdefghijklmnopqrstuvwx please", "hf_abcdefghijklmnopqrstuvwx"),
        ("dapi0123456789abcdef0123456789abcdef", "dapi0123456789abcdef0123456789abcdef"),
    ],
)
def test_credentials_inside_a_text_are_masked(text: str, secret: str) -> None:
    masked = redact_text(text)
    assert secret not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text", ["", "s3://bucket/table", "a token of thanks: 5 stars", "dbfs:/x@v1", "Is {text} good?"]
)
def test_a_text_without_secrets_stays_as_it_is(text: str) -> None:
    assert redact_text(text) == text
