"""How the steps of a session are committed: against a version, under an id, and with an answer that says which of three
things came of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .operations import Operation
from .records import PromptRecord

EPOCH = 1  # of every session in a store that one process has to itself
REMEMBERED = 1024  # steps that are known to be kept when they come again


class Snapshot(NamedTuple):
    """A session as it is stored, with the prompts that are not done, by seq."""

    session_id: str
    mark: int
    version: int  # counts the commits that were computed on the session
    epoch: int  # counts its owners
    prompts: tuple[PromptRecord, ...]
    held: bool = False
    owned: bool = True  # by this process, since its latest epoch
    free: bool = False  # nobody owns it


class Steps(NamedTuple):
    """Steps of one session, to be kept as a whole or not at all.

    Steps with a version were computed on the session as it was then, and hold only there. Without one they hold on any:
    an acceptance, a message, a new session. Steps with an epoch are those of the session's owner. The same steps may be
    committed again under the same id, and are kept once; without an id they may be repeated without harm.

    A store that several processes share may be asked to make this one the owner, or nobody. A process that owns its
    store owns all sessions, and neither claims nor releases one.
    """

    id: str
    session_id: str
    version: int | None
    operations: Sequence[Operation]
    epoch: int | None = None
    claim: str = ""  # "adopt" a session that is free, "recover" one whose owner is dead
    release: str = ""  # the session is free after the steps: "idle", or with work for whoever claims it: "handover"
    actions: Sequence[Sequence[object]] = ()  # of the protocol, that the steps are made of, for the journal


class Committed(NamedTuple):
    """The steps are durable."""

    version: int  # of the session, after them
    events: tuple[int, ...]  # the ids of the events that they appended, in order
    repeated: bool = False  # they were kept before, under the same id
    seqs: tuple[int, ...] = ()  # that the store has given to prompts which were accepted without one
    epoch: int | None = None  # of the session, if this process owns it after the steps; of a shared store


class Conflict(NamedTuple):
    """The session has another version by now. Nothing was kept: compute the steps on the snapshot."""

    snapshot: Snapshot


class Lost(NamedTuple):
    """The session has another owner by now. Nothing was kept."""


Answer: TypeAlias = Committed | Conflict | Lost


class Ledger:
    """The versions of the sessions, and the ids of the latest steps, for a store that one process has to itself.

    Both live in memory: nobody who has computed steps on a version outlives the process. What a transaction adds counts
    at once for what follows in it, and for others when it is settled.
    """

    def __init__(self) -> None:
        self._versions: dict[str, int] = {}
        self._kept: dict[str, Committed] = {}  # by step id
        self._older: dict[str, Committed] = {}  # what was kept before those
        self._new_versions: dict[str, int] = {}
        self._new_kept: dict[str, Committed] = {}

    def settled(self) -> dict[str, int]:
        """The versions that are durable. Read the rows after them: a version must not be newer than its rows."""
        return self._versions.copy()

    def fits(self, steps: Steps) -> bool:
        """Whether the steps are to be applied."""
        id, session_id, version, _, epoch, _, _, _ = steps
        return ((version is None or version == self._version(session_id)) and (epoch is None or epoch == EPOCH)
                and id not in self._kept and id not in self._new_kept and id not in self._older)

    def refuse(self, steps: Steps, load: Callable[[dict[str, int]], Snapshot]) -> Answer:
        """The answer to steps that do not fit. `load` reads the session, given the versions."""
        if known := self._kept.get(steps.id) or self._new_kept.get(steps.id) or self._older.get(steps.id):
            return known._replace(repeated=True)
        return Lost() if steps.epoch not in (None, EPOCH) else Conflict(load(self._versions | self._new_versions))

    def add(self, steps: Steps, events: tuple[int, ...] = ()) -> Committed:
        """The steps are applied."""
        id, session_id, version, _, _, _, _, _ = steps
        now = self._version(session_id)
        if version is not None:
            now = self._new_versions[session_id] = now + 1
        answer = Committed(now, events)
        if id:
            self._new_kept[id] = answer
        return answer

    def add_events(self, steps: Steps, answer: Committed, events: tuple[int, ...]) -> Committed:
        """The steps that were added have appended these."""
        answer = answer._replace(events=events)
        if steps.id:
            self._new_kept[steps.id] = answer
        return answer

    def settle(self) -> None:
        """Everything that was added is durable."""
        self._versions.update(self._new_versions)
        if len(self._kept) >= REMEMBERED:  # so many at least are kept, and at most twice as many
            self._older, self._kept = self._kept, {}
        self._kept.update(self._new_kept)
        self.take_back()

    def take_back(self) -> None:
        """Nothing that was added is kept."""
        self._new_versions, self._new_kept = {}, {}

    def _version(self, session_id: str) -> int:
        versions = self._new_versions if session_id in self._new_versions else self._versions
        return versions.get(session_id, 0)


def snapshots(versions: Mapping[str, int], marks: Iterable[tuple[str, int, bool]], unfinished: Iterable[PromptRecord],
              ) -> list[Snapshot]:
    """The sessions whose ids, marks and holds are given, with their prompts that are not done."""
    prompts: dict[str, list[PromptRecord]] = {}
    for prompt in unfinished:
        prompts.setdefault(prompt.session_id, []).append(prompt)
    return [Snapshot(id, mark, versions.get(id, 0), EPOCH, tuple(prompts.get(id, ())), held)
            for id, mark, held in marks]
