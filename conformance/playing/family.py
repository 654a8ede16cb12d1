"""The scenarios for optional calls: each a script and the guarantee that it tests."""

from dataclasses import dataclass

from .script import Script, script


@dataclass(frozen=True)
class Scenario:
    """A script that tests one guarantee."""

    name: str  # of the flaw that it provokes, or of the case that it tests
    guarantee: str
    text: str
    needs: frozenset[str] = frozenset()  # what the server must offer, besides turns that the kit controls

    @classmethod
    def of(cls, name: str, guarantee: str, text: str, *needs: str) -> "Scenario":
        """A scenario that also needs the optional calls in its script."""
        family = (what for do in script(text).everything for what in do.needs)
        return cls(name, guarantee, text, frozenset([*needs, *family]))

    @property
    def script(self) -> Script:
        return script(self.text)


_s = Scenario.of

FAMILY_SCENARIOS: tuple[Scenario, ...] = (
    # one prompt canceled
    _s("a revoke of a running turn", "revoke-exact", "accept A; accept B; revoke A"),
    _s("a revoke before the entry", "revoke-exact", "accept A, revoke A"),
    _s("a revoke in the queue", "revoke-exact", "accept A; accept B; accept C; revoke B; release"),
    _s("a revoke beside one that enters", "revoke-exact", "accept A, accept B, revoke B"),
    _s("a revoke while its turn ends", "revoke-exact", "accept A; accept B; release + revoke A"),
    _s("a revoke before a restart", "no-lost-cancel", "accept A, revoke A, restart", "restart"),
    _s("the next prompt after a revoke", "no-poisoning", "accept A; revoke A, accept B"),
    # the running prompt stopped
    _s("a stop of a running turn", "stop-heard", "accept A; accept B; stop"),
    _s("a stop before the entry", "stop-heard", "accept A, stop"),
    _s("a stop before a queue", "keeps-queue", "accept A; accept B; accept C; stop"),
    _s("a stop of one that came later", "keeps-queue", "accept A, accept B; stop"),
    _s("a stop while its turn ends", "no-poisoning", "accept A; accept B; accept C; stop + release"),
    _s("a stop of an idle session", "idle-cancel-noop", "stop; accept A"),
    _s("the next prompt after a stop", "no-poisoning", "accept A; stop, accept B"),
    # the queue held
    _s("a stop that holds", "held", "accept A; accept B; stop hold; resume"),
    _s("a hold of a queue", "held", "accept A; accept B; hold; release; resume"),
    _s("a prompt in a held session", "held", "hold; accept A; resume"),
    _s("a prompt beside a hold", "held", "accept A + hold; accept B; resume"),
    _s("a hold and a cancel", "held", "hold; cancel; accept A; resume"),
    _s("a hold and a restart", "held", "hold; accept A; restart; resume", "restart"),
    _s("a held queue does not fold", "held", "accept A; accept B anonymous; hold; again", "fold"),
    _s("a held turn goes on after its summary", "held", "accept A, accept B; hold; outgrow; summarize; resume",
       "outgrow"),
    _s("a resume with nothing running", "all-done", "hold; accept A; resume"),
    _s("a resume while a turn ends", "all-done", "accept A; accept B; hold; release + resume"),
    # the text replaced
    _s("another text for one that waits", "edited", "accept A; accept B; replace B; release"),
    _s("a third text", "edited", "accept A; accept B; replace B; replace B; release"),
    _s("another text too late", "edited", "accept A; replace A"),
    _s("another text while it starts", "edited", "accept A; accept B; release + replace B"),
    _s("another text for one that was canceled", "edited", "accept A, revoke A, replace A"),
    _s("another text for one that has begun", "edited",
       "accept A, accept B; outgrow; summarize; replace A + replace B", "outgrow"),
    _s("another text and a restart", "edited", "accept A; accept B; replace B; restart", "restart"),
    # moved to the front
    _s("to the front", "fifo", "accept A; accept B; accept C; next C; release; release"),
    _s("to the front, both", "fifo", "accept A; accept B; accept C; next C; next B; release; release"),
    _s("to the front and a restart", "fifo", "accept A; accept B; accept C; next C; restart", "restart"),
    _s("to the front after a cancel", "no-lost-cancel", "accept A; accept B, cancel, next B"),
    _s("to the front of a turn that goes on", "fifo", "accept A; accept B; next B; outgrow; summarize; release",
       "outgrow"),
    # sent to interrupt
    _s("an interrupt", "send-now", "accept A; accept B interrupt"),
    _s("an interrupt right behind", "send-now", "accept A, accept B interrupt"),
    _s("an interrupt before a queue", "no-poisoning", "accept A; accept B; accept C interrupt; release; release"),
    _s("an interrupt of who came later", "no-poisoning", "accept A interrupt, accept B"),
    _s("an interrupt that is revoked", "no-poisoning", "accept A; accept B interrupt, revoke B"),
    _s("an interrupt in a held session", "no-poisoning", "accept A; hold; accept B interrupt; release; resume"),
    _s("two interrupts", "fifo", "accept A; accept B interrupt, accept C interrupt; release; release"),
    _s("a follow-up to an interrupt", "no-late-fold", "accept A; accept B interrupt, accept C anonymous, again",
       "fold"),
    _s("an interrupt waits for the turn that it stops", "single-active", "accept A; accept B interrupt; release"),
    # only if idle
    _s("refused while a turn runs", "reject", "accept A; accept B reject"),
    _s("refused before the entry", "reject", "accept A, accept B reject"),
    _s("refused one of two", "reject", "accept A reject + accept B reject"),
    _s("refused while held", "reject", "hold; accept A reject; resume"),
    _s("accepted when all is done", "reject", "accept A reject; release; accept B reject, accept C reject"),
)
