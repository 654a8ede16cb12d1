"""The kit's report on a server: verdicts, sequence diagrams of findings, and an HTML page."""

from .verdicts import LEGEND, Decision, Finding, Replay, Report, Status, Verdict, counted

__all__ = ["LEGEND", "Decision", "Finding", "Replay", "Report", "Status", "Verdict", "counted"]
