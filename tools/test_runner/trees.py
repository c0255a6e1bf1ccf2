# SPDX-License-Identifier: Apache-2.0
"""Checks of the tree's files: shell, documents, generated files, the wheel."""

from __future__ import annotations

import difflib
import pathlib
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator

from tools.test_runner import environment, work

_SAMPLE = "etc/nova-nodb-scheduler/nova-nodb-scheduler.conf.sample"
_GENERATOR = "etc/nova-nodb-scheduler/config-generator.conf"
_COMPLETION = "etc/bash-completion/nova-nodb-manage"


def shell_files(root: pathlib.Path) -> list[str]:
    """Return every bash file of the tree, by its first line or its place in devstack."""
    found = set()
    for place in ("tools", ".ci", "devstack", "tests/unit/devstack"):
        for path in _files(root / place):
            sourced = place == "devstack" or path.suffix in (".sh", ".bash")
            if ("devstack" in place and sourced) or _is_bash(path):
                found.add(str(path.relative_to(root)))
    return sorted(found)


def _files(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in directory.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _is_bash(path: pathlib.Path) -> bool:
    with open(path, "rb") as stream:
        return re.match(rb"#!.*\bbash\b", stream.readline(200)) is not None


def bashate(task: work.Task, log: pathlib.Path) -> bool:
    return task.limited(["bashate", "--ignore", "E005,E006", *shell_files(task.run.root)], log) == 0


# --- documents ----------------------------------------------------------------


def _copy_tree(task: work.Task, log: pathlib.Path) -> bool:
    """Copy this tree, as it stands, with a history.

    pbr, reno and the theme of the documents ask git, and a build leaves
    directories behind.
    """
    copy = task.directory / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    if environment.has_history(task.run):
        if task.limited(["git", "clone", "-q", str(task.run.root), str(copy)], log):
            return False
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=task.run.root,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in filter(None, listed.split("\0")):
            if (task.run.root / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(task.run.root / name, copy / name, follow_symlinks=False)
            else:
                (copy / name).unlink(missing_ok=True)
    else:
        shutil.copytree(task.run.root, copy, symlinks=True)
        if task.limited(["git", "init", "-q", str(copy)], log):
            return False
    git = ["git", "-C", str(copy)]
    named = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    commit = ["commit", "-q", "--allow-empty", "-m", "The tree under test"]
    return (
        task.limited([*git, "add", "--all"], log, append=True) == 0
        and task.limited([*git, *named, *commit], log, append=True) == 0
    )


def _sphinx(
    task: work.Task, log: pathlib.Path, builder: str, source: str, name: str, trees: str
) -> bool:
    out = task.directory
    build = ["sphinx-build", "-q", "-W", "--keep-going", "-b", builder]
    places = ["-d", str(out / f"{trees}.doctrees"), str(out / "tree" / source), str(out / name)]
    return task.limited([*build, *places], log) == 0


def _documents(task: work.Task, log: pathlib.Path) -> bool:
    return _sphinx(task, log, "html", "doc/source", "html", "html")


def _manuals(task: work.Task, log: pathlib.Path) -> bool:
    return _sphinx(task, log, "man", "doc/source", "man", "html")


def _release_notes(task: work.Task, log: pathlib.Path) -> bool:
    source = "releasenotes/source"
    return _sphinx(task, log, "html", source, "releasenotes", "releasenotes")


def _reno(task: work.Task, log: pathlib.Path) -> bool:
    return task.limited(["reno", "lint", str(task.directory / "tree")], log) == 0


def _same(log: pathlib.Path, kept: pathlib.Path, generated: pathlib.Path, otherwise: str) -> bool:
    """Tell whether a file of the tree is what was generated; the log says how it differs."""
    before, after = (path.read_text().splitlines(keepends=True) for path in (kept, generated))
    differences = list(difflib.unified_diff(before, after, str(kept), "generated"))
    if differences:
        log.write_text("".join([*differences, f"{otherwise}\n"]))
    return not differences


def _sample(task: work.Task, log: pathlib.Path) -> bool:
    generated = task.directory / "generated.conf.sample"
    generate = ["oslo-config-generator", "--config-file", _GENERATOR]
    if task.limited([*generate, "--output-file", str(generated)], log):
        return False
    otherwise = "The sample is not what the options say: run 'tox -e genconfig' and commit it."
    return _same(log, task.run.root / _SAMPLE, generated, otherwise)


def _completion(task: work.Task, log: pathlib.Path) -> bool:
    generated = task.directory / "generated.completion"
    if task.limited(["tools/completion.sh"], generated):
        shutil.copy(generated, log)
        return False
    run_it = f"run 'tools/completion.sh >{_COMPLETION}'"
    otherwise = f"The completion is not what the commands say: {run_it}."
    return _same(log, task.run.root / _COMPLETION, generated, otherwise)


# --- packaging ----------------------------------------------------------------


def _wheel(task: work.Task, log: pathlib.Path) -> bool:
    if not _copy_tree(task, log):
        return False
    out = task.directory
    build = ["python", "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(out)]
    return task.limited([*build, str(out / "tree")], log, append=True) == 0


def _wheel_contents(task: work.Task, log: pathlib.Path) -> bool:
    """Tell whether the wheel holds every file of the package, and nothing of the tests."""
    out = task.directory
    tree = {
        str(path.relative_to(out / "tree"))
        for path in _files(out / "tree" / "nova_nodb_scheduler")
        if path.suffix != ".pyc"
    }
    with zipfile.ZipFile(_made_wheel(out)) as wheel:
        packed = {name for name in wheel.namelist() if not name.endswith("/")}
    packed = {name for name in packed if not name.startswith("nova_nodb_scheduler-")}
    told = [*_told("in the tree only", tree - packed), *_told("in the wheel only", packed - tree)]
    log.write_text("".join(f"{line}\n" for line in told))
    return not told


def _told(where: str, names: Iterable[str]) -> list[str]:
    return [f"{where}: {name}" for name in sorted(names)]


def _made_wheel(out: pathlib.Path) -> pathlib.Path:
    [wheel] = out.glob("*.whl")
    return wheel


def _install_wheel(task: work.Task, log: pathlib.Path) -> bool:
    """Install the wheel in an environment where this tree is out of sight."""
    out = task.directory
    venv = out / "venv"
    if task.limited(["python", "-m", "venv", "--system-site-packages", str(venv)], log):
        return False
    # The new environment sees the base interpreter's packages only; those of the
    # environment we run in are what the requirements ask for.
    asked = subprocess.run(
        ["python", "-c", "import site; print('\\n'.join(site.getsitepackages()))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    [packages] = (venv / "lib").glob("python*/site-packages")
    (packages / "requirements.pth").write_text(asked)
    install = [str(venv / "bin" / "pip"), "install", "-q", "--no-deps", str(_made_wheel(out))]
    return task.limited(install, log, append=True, PYTHONPATH="") == 0


def _entry_points(task: work.Task, log: pathlib.Path) -> bool:
    python = task.directory / "venv" / "bin" / "python"
    load = [str(python), str(task.run.root / "tools/load_entry_points.py"), "nova-nodb-scheduler"]
    return task.limited(load, log, PYTHONPATH="", directory=task.directory) == 0


DOCUMENTS = work.Checks(
    (
        work.Check("copy", _copy_tree),
        work.Check("documents", _documents),
        work.Check("manuals", _manuals),
        work.Check("release-notes", _release_notes),
        work.Check("reno", _reno),
        work.Check("config-sample", _sample),
        work.Check("completion", _completion),
    )
)

PACKAGING = work.Checks(
    (
        work.Check("wheel", _wheel),
        work.Check("wheel-contents", _wheel_contents),
        work.Check("install", _install_wheel),
        work.Check("entry-points", _entry_points),
    )
)
