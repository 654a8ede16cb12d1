"""What the kit has to say about a server: verdicts, pictures of what was seen, and a page."""

from .verdicts import LEGEND, Decision, Finding, Replay, Report, Status, Verdict, counted

__all__ = ["LEGEND", "Decision", "Finding", "Replay", "Report", "Status", "Verdict", "counted"]
