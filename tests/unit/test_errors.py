"""`docs/errors.md` and the source have the same error messages.

That the errors which tests provoke are among them is checked wherever a test runs a command.
"""

from error_catalogue import documented, is_documented, raised


def test_every_error_message_is_documented():
    missing = {message: file for message, file in raised().items() if message not in documented()}
    lines = [f"- `{message}`\n  Cause and cure. ({file})" for message, file in missing.items()]
    assert not missing, "add to docs/errors.md:\n" + "\n".join(lines)


def test_every_documented_error_message_exists():
    assert not documented().keys() - raised().keys()


def test_every_documented_error_is_explained():
    assert len(raised()) > 90
    for message, explanation in documented().items():
        assert len(explanation.split()) >= 4, message


def test_undocumented_message_is_detected():
    assert is_documented("x.yaml, line 3: model.head: unknown option, did you mean model.heads?")
    assert not is_documented("something went wrong")
