"""The failures that a user can mend."""


class UserError(Exception):
    """A mistake outside the program: one clear message, exit status 2, no traceback.

    The message says what is wrong and where (file, line, option) and, where that is known, what
    would be right. Everything else that goes wrong is a bug and keeps its traceback.
    """


class Interrupted(Exception):
    """Training stopped on request after saving; the message says how to go on.

    `exit_status` is the shell's convention, 128 plus the number of the signal.
    """

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message, exit_status)  # both, so that it passes between processes
        self.exit_status = exit_status

    def __str__(self) -> str:
        return str(self.args[0])


def short(text: str) -> str:
    """On one line, of which a very long one shows only the beginning."""
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."
