"""How each guarantee shows from outside: what is seen when it is broken, and what a server has to offer for that."""

from collections.abc import Mapping

from cancelmark.model.delivery import DELIVERY
from cancelmark.model.family_properties import FAMILY_PROPERTIES
from cancelmark.model.properties import PROPERTIES, Property

RUN_IDS = Property(
    "run-ids", "A prompt that is sent again under its run id is answered and runs once; no other gets that run id.",
    clauses=("R22a", "R22b", "R22c"))
OUTLIVES_WATCHER = Property(
    "outlives-watcher", "A prompt goes on when nobody watches any more, however long.", clauses=("R26",))

ORDER: tuple[Property, ...] = (*PROPERTIES, DELIVERY, RUN_IDS, OUTLIVES_WATCHER, *FAMILY_PROPERTIES)
"""Everything that a server can claim, in the order in which reports have it. Those of a call of the family are
about servers that offer this call."""
CALLS: Mapping[str, str] = {p.id: feature.value for p in FAMILY_PROPERTIES for feature in p.needs}
"""By guarantee of the family, the call that it is about: a server without that has nothing to keep."""

NO_STEERING = "its turns cannot be steered: it does not use the kit's language model"
NO_PLACE = "no event has said where to come back to: an id, for instance"

NEEDS: Mapping[str, tuple[str, ...]] = {
    "no-late-fold": ("steer", "fold"),
    "no-lost-cancel": ("steer",),
    "cancel-stops": ("steer",),
    "queue-dropped": ("steer",),
    "single-active": ("steer",),
    "fifo": ("steer",),
    "prompt-terminal": ("steer",),
    "all-done": ("steer",),
    "no-absorption": ("steer", "fold"),
    "closed": ("shut",),
    "record": ("messages",),
    "no-loss": ("restart",),
    "delivery": ("leave",),
    "run-ids": ("run_ids",),
    "outlives-watcher": ("steer", "leave", "grace"),
    **{guarantee: ("steer", call) for guarantee, call in CALLS.items()},
}
"""What an adapter must offer, apart from `accept`, `cancel` and `events`; `steer`: turns that the kit steers."""

MISSING: Mapping[str, str] = {
    "steer": NO_STEERING,
    "fold": "none of its turns can be made to answer another prompt too",
    "shut": "the adapter cannot close the server",
    "messages": "the adapter cannot read messages",
    "restart": "the adapter cannot restart the server",
    "leave": "the adapter cannot go away and come back to where it was",
    "run_ids": "the adapter does not say that the server knows a run id again (`run_ids`)",
    "grace": "the adapter does not say how long the server waits when nobody watches (`grace`)",
    **{call: f"the adapter has no `{call}`" for call in ("revoke", "stop", "hold", "replace")},
    **{word: f"the adapter does not say that a prompt can be sent with `{word}` (`if_busy`)"
       for word in ("reject", "interrupt")},
}
"""Why a guarantee is not observable."""

SIGNS: Mapping[str, str] = {
    "no-poisoning": "a prompt ends canceled, or is recorded as canceled, and no cancel or clear was made since its "
                    "acceptance",
    "no-late-fold": "a prompt that was accepted after a cancel appears in a turn that the cancel has reached",
    "no-lost-cancel": "a prompt was accepted before a cancel that was answered, and its turn starts, or the prompt "
                      "comes into the queue",
    "cancel-stops": "a turn was running when a cancel came that was answered, and the turn goes on, or its request to "
                    "the language model stays open after the prompt's end",
    "queue-dropped": "a prompt was in the queue when a cancel or clear came that was answered, and the prompt is still "
                     "there, or starts after the clear",
    "no-loss": "after a restart, a prompt that was accepted before it never starts or ends",
    "one-terminal": "two terminal events carry the same name",
    "single-active": "the language model is asked for one turn of a session while it is held in another",
    "fifo": "a prompt starts before one that was accepted earlier and was seen in the queue",
    "no-absorption": "the text of a prompt with a run id appears in another's turn",
    "attribution": "an event speaks of a prompt that nobody sent, carries another's answer or error, or says that a "
                   "turn ended otherwise than it did: a turn that is canceled while it is held ends canceled",
    "idle-cancel-noop": "a prompt ends canceled, and the only cancels were made while the session was idle",
    "isolation": "a prompt ends canceled, and the only cancels were made in another session",
    "closed": "a prompt is accepted after the close was answered",
    "record": "a prompt that was alone was canceled, and its session does not have its text with a canceled answer",
    "prompt-terminal": "the next turn is held, and the end of the one before it does not come",
    "all-done": "no turn is running, and a prompt that waits does not start",
    "some-terminal": "a prompt was canceled or its turn is over, and its end never comes",
    "progress": "a call is not answered, the server never comes to rest, or it is gone",
    "delivery": "a subscriber went away and came back to its place, or read slowly, and has missed an end or sees it "
                "again",
    "run-ids": "a prompt that was sent again is refused, runs or ends twice; or another is accepted under its run id",
    "outlives-watcher": "a turn is broken off, or a prompt ends canceled or never, because nobody watched",
    "revoke-exact": "a revoke was answered, and its prompt starts, runs on or stays in the queue; or another prompt "
                    "ends canceled that nothing else could have reached",
    "keeps-queue": "a prompt waited behind a running turn when a stop came, and ends canceled; or the server says that "
                   "the stop has reached another",
    "stop-heard": "a prompt was running when a stop came that was answered, or was the only one, and goes on or starts",
    "held": "a prompt that waited when a hold was answered, or came later, starts or is taken in before anybody "
            "resumes; or a turn that was running does not go on after its summary",
    "edited": "the language model hears another text than the last one that was taken; or a text is taken of a prompt "
              "that has started, or was canceled",
    "send-now": "a prompt was accepted to interrupt a running turn, and that turn goes on",
    "reject": "a prompt that wants an idle session was accepted, and another was certainly not done, or the session "
              "was held",
}
"""What is seen when a guarantee is broken."""
