"""The calls that clients make on a session or on one of its prompts, as one table.

An action says what a call does. Everything else is said by a row of `CALLS`: its method and path, what is sent and
answered, and what people are told. Made from the rows: the server's routes and its OpenAPI document, the requests of
the client and of specs/protocol.md, the words of the kit's scripts, and the kit's adapters of our own server. `accept`
and `close` are not here: one makes its prompt, the other is about all sessions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .actions import Action
from .family import ALL_ACTIONS, FEATURE_OF, Feature

_ACTIONS: Mapping[str, Action] = {action.name: action for action in ALL_ACTIONS}


@dataclass(frozen=True)
class Call:
    """One call. Its name is that of its action, of the runtime's method, and of the client's."""

    name: str
    method: str
    path: str  # behind the session's, or behind the prompt's if it names one
    says: str  # what it does, for those who call it
    answers: str = "when it is journaled"  # what is answered, for readers
    rules: tuple[str, ...] = ()
    answer: str = "Done"  # the type of the answer, in impl/wire.py
    sent: str = ""  # the type of what is sent, if anything is
    takes: Mapping[str, str] = field(default_factory=dict)  # what is sent, by field: the runtime's argument
    refusals: tuple[int, ...] = (404, 503)  # the statuses of what goes wrong
    word: str = ""  # in scripts and adapters of the kit, if that is another
    done: str = ""  # what has happened to the prompt or the session, for people, if the name does not say
    queue: tuple[str, str] = ("", "")  # of a call on a prompt: the word behind `cancelmark queue`, and its help

    @property
    def names_prompt(self) -> bool:
        return _ACTIONS[self.name].subject is not None

    @property
    def rule(self) -> str:
        return _ACTIONS[self.name].rule

    @property
    def feature(self) -> Feature | None:
        """The feature of the family that brings it, if it is not a call of the reference."""
        return FEATURE_OF.get(self.name)

    @property
    def does(self) -> str:
        """In the words of the protocol."""
        sent = ", ".join(f"{name}?" if name != "prompt" else name for name in self.takes)
        return f"the action `{self.name}`" + (f", with `{{{sent}}}`" if sent else "")


CALLS = (
    Call("cancel", "POST", "/cancel",
         "Cancel everything that the session has accepted so far. An idle session is left as it is",
         "when it is journaled; also when idle", ("R27a", "R27c")),
    Call("clear_queue", "POST", "/prompts/clear", "Drop what is queued; the active prompt goes on",
         rules=("R27a", "R27c"), word="clear", done="queue cleared"),
    Call("revoke", "DELETE", "",
         "Cancel one prompt and no other. It is named by its seq or `run:RUN_ID`; the same again is answered the same",
         "`{seq, effect, state, outcome?, into?, text}`; the same again: effect `none`", ("R27d", "R30a"),
         answer="Revoked", done="dropped", queue=("drop", "cancel this prompt alone")),
    Call("stop", "POST", "/stop",
         "Cancel the prompt in front, and keep the queue; with `hold`, hold it too. With `seq` it can be repeated",
         "`{stopped, held}`; only with `seq`, of that prompt alone, may it be repeated",
         ("R27d", "R31a", "R31c"), answer="Stopped", sent="StopPrompt", takes={"hold": "hold", "seq": "seq"}),
    Call("hold", "POST", "/hold",
         "Hold the session: what waits is kept, and nothing of it starts; a running turn goes on to its end",
         "`{held}`", ("R27d", "R32a"), answer="Held"),
    Call("resume", "POST", "/resume", "End the hold: the queue goes on",
         "`{held}`", ("R27d", "R32d"), answer="Held"),
    Call("replace", "PUT", "/text",
         "Give a prompt that has not begun another text. The text that it has already is taken in every state",
         "`{seq, version}`, also for the text that it has already; 409 too late, 412 another version",
         ("R27d", "R33a", "R33b"), answer="Replaced", sent="ReplaceText",
         takes={"prompt": "text", "if_version": "if_version"}, refusals=(404, 409, 412, 503), done="edited",
         queue=("edit", "edit its text in $EDITOR; the session is held meanwhile, so that the prompt does not start")),
    Call("next", "POST", "/next", "Move a prompt that waits ahead of all others",
         "`{ahead: 0}`; 409 too late", ("R27d", "R34a"), answer="Placed", refusals=(404, 409, 503),
         done="moved to the front", queue=("up", "move it ahead of all others")),
)

CALLS_BY_NAME: Mapping[str, Call] = {call.name: call for call in CALLS}
CALLS_BY_WORD: Mapping[str, Call] = {call.word or call.name: call for call in CALLS}
NAMED = tuple(word for word, call in CALLS_BY_WORD.items() if call.names_prompt)  # calls on one prompt
FAMILY = tuple(word for word, call in CALLS_BY_WORD.items() if call.feature)
