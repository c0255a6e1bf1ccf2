# SPDX-License-Identifier: Apache-2.0
"""The Python environment and the system packages of a run, made on a machine that has nothing."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pathlib
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from tools.test_runner import run

#: Debian starts what it installs; this is its own way to say no.
_POLICY = pathlib.Path("/usr/sbin/policy-rc.d")
_POLICY_TEXT = "#!/bin/sh\nexit 101\n"


class Failed(Exception):
    """The environment cannot be made; the text says why."""


def nova_requirements(nova_version: str) -> str:
    """Return the file of what Nova and its own tests need, per release."""
    return f"tests/nova_suite/requirements/nova{nova_version.partition('.')[0]}.txt"


def _requirements(nova_version: str) -> list[str]:
    own = ("requirements.txt", "test-requirements.txt", "lint-requirements.txt")
    return [*own, "doc/requirements.txt", nova_requirements(nova_version)]


def enter(this: run.Run) -> pathlib.Path:
    """Make the environment if it is not there, install packages, and put it first in PATH.

    One environment per set of requirements, shared by all clones: the project
    itself is found through PYTHONPATH, never installed into it.
    """
    named = _requirements(this.nova_version)
    venv = this.state / f"venv-{_key(this, named, this.nova_version)}"
    this.state.mkdir(parents=True, exist_ok=True)
    with _locked(venv.with_name(f"{venv.name}.lock")):
        if not (venv / ".complete").exists():
            this.say(f"making {venv} (some minutes, once)")
            _fill(this, venv, named, f"nova=={this.nova_version}")
        _install_missing_packages(this, venv)
    os.environ["VIRTUAL_ENV"] = str(venv)
    os.environ["PATH"] = f"{venv}/bin{os.pathsep}{os.environ['PATH']}"
    return venv


def beside(this: run.Run, name: str, requirements: str) -> pathlib.Path:
    """Make the environment of a server that cannot share Nova's, if it is not there.

    It is kept as Nova's is, and entered by nobody: tests are told where it is.
    """
    venv = this.state / f"venv-{name}-{_key(this, [requirements])}"
    this.state.mkdir(parents=True, exist_ok=True)
    with _locked(venv.with_name(f"{venv.name}.lock")):
        if not (venv / ".complete").exists():
            this.say(f"making {venv} (a minute, once)")
            _fill(this, venv, [requirements])
    return venv


def _key(this: run.Run, requirements: Sequence[str], *versions: str) -> str:
    """Return what tells environments apart that hold different things."""
    texts = [(this.root / name).read_text() for name in requirements]
    told = "".join(f"{each}\n" for each in (*versions, f"Python {platform.python_version()}"))
    return hashlib.sha256("".join([*texts, told]).encode()).hexdigest()[:12]


def active() -> pathlib.Path:
    """Return the environment of the ``python`` that PATH leads to, for ``--here``."""
    asked = subprocess.run(
        ["python", "-c", "import sys; print(sys.prefix)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise Failed(f"there is no python to use here: {asked.stderr.strip()}")
    return pathlib.Path(asked.stdout.strip())


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with open(path, "a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _fill(this: run.Run, venv: pathlib.Path, requirements: Sequence[str], *packages: str) -> None:
    if importlib.util.find_spec("ensurepip") is None:
        # Debian's python3 leaves it out.
        minor = f"python3.{sys.version_info.minor}-venv"
        _install(this, ["python3-venv" if sys.executable.endswith("python3") else minor])
    shutil.rmtree(venv, ignore_errors=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install"]
    files = [part for name in requirements for part in ("-r", name)]
    log = this.results / f"{venv.name}.log"
    with open(log, "wb") as output:
        for command in (
            [sys.executable, "-m", "venv", str(venv)],
            [*pip, "--upgrade", "pip", "bindep"],
            [*pip, *files, *packages],
        ):
            done = subprocess.run(
                command, cwd=this.root, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode:
                output.flush()
                raise Failed("\n".join([f"failed: {command}", *run.last_lines(log, 40)]))
    (venv / ".complete").touch()


def _install_missing_packages(this: run.Run, venv: pathlib.Path) -> None:
    if shutil.which("apt-get") is None or not (venv / "bin" / "bindep").exists():
        return
    asked = subprocess.run(
        [str(venv / "bin" / "bindep"), "--brief", "test"],
        cwd=this.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if asked.returncode and asked.stdout.split():
        _install(this, asked.stdout.split())


def _install(this: run.Run, packages: Sequence[str]) -> None:
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    names = " ".join(packages)
    if root and subprocess.run([*root, "true"], capture_output=True, check=False).returncode:
        this.say(
            f"missing system packages: {names} (not root, no sudo: tests that need them will "
            "say so)"
        )
        return
    this.say(f"installing system packages: {names}")
    refuses = not _POLICY.exists()
    if refuses:
        tee = [*root, "tee", str(_POLICY)]
        subprocess.run(tee, input=_POLICY_TEXT, text=True, stdout=subprocess.DEVNULL, check=True)
        subprocess.run([*root, "chmod", "755", str(_POLICY)], check=True)
    try:
        subprocess.run([*root, "apt-get", "update", "-q"], stdout=subprocess.DEVNULL, check=False)
        quiet = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q"]
        done = subprocess.run([*quiet, "--no-install-recommends", *packages], check=False)
    finally:
        if refuses:
            subprocess.run([*root, "rm", "-f", str(_POLICY)], check=True)
    if done.returncode:
        raise Failed(f"apt-get could not install {names}")


def has_history(this: run.Run) -> bool:
    """Tell whether the tree has git's history, from which pbr takes the version."""
    if shutil.which("git") is None:
        return False
    asked = subprocess.run(
        ["git", "-C", str(this.root), "rev-parse", "--git-dir"], capture_output=True, check=False
    )
    return asked.returncode == 0


def make_metadata(this: run.Run) -> None:
    """Write the metadata that entry points come from, beside the results.

    So neither the tree nor the environment holds any that could go stale.
    """
    if not has_history(this):
        os.environ.setdefault("PBR_VERSION", "0.1.0")
    made = this.results / "metadata"
    made.mkdir(exist_ok=True)
    done = subprocess.run(
        ["python", "setup.py", "-q", "egg_info", "--egg-base", str(made)],
        cwd=this.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (this.results / "metadata.log").write_text(done.stdout)
    if done.returncode:
        raise Failed(done.stdout)
    # Hundreds of processes import the tree: each would compile it.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    known = os.environ.get("PYTHONPATH")
    paths = [str(this.root), str(made), *([known] if known else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
