"""The explanatory parts of the page: the rules, the glossary, and why the mark works."""

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

FIRST = 4  # items of "Not guaranteed" that are always visible
_CITED = re.compile(r"\bR\d+[a-z]?\b")

GLOSSARY = {
    "prompt": "A text request that a client submits to a session.",
    "session": "One conversation. Several clients may use the same session.",
    "turn": "The work on the active prompt: calls of the language model and of tools, until the final answer.",
    "accept": "The server assigns a seq to a prompt and acknowledges it. The prompt has not entered yet.",
    "enter": "An accepted prompt enters its session: it becomes active, queued, or canceled on entry.",
    "seq": "The number of a prompt in the order of acceptance: A is 1, B is 2, and so on.",
    "mark": "A number that a session stores: the highest seq that a cancel covers. The mark only rises.",
    "covered": "A cancel applies to the prompt: its seq is at or below the mark, or it is revoked.",
    "busy": "The session has an active prompt, or is down after a crash until it is recovered.",
    "run id": "A name that a client gives its prompt so that it can wait for this prompt's terminal event.",
    "fold": "A queued prompt without a run id joins the running turn, and finishes with it.",
    "terminal event": "The event that reports a prompt's outcome: end_turn, error, canceled or folded. In diagrams: "
                      "RunComplete.",
    "journal": "The server's durable log. It survives a crash.",
    "poisoned": "Canceled by a cancel that was sent before the prompt was accepted.",
}
ACTING = {
    "202": "The response to a client whose prompt is accepted.",
    "fail": "An accepted prompt cannot start, for example because its session cannot be loaded.",
    "drop": "A queued prompt is removed from the queue and ends as canceled.",
    "handoff": "When a turn ends, the first prompt in the queue becomes active.",
    "requeue": "The conversation has grown too long: it is compacted, and the turn is requeued to continue later.",
    "interrupt": "A crash interrupted the active prompt: after the restart it ends with an error.",
    "settle": "The server writes the messages of a prompt that was canceled on entry, and the prompt is done.",
    "clear_queue": "A call that drops all queued prompts. The active prompt continues.",
    "close": "The server shuts down: it stops accepting, cancels everything, and waits for all prompts to finish.",
}
CHECKING = {
    "row": "One guarded transition in the state machine of a prompt.",
    "step": "One atomic action. For a turn: the point at which it folds queued prompts.",
    "bounds": "Limits on a search: the maximum number of prompts, cancels, crashes.",
    "reference": "The protocol that this page reviews.",
    "subscriber": "A client that receives the server's events.",
    "quiescence": "Neither the server nor a turn has anything left to do without a new call.",
    "counterexample": "Steps that lead to a violation. The page shows a shortest one within the bounds.",
}
FAMILY = {
    "family": "The reference protocol plus optional calls.",
    "front": "The head of the queue. For a stop, the active prompt comes first.",
    "interrupt (the call)": "A prompt that stops the running turn. Not the interrupt that a crash causes.",
}
SEVERAL = {
    "node": "One run of a server process in a cluster that shares a database.",
    "owner": "The node that runs the turns of a session.",
    "lease": "The period, renewed by a node, during which the node is considered alive.",
    "epoch": "The period of one node's ownership of a session, which begins with its claim.",
    "zombie": "A node that others have declared dead and that is still running.",
    "offset": "The position of an event in the log, from which a subscriber resumes.",
}
ORIGINAL = {
    "goroutine": "A thread of the original server, which is written in Go. Each posted prompt runs in one.",
    "registered": "Recorded by the original as a session's running turn, so that a cancel finds it.",
    "reservation": "The original's count of prompts that were posted and have not entered yet.",
    "in process": "Of a prompt: created by the server itself, e.g. by a sub-agent. In the original it has no number.",
    "pop, look, clean up …": "Steps of the original outside its critical sections, where other goroutines may "
                             "interleave.",
}
ALL_WORDS = GLOSSARY | ACTING | CHECKING | FAMILY | SEVERAL | ORIGINAL


@cache
def specification() -> dict[str, Any]:
    """The extract of specs/ that `make specs` generates for the page."""
    text = files(__package__).joinpath("assets", "spec.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


@cache
def clauses() -> dict[str, str]:
    """The text of each rule and each clause, by id."""
    found = {}
    for rule in specification()["rules"]:
        found[rule["id"]] = " ".join([f"{rule['title']}.", rule["text"], *(
            text for id, text in rule["clauses"].items() if id != rule["id"])])
        found |= {id: text for id, text in rule["clauses"].items() if id != rule["id"]}
    return found


def cite(text: str) -> str:
    """The text as HTML in which each rule id links to the rule, with its text as a tooltip."""
    def link(found: re.Match[str]) -> str:
        says = clauses().get(found[0])
        return found[0] if says is None else (
            f'<a class="rule" href="#rule-{found[0]}" title="{escape(_shortened(says))}">{found[0]}</a>')

    return _CITED.sub(link, escape(text, quote=False))


def explain(text: str) -> str:
    """HTML in which `[[word]]` and `[[shown|word]]` link to the glossary, with the definition as a tooltip."""
    def link(found: re.Match[str]) -> str:
        shown, _, word = found[1].partition("|")
        return (f'<a class="word" href="#{_word_id(word or shown)}" title="{escape(ALL_WORDS[word or shown])}">'
                f"{shown}</a>")

    return re.sub(r"\[\[([^\]]+)\]\]", link, text)


def explain_sentence(sentence: str) -> str:
    """A sentence of the model as HTML, with glossary links for terms that the page has not used yet."""
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
    """A rule's text as HTML, with `code` and links."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", cite(text))


def draw_lifecycle(rows: Sequence[Row]) -> str:
    """The lifecycle diagram, in which each arrow label links to its rule, with the rule as a tooltip."""
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
    """The template with its parts and with the rules that they cite."""
    body = re.sub(r"\{\{(\w+)\}\}", lambda slot: parts.get(slot[1], slot[0]), template)
    return body.replace("{{rules}}", rules(set(re.findall(r'href="#rule-(R\d+[a-z]?)"', body))))


def rules(cited: set[str]) -> str:
    """The rules that are cited, and the rules that those cite."""
    def article(rule: dict[str, Any]) -> str:
        parts = "".join(f'<dt id="rule-{id}">{id}</dt><dd>{_marked(text)}</dd>' for id, text in rule["clauses"].items()
                        if id != rule["id"] and {id, rule["id"]} & cited)
        says = f"<p>{_marked(rule['text'])}</p>" if rule["text"] else ""
        says += f"<dl>{parts}</dl>" if parts else ""
        return f'<article id="rule-{rule["id"]}"><h3>{rule["id"]} {escape(rule["title"])}</h3>{says}</article>'

    while more := {id for found in cited for id in _CITED.findall(clauses().get(found, ""))} - cited:
        cited |= more
    found = [rule for rule in specification()["rules"] if cited & {rule["id"], *rule["clauses"]}]
    return (f'<details class="more"><summary>{len(found)} rules</summary><div class="rules-grid">'
            f'{"".join(map(article, found))}</div></details>')


def unpromised() -> str:
    """The list of what the protocol does not guarantee."""
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
    return _fold_words("Arrow labels", ACTING)


def glossary() -> str:
    """Every term that the lifecycle section does not define."""
    parts = {"Terms: checking and this page": CHECKING, "Terms: optional calls": FAMILY,
             "Terms: clustering": SEVERAL, "Terms: the original server": ORIGINAL}
    return _list_words(GLOSSARY) + "".join(_fold_words(title, entries) for title, entries in parts.items())


# --- why it works

ARGUMENT = (
    "Every prompt gets the next seq when it is accepted.",
    "A cancel raises the mark to the latest seq, and nothing ever lowers the mark.",
    "So a prompt accepted before the cancel has a seq at or below the mark: it is covered, for ever.",
    "A prompt accepted after the cancel has a higher seq: it is not covered, however late it enters.",
    "Checking the mark and becoming active is one atomic step, so no cancel can intervene.",
)
ASKED = {"Why every prompt has a seq", "Why the seq is given at acceptance, and not at entry",
         "Why entry checks the mark before it checks whether the session is busy", "Why a stopping turn folds nothing",
         "Why an active prompt is not run again after a crash"}  # the specification has more
SHOWN = {"flag": "no-lost-cancel", "counter": "no-poisoning", "list": "no-lost-cancel"}  # the clearest counterexample
LESSONS = {
    "flag": "A flag records that a cancel arrived, but not which prompts it targets. The first prompt to enter "
            "consumes the flag.",
    "counter": "A counter records how many prompts to cancel, but not which ones. A later prompt can consume a count.",
    "list": "A list of ids is correct. But this list is in memory, and a crash loses it, as it would lose a mark in "
            "memory. The mark is persisted before the cancel is acknowledged, and is a single number; a list would "
            "grow.",
}


def why(found: Findings) -> str:
    steps = "".join(f"<li>{escape(line)}</li>" for line in ARGUMENT)
    cards = "".join(_instead(found, change) for change in INSTEAD)
    mark = ('<article class="kept"><h3>The mark</h3><p>A mark is a threshold: prompts are compared with it, and it is '
            'never consumed. Here A was accepted before the cancel and B after it.</p>'
            '<div class="sequence still" data-walk="ref/accept.A/cancel/accept.B/enter.B/enter.A" tabindex="0" '
            'role="group" aria-label="The mark, as a sequence diagram"></div></article>')
    others = "".join(f"<dt>{escape(reason['title'])}</dt><dd>{_linked(reason['text'])}</dd>"
                     for reason in specification()["why"] if reason["title"] in ASKED)
    return (f'<ol class="argument">{steps}</ol><div class="stories-grid instead">{cards}{mark}</div>'
            f'<details class="more"><summary>Design rationale</summary><dl class="reasons">{others}</dl>'
            "</details>")


def _linked(text: str) -> str:
    """The text as HTML in which a flaw's name links to the flaw."""
    return re.sub(r"\(?\b([a-z]+(?:-[a-z]+)+)\b\)?", lambda m: (
        m[0].replace(m[1], f'<a href="#flaw-{m[1]}">{m[1]}</a>') if m[1] in FLAWS_BY_NAME else m[0]), _marked(text))


def _instead(found: Findings, change: Change) -> str:
    property = SHOWN[change.id] if SHOWN[change.id] in found.changed[change.id].broken else ""
    name = f"{change.id}/{property}"
    return (f'<article><h3>{escape(change.title.capitalize())}</h3><p>{escape(LESSONS[change.id])}</p>'
            f'<div class="sequence still" data-draw="{name}" tabindex="0" role="group" '
            f'aria-label="How {escape(change.title)} violates {property}"></div>'
            f'<button type="button" data-show="{name}">Step through it</button></article>')


def others() -> str:
    """The results of the proof, SPIN and the tests, as stored in the repository."""
    spec = specification()
    widest = max(spec["spin"], key=lambda row: int(row["states"]))
    bounds = bounds_text(read_bounds(widest["bounds"]))
    sentences = spec["proof"]["invariant"]
    listed = "".join(f"<li>{escape(says)}</li>" for says in sentences.values())
    return f"""<div class="others">
<article><h3>A proof for any number of prompts</h3><p>An inductive invariant of {len(sentences)} conjuncts implies the
properties, for any combination of <a href="#family">optional calls</a>. The SMT solver Z3 answered
{spec['proof']['questions']} queries; rerun them with <code>cancelmark prove</code>.</p>
<details class="more"><summary>The invariant</summary><ul class="unchecked">{listed}</ul></details></article>
<article><h3>A second model, in another language</h3><p>SPIN checked an independent Promela model written from the rules
only. {len(spec['spin'])} searches counted the same states and edges as this project’s explorer, and every
property held. The largest has {widest['states']:,} states ({bounds}).</p></article>
<article><h3>The server itself</h3><p>Tests drive Cancelmark’s server through every transition, kill and
restart it, and run the kit on it. All {len(FLAWS_BY_NAME)} flaws were injected into it, one at a time, and
random tests found each: <code>docs/trust.md</code>.</p></article>
</div><p class="note">These results are stored in the repository, not recomputed.</p>"""
