"""Credentials stay out of messages; everything else stays in."""

import pytest

from nlgraft.basics.wording import without_credentials


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("s3://key:secret@bucket/x", "s3://key:***@bucket/x"),
        ("s3://AKIA:a/b+c@d@bucket/x is away", "s3://AKIA:***@bucket/x is away"),
        ("https://ghp_token@github.com/a", "https://***@github.com/a"),
        ("'postgresql://me:pw@db:5432/x' refused", "'postgresql://me:***@db:5432/x' refused"),
        ("http://:pw@host", "http://:***@host"),
        ("https://h/x?X-Amz-Signature=abc&Expires=5", "https://h/x?X-Amz-Signature=***&Expires=5"),
        ("https://h/x?a=1&access_key=abc&sig=q#f", "https://h/x?a=1&access_key=***&sig=***"),
        ("AWS_SECRET_ACCESS_KEY=abc/def failed", "AWS_SECRET_ACCESS_KEY=*** failed"),
        ("{'password': 'abc', 'user': 'me'}", "{'password': '***', 'user': 'me'}"),
        ("Authorization: Bearer abcdefgh.ijk", "Authorization: Bearer ***"),
        ("token hf_abcdefghijklmnopqrst is invalid", "token *** is invalid"),
    ],
)
def test_credentials_are_masked(text, public):
    assert without_credentials(text) == public
    assert without_credentials(public) == public


@pytest.mark.parametrize(
    "text",
    [
        "batch_tokens=4096, pad_token: <pad>, key=value",
        "https://host:8080/path?run=7&step=3",
        "s3://bucket/prefix?endpoint_override=host:9000&scheme=http",
        "somebody@example.org wrote 12:30",
        "dev/loss: nan at step 3 (lr=1e-3)",
        "sqlite:////data/mlflow.db",
    ],
)
def test_everything_else_stays(text):
    assert without_credentials(text) == text
