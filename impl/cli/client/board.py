"""The live state of a workspace's prompts, as a subscriber sees it, and how it is drawn on a terminal."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import TYPE_CHECKING

from rich.text import Text

from cancelmark.model.lifecycle import INITIAL, Outcome, State
from cancelmark.views.drawing.theme import PROMPT_LOOKS

from ..text import line

if TYPE_CHECKING:
    from ...client import Ask, Notice, Prompt, RunComplete, Session

KEPT = 500  # finished prompts that the board remembers
COLUMNS = tuple(state.value for state in State if state is not State.CANCELED_ON_ENTRY)
ACTIVE = State.ACTIVE.value
COLUMN = 10  # characters
WIDE = 76  # terminal width from which the columns are shown
ANSWER = 2000  # characters of an answer that the board keeps

ENDS: Mapping[str, tuple[str, str, str]] = {  # by outcome: the sign, the sign without Unicode, and the style
    Outcome.END_TURN.value: ("✓", "+", "green"), Outcome.ERROR.value: ("✗", "x", "bold red"),
    Outcome.CANCELED.value: ("⊘", "/", "dark_orange"), Outcome.FOLDED.value: ("↳", ">", "cyan")}
NO_END = ("●", "o", "")


@dataclass(frozen=True)
class Card:
    """A prompt: its state, the states it has been in, its text and its answer."""

    seq: int
    session_id: str
    text: str
    state: str
    outcome: str = ""
    answer: str = ""
    error: str = ""
    been: frozenset[str] = frozenset({INITIAL.value})
    since: float = field(default_factory=monotonic)  # when it entered its state
    version: int = 0
    front: int = 0
    node: str = ""  # the node that runs it, in a cluster

    @property
    def done(self) -> bool:
        return self.state == State.DONE.value

    @property
    def style(self) -> str:
        if self.outcome in ENDS:
            return ENDS[self.outcome][2]
        look = PROMPT_LOOKS.get(self.state)  # a newer server may have states unknown to this version
        return look.terminal if look else ""

    @property
    def word(self) -> str:
        """Its outcome or state, in one word."""
        waits_for_end = self.state == State.CANCELED_ON_ENTRY.value
        return Outcome.CANCELED.value if waits_for_end else self.outcome or self.state


def describe_ask(ask: "Ask") -> str:
    """A question, with the command that answers it; or how it has ended."""
    if ask.status == "open":
        return f"asks: {ask.title} (cancelmark answer {ask.ask} allow|deny)"
    if ask.why:
        return f"question {ask.ask} withdrawn: {ask.why}"
    return f"question {ask.ask} {ask.status} by client {ask.by[:4] or 'unknown'}"


class Board:
    """The known state of a workspace's prompts. After missed events, `fill` brings it up to date from listings."""

    def __init__(self) -> None:
        self.titles: dict[str, str] = {}  # by session id
        self.held: set[str] = set()  # session ids
        self.marks: dict[str, int] = {}  # by session id; only sessions with a cancel
        self.cards: dict[int, Card] = {}  # by seq
        self.taken_over: dict[str, str] = {}  # by session id: "NODE took over from NODE"

    def fill(self, sessions: Iterable["Session"], prompts: Iterable["Prompt"]) -> None:
        """Applies a snapshot of sessions and prompts."""
        for session in sessions:
            self._name(session)
        for prompt in prompts:
            self._move(prompt)

    def take(self, notice: "Notice") -> Card | None:
        """Applies an event and returns the card that it changed, if any."""
        from ...client import Ask, Called, Message, Prompt, RunComplete, Session, TakenOver

        match notice.payload:
            case Session() as session:
                self._name(session)
            case Called(session_id=session_id, mark=mark):
                self._raise_mark(session_id, mark)
            case Prompt() as prompt:
                return self._move(prompt)
            case TakenOver() as taken:
                self.taken_over[taken.session_id] = line(f"{taken.node} took over from {taken.gone}")
            case Ask(seq=seq) as ask if seq in self.cards:
                self.cards[seq] = replace(self.cards[seq], answer=line(describe_ask(ask)))
                return self.cards[seq]
            case RunComplete(seq=seq) as end if seq in self.cards:
                return self._end(end)
            case Message(role="assistant", seq=seq, text=text) if seq in self.cards:
                self.cards[seq] = replace(self.cards[seq], answer=line(text[-ANSWER:]))
                return self.cards[seq]
        return None

    def title(self, session: str) -> str:
        return line(self.titles.get(session, "")) or session[:8]

    def _name(self, session: "Session") -> None:
        self.titles[session.id] = session.title
        self.held = self.held | {session.id} if session.held else self.held - {session.id}
        self._raise_mark(session.id, session.mark)

    def _raise_mark(self, session: str, mark: int) -> None:
        """Marks only rise, and not every response has one."""
        if mark > self.marks.get(session, 0):
            self.marks[session] = mark

    def count(self, state: str) -> int:
        return sum(card.state == state for card in self.cards.values())

    def _move(self, prompt: "Prompt") -> Card:
        text = line(prompt.text[:ANSWER])
        card = self.cards.get(prompt.seq) or Card(prompt.seq, prompt.session_id, text, prompt.state)
        if (card.state, card.outcome) != (prompt.state, prompt.outcome):
            card = replace(card, state=prompt.state, outcome=prompt.outcome, since=monotonic())
        if prompt.version > card.version:
            card = replace(card, text=text)
        card = replace(card, version=max(prompt.version, card.version), front=prompt.front, node=prompt.node)
        been = {prompt.state, ACTIVE} if prompt.outcome == Outcome.END_TURN.value else {prompt.state}
        self.cards[card.seq] = card = replace(card, been=card.been | been)
        self._forget()
        return card

    def _end(self, end: "RunComplete") -> Card:
        card = replace(self.cards[end.seq], state=State.DONE.value, outcome=end.outcome, error=line(end.error))
        self.cards[end.seq] = card = replace(card, answer=line(end.text[:ANSWER]) or card.answer)
        return card

    def _forget(self) -> None:
        done = [card.seq for card in self.cards.values() if card.done]
        for seq in sorted(done)[:-KEPT]:
            del self.cards[seq]


# --- how it looks

def draw_board(board: Board, width: int, height: int, *, unicode: bool = True) -> list[Text]:
    """The board in at most `height` lines of at most `width` columns. If it does not fit, the earliest finished prompts
    are left out first, then the latest unfinished ones."""
    wide = width >= WIDE
    head = [Text("      " + "".join(f"{name:{COLUMN}}" for name in COLUMNS) + "  prompt", "dim")] if wide else []
    cards = sort_cards(board.cards.values())
    room = height - len(head)
    while cards and _lines(cards) > room and any(card.done for card in cards):
        cards.remove(next(card for card in cards if card.done))
    hidden = 0
    while cards and _lines(cards) + bool(hidden) > room:
        cards.pop()
        hidden += 1
    lines = [*head, *_sessions(board, cards, width, wide, unicode)]
    if hidden:
        lines.append(Text(f"  and {hidden} more", "dim"))
    for shown in lines:
        shown.truncate(width, overflow="ellipsis" if unicode else "crop")
    return lines[:max(0, height)]


def sort_cards(cards: Iterable[Card]) -> list[Card]:
    """The cards by seq; but if a prompt was moved to the front, the queued prompts come last, in queue order."""
    cards = sorted(cards, key=lambda card: card.seq)
    waiting = [card for card in cards if card.state == State.QUEUED.value]
    if not any(card.front for card in waiting):
        return cards
    waiting.sort(key=lambda card: (-card.front, card.seq))
    return [*(card for card in cards if card not in waiting), *waiting]


def prompt_note(prompt: "Card | Prompt") -> str:
    """A note on a waiting prompt that was moved or edited, or the node of an active one."""
    if prompt.state == ACTIVE and prompt.node:
        return f"(at {prompt.node}) "
    waits = prompt.state in (INITIAL.value, State.QUEUED.value)
    return ("(to the front) " if prompt.front and waits else "") + ("(edited) " if prompt.version and waits else "")


def _lines(cards: Iterable[Card]) -> int:
    cards = list(cards)
    return len(cards) + len({card.session_id for card in cards})


def _sessions(board: Board, cards: list[Card], width: int, wide: bool, unicode: bool) -> Iterator[Text]:
    for session in dict.fromkeys(card.session_id for card in sorted(cards, key=lambda card: card.seq)):
        held = ("  held", "yellow") if session in board.held else ""
        mark = f"  mark {'≤' if unicode else '<='} {board.marks[session]}" if session in board.marks else ""
        taken = f"  {board.taken_over[session]}" if session in board.taken_over else ""
        yield Text.assemble(" ", (board.title(session), "bold"), held, (mark, "dark_orange"), (taken, "red"))
        for card in cards:
            if card.session_id == session:
                yield _row(card, width, wide, unicode)


def _row(card: Card, width: int, wide: bool, unicode: bool) -> Text:
    row = Text(no_wrap=True)
    row.append(f"{card.seq:5} ", "dim")
    row.append_text(_track(card, unicode) if wide else Text(f"{_mark(card, unicode)} {card.word:9}", card.style))
    row.append("  ")
    room = width - row.cell_len
    text = Text(prompt_note(card) + card.text)
    said = card.error or card.answer
    if said and room > 24:
        text.truncate(max(12, room * 2 // 5), overflow="ellipsis" if unicode else "crop")
    row.append_text(text)
    if said:
        row.append("  ")
        told = Text(said, "red" if card.error else "dim")
        if not card.done and told.cell_len > (left := width - row.cell_len):  # show the end of a partial answer
            told = Text(("…" if unicode else "") + said[-max(1, left - 2):], "dim")
        row.append_text(told)
    return row


def _track(card: Card, unicode: bool) -> Text:
    """The prompt's path through the states: a dot for a state it was in, a line for one it skipped."""
    here = COLUMNS.index(card.state) if card.state in COLUMNS else 0
    dot, rail = ("●", "─") if unicode else ("o", "-")
    track = Text()
    for name in COLUMNS[:here]:
        track.append((dot if name in card.been else rail) + rail * (COLUMN - 1), "dim")
    track.append(_mark(card, unicode), card.style)
    if card.state == ACTIVE:
        track.append(f" {_time(monotonic() - card.since)}", card.style)
    elif card.done or card.state == State.CANCELED_ON_ENTRY.value:
        track.append(f" {card.word}", card.style)
    track.append(" " * (COLUMN * len(COLUMNS) - track.cell_len))
    return track


def _mark(card: Card, unicode: bool) -> str:
    return ENDS.get(card.outcome, NO_END)[0 if unicode else 1]


def _time(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole}s" if whole < 100 else f"{whole // 60}m" if whole < 6000 else f"{whole // 3600}h"
