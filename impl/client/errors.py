"""What can go wrong between a client and a server. Each says in one line what happened."""

from http import HTTPStatus

from ..wire import Problem


class ClientError(Exception):
    """A call did not do what was asked, or nobody knows whether it did."""


class Unreachable(ClientError):
    """No server answers, or the connection broke. `sent` says whether the request may have arrived nevertheless."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class Refusal(ClientError):
    """The server answered with an error. Nothing was done, unless it is `unknown`."""

    def __init__(self, status: int, message: str = "", retry_after: float | None = None,
                 told: Problem | None = None) -> None:
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "unknown status"
        super().__init__(f"the server refused ({status} {phrase})" + (f": {message}" if message else ""))
        self.status, self.message, self.retry_after = status, message, retry_after
        self.told = told or Problem(message)
        """All that the server says: where a prompt is for which the call came too late, or that the session is busy."""

    @property
    def passes(self) -> bool:
        """Whether it is worth asking again later."""
        return self.status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS) or self.status >= 500

    @property
    def unknown(self) -> bool:
        """Whether the server failed in the middle: nobody knows whether it did what was asked (R1d)."""
        return self.status == HTTPStatus.INTERNAL_SERVER_ERROR


class BadAnswer(ClientError):
    """Something answers that does not speak this protocol, or not all of it."""


class EndUnknown(ClientError):
    """A prompt was accepted, and how it ended could not be learned."""
