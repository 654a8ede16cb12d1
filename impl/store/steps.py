"""Commits of a session's steps: against a version, under an id, and with one of three answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .operations import Operation
from .records import PromptRecord

EPOCH = 1  # of every session, if one process has the store to itself
REMEMBERED = 1024  # commit ids remembered at least, to recognize repetitions


class Snapshot(NamedTuple):
    """A session as stored, with the prompts that are not done, by seq."""

    session_id: str
    mark: int
    version: int  # counts the commits computed on the session
    epoch: int  # counts its owners
    prompts: tuple[PromptRecord, ...]
    held: bool = False
    owned: bool = True  # by this process, in this epoch
    free: bool = False  # it is unowned


class CommitRequest(NamedTuple):
    """Steps of one session to commit, atomically.

    - With a `version`, they are rejected unless the session is still at that version. Without one they are valid on
      any: a message, a new session.
    - With an `epoch`, they are rejected unless the session's owner still has that epoch.
    - Under an `id`, the commit is idempotent. Without one, the operations themselves must be.

    In a shared store, a commit can also claim the session for this process, or release it. A process that has the store
    to itself owns all sessions, and does neither.
    """

    id: str
    session_id: str
    version: int | None
    operations: Sequence[Operation]
    epoch: int | None = None
    claim: str = ""  # "adopt" an unowned session, "recover" one whose owner is dead
    release: str = ""  # unowned after the steps: "idle", or with work for the next owner: "handover"
    actions: Sequence[Sequence[object]] = ()  # the protocol's actions, for the journal


class Committed(NamedTuple):
    """The steps are durable."""

    version: int  # of the session after them
    events: tuple[int, ...]  # ids of the appended events, in order
    repeated: bool = False  # an earlier attempt under the same id was committed
    seqs: tuple[int, ...] = ()  # assigned to prompts that were accepted without one
    epoch: int | None = None  # in a shared store: of the session, if this process owns it now


class Conflict(NamedTuple):
    """The session is at another version. Nothing was kept: compute the steps again on the snapshot."""

    snapshot: Snapshot


class Lost(NamedTuple):
    """The session has another owner. Nothing was kept."""


CommitAnswer: TypeAlias = Committed | Conflict | Lost


class Ledger:
    """The versions of the sessions and the ids of the latest commits, for a store that one process has to itself.

    Both live in memory: a caller that has computed steps on a version does not outlive the process. What a transaction
    adds is visible at once to what follows in it, and to readers when it is settled.
    """

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._kept: dict[str, Committed] = {}  # by commit id
        self._older: dict[str, Committed] = {}  # the generation before
        self._new_versions: dict[str, int] = {}
        self._new_kept: dict[str, Committed] = {}

    def settled(self) -> dict[str, int]:
        """The durable versions. Read the rows after them: a version must not be newer than its rows."""
        return self._versions.copy()

    def fits(self, steps: CommitRequest) -> bool:
        """Whether the steps are to be applied."""
        id, session_id, version, _, epoch, _, _, _ = steps
        return ((version is None or version == self._version(session_id)) and (epoch is None or epoch == EPOCH)
                and id not in self._kept and id not in self._new_kept and id not in self._older)

    def refuse(self, steps: CommitRequest, load: Callable[[dict[str, int]], Snapshot]) -> CommitAnswer:
        """The answer to steps that are not to be applied. `load` reads the session, given the versions."""
        if known := self._kept.get(steps.id) or self._new_kept.get(steps.id) or self._older.get(steps.id):
            return known._replace(repeated=True)
        return Lost() if steps.epoch not in (None, EPOCH) else Conflict(load(self._versions | self._new_versions))

    def add(self, steps: CommitRequest, events: tuple[int, ...] = ()) -> Committed:
        """Take note that the steps are applied, and return their answer."""
        id, session_id, version, _, _, _, _, _ = steps
        now = self._version(session_id)
        if version is not None:
            now = self._new_versions[session_id] = now + 1
        answer = Committed(now, events)
        if id:
            self._new_kept[id] = answer
        return answer

    def add_events(self, steps: CommitRequest, answer: Committed, events: tuple[int, ...]) -> Committed:
        """Complete the answer with the events that the steps have appended."""
        answer = answer._replace(events=events)
        if steps.id:
            self._new_kept[steps.id] = answer
        return answer

    def settle(self) -> None:
        """Take note that everything added is durable."""
        self._versions.update(self._new_versions)
        if len(self._kept) >= REMEMBERED:  # keeps at least so many, and at most twice as many
            self._older, self._kept = self._kept, {}
        self._kept.update(self._new_kept)
        self.take_back()

    def take_back(self) -> None:
        """Discard everything that was added and not settled."""
        self._new_versions, self._new_kept = {}, {}

    def _version(self, session_id: str) -> int:
        versions = self._new_versions if session_id in self._new_versions else self._versions
        return versions.get(session_id, 0)


def snapshots(versions: Mapping[str, int], marks: Iterable[tuple[str, int, bool]], unfinished: Iterable[PromptRecord],
              ) -> list[Snapshot]:
    """The sessions with these ids, marks and holds, with their prompts that are not done."""
    prompts: dict[str, list[PromptRecord]] = {}
    for prompt in unfinished:
        prompts.setdefault(prompt.session_id, []).append(prompt)
    return [Snapshot(id, mark, versions.get(id, 0), EPOCH, tuple(prompts.get(id, ())), held)
            for id, mark, held in marks]
