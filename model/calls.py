"""The client calls on a session or on one of its prompts, as one table.

An action defines the behaviour of a call. Its entry in `CALLS` defines everything else: HTTP method and path, request
and response, and help texts. The following are generated from the table:

- the server's routes and its OpenAPI document,
- the client's requests, and the table of requests in specs/protocol.md,
- the keywords of the kit's scripts, and the kit's adapters for our own server.

`accept`, `answer` and `close` are not in the table: `accept` creates its prompt, `answer` names a question, and `close`
applies to all sessions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .actions import Action
from .family import ALL_ACTIONS, FEATURE_OF, Feature

_ACTIONS: Mapping[str, Action] = {action.name: action for action in ALL_ACTIONS}


@dataclass(frozen=True)
class ClientCall:
    """A client call. Its action, the runtime's method and the client's method have the same name."""

    name: str
    method: str
    path: str  # appended to the session's path, or to the prompt's if the call names one
    says: str  # description for callers
    answers: str = "when it is journaled"  # description of the response
    rules: tuple[str, ...] = ()
    answer: str = "Done"  # the response type, in impl/wire.py
    sent: str = ""  # the request type, if there is a body
    takes: Mapping[str, str] = field(default_factory=dict)  # by field of the request: the runtime's argument
    refusals: tuple[int, ...] = (404, 503)  # error statuses
    word: str = ""  # its keyword in the kit's scripts and adapters, if different from the name
    done: str = ""  # display text for the completed call, if different from the name
    queue: tuple[str, str] = ("", "")  # for a call on a prompt: its `cancelmark queue` subcommand, and the help text

    @property
    def names_prompt(self) -> bool:
        return _ACTIONS[self.name].subject is not None

    @property
    def rule(self) -> str:
        return _ACTIONS[self.name].rule

    @property
    def feature(self) -> Feature | None:
        """The feature that enables it, or None for a call of the reference."""
        return FEATURE_OF.get(self.name)

    @property
    def does(self) -> str:
        """The call described as an action of the protocol."""
        sent = ", ".join(f"{name}?" if name != "prompt" else name for name in self.takes)
        return f"the action `{self.name}`" + (f", with `{{{sent}}}`" if sent else "")


CALLS = (
    ClientCall("cancel", "POST", "/cancel",
         "Cancel every prompt that the session has accepted so far. Has no effect on an idle session",
         "when it is journaled, even if the session is idle", ("R27a", "R27c")),
    ClientCall("clear_queue", "POST", "/prompts/clear", "Drop the queued prompts. The active prompt continues",
         rules=("R27a", "R27c"), word="clear", done="queue cleared"),
    ClientCall("revoke", "DELETE", "",
         "Cancel a single prompt, identified by its seq or by `run:RUN_ID`. The call is idempotent",
         "`{seq, effect, state, outcome?, into?, text}`; a repeated call has effect `none`", ("R27d", "R30a"),
         answer="Revoked", done="dropped", queue=("drop", "cancel only this prompt")),
    ClientCall("stop", "POST", "/stop",
         "Cancel the prompt in front, and keep the queue. With `hold`, also hold the session. With `seq`, idempotent",
         "`{stopped, held}`; retry it only with `seq`, which limits it to that prompt",
         ("R27d", "R31a", "R31c"), answer="Stopped", sent="StopPrompt", takes={"hold": "hold", "seq": "seq"}),
    ClientCall("hold", "POST", "/hold",
         "Hold the session: waiting prompts stay in the queue and do not start. A running turn continues",
         "`{held}`", ("R27d", "R32a"), answer="Held"),
    ClientCall("resume", "POST", "/resume", "End the hold: queued prompts start again",
         "`{held}`", ("R27d", "R32d"), answer="Held"),
    ClientCall("replace", "PUT", "/text",
         "Replace the text of a prompt that has not started. A call with the prompt's current text always succeeds",
         "`{seq, version}`, even if the text is unchanged; 409 too late, 412 version mismatch",
         ("R27d", "R33a", "R33b"), answer="Replaced", sent="ReplaceText",
         takes={"prompt": "text", "if_version": "if_version"}, refusals=(404, 409, 412, 503), done="edited",
         queue=("edit", "edit its text in $EDITOR; the session is held meanwhile, so that the prompt does not start")),
    ClientCall("next", "POST", "/next", "Move a waiting prompt ahead of all others",
         "`{ahead: 0}`; 409 too late", ("R27d", "R34a"), answer="Placed", refusals=(404, 409, 503),
         done="moved to the front", queue=("up", "move it ahead of all others")),
)

CALLS_BY_NAME: Mapping[str, ClientCall] = {call.name: call for call in CALLS}
CALLS_BY_WORD: Mapping[str, ClientCall] = {call.word or call.name: call for call in CALLS}
NAMED = tuple(word for word, call in CALLS_BY_WORD.items() if call.names_prompt)  # calls on a single prompt
FAMILY = tuple(word for word, call in CALLS_BY_WORD.items() if call.feature)
