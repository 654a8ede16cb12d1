"""The errors of a client. Each message is one line."""

from http import HTTPStatus

from ..wire import Problem


class ClientError(Exception):
    """A call had no effect, or its effect is unknown."""


class Unreachable(ClientError):
    """The server does not respond, or the connection broke. If `sent`, the request may have arrived."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class Refusal(ClientError):
    """The server responded with an error. The call had no effect, unless `unknown` is true."""

    def __init__(self, status: int, message: str = "", retry_after: float | None = None,
                 told: Problem | None = None) -> None:
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "unknown status"
        super().__init__(f"the server refused ({status} {phrase})" + (f": {message}" if message else ""))
        self.status, self.message, self.retry_after = status, message, retry_after
        self.told = told or Problem(message)
        """The body of the response. For a late call it has the state of the prompt; if the session is busy, it says
        so."""

    @property
    def passes(self) -> bool:
        """Whether a retry may succeed."""
        return self.status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or self.status >= 500

    @property
    def unknown(self) -> bool:
        """Whether the server failed midway: the call may or may not have taken effect."""
        return self.status == HTTPStatus.INTERNAL_SERVER_ERROR


class BadAnswer(ClientError):
    """The response does not follow the protocol."""


class EndUnknown(ClientError):
    """A prompt was accepted, but its outcome is unknown."""
