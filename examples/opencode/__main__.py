"""The field test: installs opencode from the npm registry, runs it beside the fake language model, and judges it.

It takes about twenty minutes. Nothing of opencode is left behind but the installation in build/.
"""

import argparse
import signal
import sys
from datetime import date
from pathlib import Path

from rich.console import Console

from cancelmark.conformance.venue import AdapterError
from examples.opencode.process import NotRunning, Process, free_port, install
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
    port = free_port()
    try:
        with console.status("installing opencode") as status:
            program = install(options.install.resolve(), options.version)

            def progress(what: str, done: int, of: int) -> None:
                status.update(f"{what} {done + 1}" + (f" of {of}" if of else ""))

            status.update("starting opencode")
            with Process(program, f"http://127.0.0.1:{port}/v1") as server:
                version = server.version
                judged = trial(server, port, progress)
    except (NotRunning, AdapterError, OSError) as error:
        console.print(f"field: {error}", style="red", markup=False, highlight=False)
        return 2
    except KeyboardInterrupt:
        return 130
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(markdown(judged, version, date.today()))
    print(judged.report.summary)
    print(f"opencode {version} is judged in {options.output}")
    return 0


sys.exit(main())
