"""The theme: one stylesheet that is embedded in every SVG.

Shapes, lines and text carry the meaning; colour only supports it. The base rules are for a light page. They use no
variables and no nesting, because PNG converters understand only plain rules. Two media queries change the colours for a
dark page and for print. Every selector is scoped by the root's class, because the style of an SVG embedded in HTML
applies to the whole page.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cancelmark.model.lifecycle import State

ROOT_CLASS = "cancelmark"
FONT_STACK = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"


class Look(NamedTuple):
    """The style of a kind of prompt or session: fill and border on light and dark pages, and its terminal style."""

    light: tuple[str, str]
    dark: tuple[str, str]
    terminal: str = ""


STOPPING = "stopping"  # an active prompt that was asked to stop

PROMPT_LOOKS: Mapping[str, Look] = {
    State.ACCEPTED.value: Look(("#ddf4ff", "#0969da"), ("#10253d", "#4493f8"), "bright_blue"),
    State.CANCELED_ON_ENTRY.value: Look(("#fff1e5", "#bc4c00"), ("#3a2010", "#f0883e"), "dark_orange"),
    State.QUEUED.value: Look(("#fff8c5", "#9a6700"), ("#332a05", "#d29922"), "yellow"),
    State.ACTIVE.value: Look(("#dafbe1", "#1a7f37"), ("#0f2f1a", "#3fb950"), "bold green"),
    STOPPING: Look(("#ffe2cc", "#bc4c00"), ("#4a2a12", "#f0883e"), "bold dark_orange"),
    State.DONE.value: Look(("#eaeef2", "#57606a"), ("#21262d", "#9198a1"), "dim"),
}
LOOKS: Mapping[str, Look] = {
    **PROMPT_LOOKS,
    "down": Look(("#ffebe9", "#cf222e"), ("#3c1618", "#ff7b72")),
    "idle": Look(("#f6f8fa", "#57606a"), ("#161b22", "#9198a1")),
}


class Palette(NamedTuple):
    """The colours of one medium."""

    text: str
    faint: str  # secondary text and guide lines
    lines: Mapping[str, str]  # by path
    fills: Mapping[str, tuple[str, str]]  # by state: the fill and the border


LIGHT = Palette(
    text="#1f2328", faint="#656d76",
    lines={"happy": "#1a7f37", "ordinary": "#57606a", "cancel": "#bc4c00", "fault": "#cf222e"},
    fills={kind: look.light for kind, look in LOOKS.items()},
)
DARK = Palette(
    text="#e6edf3", faint="#8d96a0",
    lines={"happy": "#3fb950", "ordinary": "#9198a1", "cancel": "#f0883e", "fault": "#ff7b72"},
    fills={kind: look.dark for kind, look in LOOKS.items()},
)
PAPER = Palette(
    text="#000", faint="#000",
    lines=dict.fromkeys(LIGHT.lines, "#000"), fills=dict.fromkeys(LIGHT.fills, ("#fff", "#000")),
)

SHAPES = ("path", "polygon", "ellipse", "rect")


def _rules(palette: Palette) -> list[str]:
    root = f".{ROOT_CLASS}"
    rules = [
        f"{root} text {{ fill: {palette.text}; }}",
        f"{root} .faint, {root} .legend text {{ fill: {palette.faint}; }}",
        f"{root} .guide, {root} .lifeline {{ stroke: {palette.faint}; }}",
        f"{root} .start ellipse {{ fill: {palette.text}; stroke: {palette.text}; }}",
    ]
    for path, colour in palette.lines.items():
        rules += [
            f"{root} .{path} path, {root} line.{path} {{ stroke: {colour}; }}",
            f"{root} .{path} polygon {{ fill: {colour}; stroke: {colour}; }}",
        ]
    for state, (fill, border) in palette.fills.items():
        selector = ", ".join(f"{root} .{state} {shape}" for shape in SHAPES)
        rules.append(f"{selector} {{ fill: {fill}; stroke: {border}; }}")
    return rules


def _media(query: str, palette: Palette) -> list[str]:
    return [f"@media {query} {{", *_rules(palette), "}"]


def stylesheet() -> str:
    """The content of the `<style>` element."""
    return "\n".join([
        f".{ROOT_CLASS} text {{ font-family: {FONT_STACK}; }}",
        f".{ROOT_CLASS} .small {{ font-size: 75%; }}",
        f".{ROOT_CLASS} .happy path {{ stroke-width: 2.6; }}",
        f".{ROOT_CLASS} .fault path, .{ROOT_CLASS} line.fault {{ stroke-width: 1.6; stroke-dasharray: 2 4; }}",
        f".{ROOT_CLASS} .strong {{ font-weight: bold; }}",
        f".{ROOT_CLASS} .guide {{ stroke-opacity: 0.3; }}",
        f".{ROOT_CLASS} line.cancel {{ stroke-width: 2; stroke-dasharray: 6 3; }}",
        f".{ROOT_CLASS} .active rect {{ stroke-width: 2; }}",
        f".{ROOT_CLASS} .stopping rect {{ stroke-width: 2; stroke-dasharray: 8 3; }}",
        f".{ROOT_CLASS} .queued rect {{ stroke-dasharray: 4 3; }}",
        f".{ROOT_CLASS} .canceled_on_entry rect {{ stroke-dasharray: 2 2; }}",
        *_rules(LIGHT),
        *_media("(prefers-color-scheme: dark)", DARK),
        *_media("print", PAPER),
    ])


def variables(root: str = ":root", papers: Sequence[str] = ()) -> str:
    """The theme's colours as CSS variables of the root, for the rest of a page: `--text`, `--happy`, `--queued`,
    `--queued-border`; and `--paper`, if background colours are given for light, dark and print."""
    def rule(number: int, palette: Palette) -> str:
        named = {"paper": papers[number]} if papers else {}
        named |= {"text": palette.text, "faint": palette.faint, **palette.lines}
        for kind, (fill, border) in palette.fills.items():
            named |= {kind: fill, f"{kind}-border": border}
        return f"{root} {{ {' '.join(f'--{name}: {colour};' for name, colour in named.items())} }}"

    light, dark, paper = (rule(number, palette) for number, palette in enumerate((LIGHT, DARK, PAPER)))
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n@media print {{ {paper} }}"


def prompt_rules(selectors: str, declarations: str) -> str:
    """One CSS rule per kind of prompt, with `KIND` replaced by the kind."""
    return "\n".join(f"{selectors} {{ {declarations} }}".replace("KIND", kind) for kind in PROMPT_LOOKS)


FILLED = "background: var(--KIND); border-color: var(--KIND-border);"
