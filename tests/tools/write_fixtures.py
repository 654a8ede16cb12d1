"""Writes the fixtures of a commit anew, with the code of that commit: its worktree, and a venv of its own.

    python tests/tools/write_fixtures.py e117825

`tests/fixtures/COMMIT/make.py` says what is written. For another commit copy that file, and mend its imports.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]


def main(commit: str) -> None:
    make = ROOT / "tests" / "fixtures" / commit / "make.py"
    with TemporaryDirectory() as directory:
        tree = Path(directory) / commit
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=ROOT, check=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", tree / ".venv"], check=True)
            python = tree / ".venv" / "bin" / "python"
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint",
                            tree / "constraints.txt", "--editable", tree], check=True)
            subprocess.run([python, make], check=True)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
