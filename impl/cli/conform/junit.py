"""A report as JUnit XML for CI systems, with a test case for each guarantee."""

from xml.etree import ElementTree

from cancelmark.conformance.report import Report, Status


def junit(report: Report) -> str:
    """The report as JUnit XML. A broken guarantee is a failure with its history; one that is neither broken nor kept
    is skipped with the reason."""
    skipped = [v for v in report.verdicts if v.status not in (Status.KEPT, Status.BROKEN)]
    counts = {"tests": str(len(report.verdicts)), "failures": str(len(report.broken)), "errors": "0",
              "skipped": str(len(skipped)), "time": f"{report.seconds:.3f}"}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "cancelmark conform", **counts})
    for verdict in report.verdicts:
        case = ElementTree.SubElement(suite, "testcase", {"classname": "guarantees", "name": verdict.guarantee,
                                                          "time": f"{verdict.seconds:.3f}"})
        if verdict.finding:
            failure = ElementTree.SubElement(case, "failure", {"message": verdict.finding.says(verdict.guarantee)})
            failure.text = verdict.story
        elif verdict in skipped:
            ElementTree.SubElement(case, "skipped", {"message": verdict.why or verdict.status.value})
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"
