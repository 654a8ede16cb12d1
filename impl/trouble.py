"""Why an HTTP request has no response, or only a part of it."""


class Trouble(Exception):
    """There is no response, or only a part of it."""


class Unreachable(Trouble):
    """The connection could not be established."""


class Silent(Trouble):
    """The server has sent nothing for too long."""


class Lost(Trouble, ConnectionError):
    """The connection ended before the response was complete."""


class Garbled(Trouble):
    """The response cannot be read; the message says why."""
