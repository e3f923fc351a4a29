"""The exceptions that are reported to the user without a traceback."""


class UserError(Exception):
    """An error that the user can fix: one clear message, exit status 2, no traceback.

    The message says what is wrong, where (file, line, option), and what to do about it. Any other
    exception is a bug and keeps its traceback.
    """


class Interrupted(Exception):
    """Training was interrupted and has saved a checkpoint; the message says how to resume.

    `exit_status` follows the shell's convention: 128 plus the number of the signal.
    """

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message, exit_status)  # both, so that it passes between processes
        self.exit_status = exit_status

    def __str__(self) -> str:
        return str(self.args[0])


def short(text: str) -> str:
    """Return the text on one line, truncated to 100 characters."""
    text = " ".join(text.split())
    return text if len(text) <= 100 else f"{text[:97]}..."
