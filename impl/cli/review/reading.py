"""What a reader needs to read the page alone: the rules, the words, and why the mark works."""

import json
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from cancelmark.model.lifecycle import Row
from cancelmark.model.properties import Bounds
from cancelmark.model.revisions.flaws import FLAWS_BY_NAME
from cancelmark.views.drawing.render import inline, render_svg
from cancelmark.views.states.lifecycle import brief_label, brief_lifecycle_graph

from .findings import Findings
from .whatif import INSTEAD, Change

FIRST = 4  # of what is not promised: not folded
_CITED = re.compile(r"\bR\d+[a-z]?\b")

GLOSSARY = {
    "prompt": "A piece of work, a text, that a client asks for in one session.",
    "session": "One conversation. Several clients may use the same session.",
    "turn": "The work for the active prompt: calls of the language model and of tools, until an answer stands.",
    "accept": "The server takes a prompt, gives it a seq, and tells the client so. The prompt has not entered yet.",
    "enter": "An accepted prompt becomes active, queued, or canceled on entry.",
    "seq": "The number of a prompt in the order of acceptance: A is 1, B is 2, and so on.",
    "mark": "A number that a session keeps: the highest seq that a cancel has reached. The mark only rises.",
    "covered": "A cancel has reached the prompt: its seq is at or below the mark.",
    "busy": "The session has an active prompt, or the server is down.",
    "run id": "A name that a client gives its prompt, in order to wait for the end of exactly this prompt.",
    "fold": "A queued prompt without a run id joins the running turn, and ends with it.",
    "terminal event": "The event that says that a prompt is done, and how: end_turn, error, canceled or folded. In "
                      "drawings: RunComplete. The event of a folded prompt is journaled, and not published.",
    "journal": "What the server has written to disk. A crash does not lose it.",
    "poisoned": "Canceled by a cancel that came before the prompt was accepted.",
}
ACTING = {
    "202": "The answer to a client whose prompt is accepted.",
    "fail": "An accepted prompt cannot start, for example because its session cannot be loaded.",
    "drop": "A queued prompt is taken out of the queue, and is done: canceled.",
    "handoff": "When a turn ends, the first prompt in the queue becomes active.",
    "requeue": "A turn whose conversation grew too long is summed up, goes back to the queue, and goes on later.",
    "interrupt": "A crash has cut off the active prompt: after the restart it ends with an error.",
    "settle": "The messages of a prompt that was canceled on entry are written, and the prompt is done.",
    "clear_queue": "A call that drops what is queued. The active prompt goes on.",
    "close": "The server shuts down: it accepts nothing more, cancels everything, and waits for the ends.",
}
CHECKING = {
    "row": "One line of the table of what can happen to a prompt: from a state to a state, under conditions.",
    "step": "One action, taken as a whole. Of a turn: the moment at which it takes in queued prompts.",
    "bounds": "How much may happen in a search: so many prompts, cancels, crashes.",
    "reference": "The protocol that this page is about.",
    "subscriber": "A client that watches the events of the server.",
    "quiescence": "The server is at rest: it and its turns have nothing left to do by themselves.",
    "counterexample": "Steps that lead to a broken property. The page shows a shortest one within the bounds.",
}
FAMILY = {
    "family": "The reference with more calls, each of which can be left out.",
    "front": "Before all others that wait.",
    "interrupt (the call)": "A prompt that stops what runs. It is not the interrupt of a crash.",
}
SEVERAL = {
    "node": "One life of a server process, among several on one database.",
    "owner": "The node that runs the turns of a session.",
    "lease": "The time for which a node counts as alive. The node renews it again and again.",
    "epoch": "The time of one owner of a session. Each claim begins the next.",
    "zombie": "A node that others have marked dead, and that still runs.",
    "place": "The number of an event in the log, from which a subscriber goes on.",
}
ORIGINAL = {
    "goroutine": "A thread of the original server, which was written in Go. Each posted prompt runs in one.",
    "registered": "The original's note of whose turn runs in a session, by which a cancel finds the turn.",
    "reservation": "The original's count of prompts that were posted and have not entered yet.",
    "in process": "A prompt from inside the server, such as of a sub-agent. In the original it has no number.",
    "pop, look, clean up …": "Steps of the original between two locks. Other goroutines may come in between.",
}
ALL_WORDS = GLOSSARY | ACTING | CHECKING | FAMILY | SEVERAL | ORIGINAL


@cache
def specification() -> dict[str, Any]:
    """What `make specs` has taken out of specs/ for the page."""
    text = files(__package__).joinpath("assets", "spec.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@cache
def clauses() -> dict[str, str]:
    """What each rule and each clause says."""
    found = {}
    for rule in specification()["rules"]:
        found[rule["id"]] = f"{rule['title']}. {' '.join(rule['clauses'].values())}"
        found |= {id: text for id, text in rule["clauses"].items() if id != rule["id"]}
    return found


def cite(text: str) -> str:
    """Text as HTML in which each rule is a link to its words, with the words as a hint."""
    def link(found: re.Match[str]) -> str:
        says = clauses().get(found[0])
        return found[0] if says is None else (
            f'<a class="rule" href="#rule-{found[0]}" title="{escape(_shortened(says))}">{found[0]}</a>')

    return _CITED.sub(link, escape(text, quote=False))


def explain(text: str) -> str:
    """HTML in which `[[word]]` and `[[shown|word]]` are links to what the word means, with that as a hint."""
    def link(found: re.Match[str]) -> str:
        shown, _, word = found[1].partition("|")
        return (f'<a class="word" href="#{_word_id(word or shown)}" title="{escape(ALL_WORDS[word or shown])}">'
                f"{shown}</a>")

    return re.sub(r"\[\[([^\]]+)\]\]", link, text)


def explain_sentence(sentence: str) -> str:
    """A sentence of the model as HTML, in which the words that the page has not used yet are explained."""
    return explain(re.sub(r"\b(quiescence|subscriber|clear_queue|run id|close)\b", r"[[\1]]", escape(sentence)))


def bounds_text(bounds: Bounds) -> str:
    """`3 prompts, 2 cancels, 1 crash`."""
    def part(name: str, n: int) -> str:
        one = {"crashes": "crash", "closes": "close"}.get(name, name.removesuffix("s"))
        return f"{n} {one if n == 1 else name}"

    return ", ".join(part(name, n) for name, n in vars(bounds).items() if n > (name == "sessions"))


def read_bounds(text: str) -> Bounds:
    """Bounds as the specification writes them: `prompts=3 cancels=2`."""
    return Bounds(**{name: int(n) for name, n in (part.split("=") for part in text.split())})


def _word_id(word: str) -> str:
    return "word-" + re.sub(r"\W+", "-", word).strip("-")


def _shortened(text: str, most: int = 300) -> str:
    return text if len(text) <= most else text[:most].rsplit(" ", 1)[0] + " …"


def _marked(text: str) -> str:
    """`code` in a rule's text."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", cite(text))


def draw_lifecycle(rows: Sequence[Row]) -> str:
    """The life of a prompt, in which each word on an arrow leads to its rule, with the rule as a hint."""
    picture = inline(render_svg(brief_lifecycle_graph(rows)))
    for label, group in groupby(sorted(rows, key=brief_label), key=brief_label):
        ids = sorted({row.rule.split(",")[0] for row in group if row.rule})
        word = label.split(" ")[0].rstrip(":")
        hints = [f"{word}: {ALL_WORDS[word]}"] if word in ALL_WORDS else []
        hint = escape(" ".join([*hints, *(f"{id}: {_shortened(clauses().get(id, ''))}" for id in ids)]))
        words = re.escape(f"> {escape(label)} </text>")
        if ids:
            link = f'<a href="#rule-{ids[0]}" aria-label="{escape(label)}: {ids[0]}"><title>{hint}</title>'
            picture = re.sub(f"(<text[^>]*{words})", rf"{link}\1</a>", picture)
    return picture.replace('role="img"', 'role="group"', 1)


def fill(template: str, parts: dict[str, str]) -> str:
    """The template with its parts, and then with the rules that they cite."""
    body = re.sub(r"\{\{(\w+)\}\}", lambda slot: parts.get(slot[1], slot[0]), template)
    return body.replace("{{rules}}", rules(set(re.findall(r'href="#rule-(R\d+[a-z]?)"', body))))


def rules(cited: set[str]) -> str:
    """The words of the rules that are cited, and of those that they cite."""
    def article(rule: dict[str, Any]) -> str:
        whole = rule["clauses"].get(rule["id"])
        parts = "".join(f'<dt id="rule-{id}">{id}</dt><dd>{_marked(text)}</dd>' for id, text in rule["clauses"].items()
                        if id != rule["id"] and {id, rule["id"]} & cited)
        says = f"<p>{_marked(whole)}</p>" if whole else f"<dl>{parts}</dl>"
        return f'<article id="rule-{rule["id"]}"><h3>{rule["id"]} {escape(rule["title"])}</h3>{says}</article>'

    while more := {id for found in cited for id in _CITED.findall(clauses().get(found, ""))} - cited:
        cited |= more
    found = [rule for rule in specification()["rules"] if cited & {rule["id"], *rule["clauses"]}]
    return (f'<details class="more"><summary>{len(found)} rules</summary><div class="rules-grid">'
            f'{"".join(map(article, found))}</div></details>')


def unpromised() -> str:
    """What the protocol does not guarantee."""
    def listed(items: list[str]) -> str:
        return '<ul class="unchecked">' + "".join(f"<li>{_marked(item)}</li>" for item in items) + "</ul>"

    items = specification()["unpromised"]
    return (listed(items[:FIRST]) + f'<details class="more"><summary>{len(items) - FIRST} more</summary>'
            f"{listed(items[FIRST:])}</details>")


def _list_words(entries: dict[str, str]) -> str:
    items = "".join(f'<div id="{_word_id(word)}"><dt>{escape(word)}</dt><dd>{escape(says)}</dd></div>'
                    for word, says in entries.items())
    return f'<dl class="glossary">{items}</dl>'


def _fold_words(title: str, entries: dict[str, str]) -> str:
    return f'<details class="more"><summary>{title}</summary>{_list_words(entries)}</details>'


def arrow_words() -> str:
    return _fold_words("The words on the arrows", ACTING)


def glossary() -> str:
    """Every word that is not explained under the life of a prompt."""
    parts = {"Words of the check and of this page": CHECKING, "Words of the family": FAMILY,
             "Words of several servers": SEVERAL, "Words of the original": ORIGINAL}
    return _list_words(GLOSSARY) + "".join(_fold_words(title, entries) for title, entries in parts.items())


# --- why it works

ARGUMENT = (
    "Every prompt gets the next seq at the moment of its acceptance.",
    "A cancel raises the mark to the latest seq, and nothing ever lowers the mark.",
    "So a prompt accepted before the cancel has a seq at or below the mark: it is covered, for ever.",
    "A prompt accepted after the cancel has a higher seq: it is not covered, however late it enters.",
    "A prompt that enters asks the mark and becomes active in one step, so no cancel can come in between.",
)
ASKED = {"Why every prompt has a seq", "Why the seq is given at acceptance, and not at entry",
         "Why the mark is asked before the busy question", "Why a stopping turn folds nothing",
         "Why what was active is not run again after a crash"}  # the specification has more
SHOWN = {"flag": "no-lost-cancel", "counter": "no-poisoning", "list": "no-lost-cancel"}  # what tells most
LESSONS = {
    "flag": "A flag says that a cancel came, and not for whom. The first prompt that enters uses it up.",
    "counter": "A counter says how many a cancel was for, and not which. A later prompt can use up a count too.",
    "list": "A list says for whom, and is right. But this list is in memory, and a crash loses it, as a crash would "
            "lose a mark in memory. The mark is on disk before the cancel is answered, and is one number, where a list "
            "grows.",
}


def why(found: Findings) -> str:
    steps = "".join(f"<li>{escape(line)}</li>" for line in ARGUMENT)
    cards = "".join(_instead(found, change) for change in INSTEAD)
    mark = ('<article class="kept"><h3>The mark</h3><p>A mark says up to where: it is compared, and never used up. '
            'Here A was accepted before the cancel and B after it.</p>'
            '<div class="sequence still" data-walk="ref/accept.A/cancel/accept.B/enter.B/enter.A" tabindex="0" '
            'role="group" aria-label="The mark, as a sequence diagram"></div></article>')
    others = "".join(f"<dt>{escape(reason['title'])}?</dt><dd>{_linked(reason['text'])}</dd>"
                     for reason in specification()["why"] if reason["title"] in ASKED)
    return (f'<ol class="argument">{steps}</ol><div class="stories-grid instead">{cards}{mark}</div>'
            f'<details class="more"><summary>More questions: why is it so?</summary><dl class="reasons">{others}</dl>'
            "</details>")


def _linked(text: str) -> str:
    """The text, in which a flaw's name leads to the flaw."""
    return re.sub(r"\(?\b([a-z]+(?:-[a-z]+)+)\b\)?", lambda m: (
        m[0].replace(m[1], f'<a href="#flaw-{m[1]}">{m[1]}</a>') if m[1] in FLAWS_BY_NAME else m[0]), _marked(text))


def _instead(found: Findings, change: Change) -> str:
    property = SHOWN[change.id] if SHOWN[change.id] in found.changed[change.id].broken else ""
    name = f"{change.id}/{property}"
    return (f'<article><h3>{escape(change.title.capitalize())}</h3><p>{escape(LESSONS[change.id])}</p>'
            f'<div class="sequence still" data-draw="{name}" tabindex="0" role="group" '
            f'aria-label="How {escape(change.title)} breaks {property}"></div>'
            f'<button type="button" data-show="{name}">Step through it</button></article>')


def others() -> str:
    """What was found in other ways, as committed with the project."""
    spec = specification()
    widest = max(spec["spin"], key=lambda row: int(row["states"]))
    bounds = bounds_text(read_bounds(widest["bounds"]))
    sentences = spec["proof"]["invariant"]
    listed = "".join(f"<li>{escape(says)}</li>" for says in sentences.values())
    return f"""<div class="others">
<article><h3>A proof, for any number of prompts</h3><p>An invariant of {len(sentences)} sentences holds at the start and
stays true whatever happens next, and the properties follow from it, with any of
<a href="#family">the family’s calls</a> or none. The solver z3 settled this in {spec['proof']['questions']} questions;
<code>cancelmark prove</code> asks them again. Delivery is not part of it.</p>
<details class="more"><summary>The invariant</summary><ul class="unchecked">{listed}</ul></details></article>
<article><h3>A second model, in another language</h3><p>SPIN searched a model that was written apart, in Promela, from
the rules alone. In {len(spec['spin'])} searches it counted the same states and the same edges as this project’s
explorer, and every property held. The largest has {widest['states']:,} states ({bounds}).</p></article>
<article><h3>The server itself</h3><p>In tests Cancelmark’s server takes every step of the model, is killed and started
again, and is judged by the kit. All {len(FLAWS_BY_NAME)} flaws were put into it, one at a time, and random tests find
each: <code>docs/trust.md</code>.</p></article>
</div><p class="note">None of this was run for this page: the figures are committed with the project.</p>"""
