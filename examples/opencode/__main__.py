"""The field test: installs opencode from the npm registry, runs it beside the fake language model, and judges it.

It takes about twenty minutes. Nothing of opencode is left behind but the installation in build/.
"""

import argparse
import signal
import sys
from datetime import date
from pathlib import Path

from rich.console import Console

from cancelmark.conformance.adapter.process import NotRunning
from cancelmark.conformance.playing.venue import AdapterError
from examples.opencode.circumstances import InUse
from examples.opencode.report import markdown
from examples.opencode.trial import trial


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.opencode", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default="latest", help="of opencode-ai (default: %(default)s)")
    parser.add_argument("--install", type=Path, default=Path("build/field"), help="where to (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, default=Path("specs/field/opencode.md"),
                        help="the report (default: %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    console = Console(stderr=True)
    InUse.place, InUse.version = options.install, options.version
    try:
        with console.status("installing and starting opencode") as status:
            def progress(what: str, done: int, of: int) -> None:
                status.update(f"{what} {done + 1}" + (f" of {of}" if of else ""))

            judged = trial(progress)
    except (NotRunning, AdapterError, OSError) as error:
        console.print(f"field: {error}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(markdown(judged, InUse.version, date.today()))
    print(judged.report.summary)
    print(f"opencode {InUse.version} is judged in {options.output}")
    return 0


sys.exit(main())
