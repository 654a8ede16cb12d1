"""Why a runtime does not do what it is asked for."""


class Refusal(Exception):
    """A prompt was not accepted. Nothing of it is kept."""


class Closing(Refusal):
    """The runtime is closing, or closed."""


class RunIdInUse(Refusal):
    """Another prompt has that run id."""


class NoSession(Refusal):
    """There is no session of that id."""


class Stuck(Refusal):
    """The session's journal cannot be written, for good. A restart goes on from what it has."""


class Moved(Refusal):
    """The session belongs to another server by now."""


TOO_LATE = Closing("the server has closed and could not write this; a restart ends it")
