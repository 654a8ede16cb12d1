"""Why a request over HTTP has no answer, or no more of it."""


class Trouble(Exception):
    """There is no answer, or no more of it."""


class Unreachable(Trouble):
    """There is no connection."""


class Silent(Trouble):
    """Nothing has come for too long."""


class Lost(Trouble, ConnectionError):
    """The connection has ended before the answer."""


class Garbled(Trouble):
    """The answer cannot be read; the text says why."""
