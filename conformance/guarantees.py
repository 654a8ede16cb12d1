"""How each guarantee shows from outside: what is seen when it is broken, and what a server has to offer for that."""

from collections.abc import Mapping

NO_STEERING = "its turns cannot be steered: it does not use the kit's language model"

NEEDS: Mapping[str, tuple[str, ...]] = {
    "no-lost-cancel": ("steer",),
    "single-active": ("steer",),
    "fifo": ("steer",),
    "prompt-terminal": ("steer",),
    "all-done": ("steer",),
    "no-absorption": ("steer", "fold"),
    "closed": ("shut",),
    "record": ("messages",),
    "no-loss": ("restart",),
    "delivery": ("leave",),
}
"""What an adapter must offer, apart from `accept`, `cancel` and `events`; `steer`: turns that the kit steers."""

MISSING: Mapping[str, str] = {
    "steer": NO_STEERING,
    "fold": "none of its turns can be made to take another prompt in",
    "shut": "the adapter cannot close the server",
    "messages": "the adapter cannot read messages",
    "restart": "the adapter cannot restart the server",
    "leave": "the adapter cannot go away and come back to where it was",
}
"""Why a guarantee is not observable."""

SIGNS: Mapping[str, str] = {
    "no-poisoning": "a prompt ends canceled, or is recorded as canceled, and no cancel or clear was made since its "
                    "acceptance",
    "no-lost-cancel": "a cancel was answered, and the turn of a prompt that was accepted before it goes on",
    "no-loss": "after a restart, a prompt that was accepted before it never starts or ends",
    "one-terminal": "two terminal events carry the same name",
    "single-active": "the language model is asked for one turn of a session while it is held in another",
    "fifo": "a prompt starts before one that was accepted earlier and was seen in the queue",
    "no-absorption": "the text of a prompt with a run id appears in another's turn",
    "attribution": "an event speaks of a prompt that nobody sent, carries another's answer or error, or says that a "
                   "turn ended otherwise than it did",
    "idle-cancel-noop": "a prompt ends canceled, and the only cancels were made while the session was idle",
    "isolation": "a prompt ends canceled, and the only cancels were made in another session",
    "closed": "a prompt is accepted after the close was answered",
    "record": "a prompt that was alone was canceled, and its session does not have its text with a canceled answer",
    "prompt-terminal": "the next turn is held, and the end of the one before it does not come",
    "all-done": "no turn is running, and a prompt that waits does not start",
    "some-terminal": "a prompt was canceled or its turn is over, and its end never comes",
    "progress": "a call is not answered, or the server never comes to rest",
    "delivery": "a subscriber went away and came back to its place, and has missed an end or sees it again",
}
"""What is seen when a guarantee is broken."""
