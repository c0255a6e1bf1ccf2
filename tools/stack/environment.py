# SPDX-License-Identifier: Apache-2.0
"""System packages and the virtual environment of the stack; needs the standard library only.

python3 -m tools.stack.environment [--nova N] STATE_DIRECTORY [PROFILE]    prints its path

PROFILE is one of bindep.txt and has a requirements-PROFILE.txt beside this package; "stack" when
it is not given. A stack has an environment for each release of Nova and each Python: by default
the release is that of the stack whose settings lie in the directory, or else the newest.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

_CHECKOUT = pathlib.Path(__file__).resolve().parents[2]
_PORT_BINDER = _CHECKOUT / "tools" / "stack" / "bind_any_port"
_STACK = "stack"
RELEASES = (34, 33, 32, 31)
"""Of Nova, newest first; each has a constraints-novaN.txt beside this package."""

# The distribution's own services would take memory and ports; a policy of 101 forbids starting.
_APT = """
set -e
guard=/usr/sbin/policy-rc.d
if [ ! -e $guard ]; then
    printf '#!/bin/sh\\nexit 101\\n' > $guard; chmod 755 $guard; trap "rm -f $guard" EXIT
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
apt-get update -q
apt-get install -q -y --no-install-recommends "$@"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing and print the environment's path as the last line."""
    parser = argparse.ArgumentParser(prog="tools.stack.environment")
    parser.add_argument("--nova", type=int, choices=RELEASES, help="release of the stack")
    parser.add_argument("state", type=pathlib.Path)
    parser.add_argument("profile", nargs="?", default=_STACK)
    options = parser.parse_args(arguments)
    state = options.state.absolute()
    state.mkdir(parents=True, exist_ok=True)
    if sys.version_info < (3, 11):  # noqa: UP036 - the system's Python may be anything
        print("Python 3.11 or later is needed; set PYTHON", file=sys.stderr)
        return 1
    install_packages(missing_packages(_CHECKOUT / "bindep.txt", options.profile))
    release = None
    venv = state / "venv"
    if options.profile == _STACK:
        release = options.nova or release_of_stack(state)
        venv = state / f"venv-nova{release}-python{sys.version_info[0]}.{sys.version_info[1]}"
    make_venv(venv, options.profile, release)
    print(venv)
    return 0


def release_of_stack(state: pathlib.Path) -> int:
    """The release of Nova that the stack in a directory is of; the newest where there is none."""
    try:
        settings = json.loads((state / "stack.json").read_text())
    except FileNotFoundError:
        return RELEASES[0]
    return int(settings.get("nova", RELEASES[0]))


def missing_packages(bindep: pathlib.Path, profile: str = _STACK) -> list[str]:
    """Debian packages of a profile which are not installed."""
    wanted = []
    for line in bindep.read_text().splitlines():
        match = re.match(r"^([a-z0-9.+-]+)\s+\[([^]]*)\]", line)
        if match and {"platform:dpkg", profile} <= set(match[2].split()):
            wanted.append(match[1])
    return [name for name in wanted if not _is_installed(name)]


def install_packages(names: Sequence[str]) -> None:
    """Install Debian packages, as root or by sudo, without starting their services."""
    if not names:
        return
    _say(f"installing {' '.join(names)}")
    if shutil.which("apt-get") is None:
        raise SystemExit(f"install these first (no apt-get here): {' '.join(names)}")
    root = [] if os.geteuid() == 0 else ["sudo"]
    _run([*root, "sh", "-c", _APT, "sh", *names])


def make_venv(venv: pathlib.Path, profile: str = _STACK, release: int | None = None) -> None:
    """Make or complete the virtual environment; repeated only when what is asked for changes.

    :param release: of Nova, whose constraints hold; None: the requirements say all
    """
    requirements = _CHECKOUT / "tools" / f"requirements-{profile}.txt"
    constraints = requirements
    if release is not None:
        constraints = _CHECKOUT / "tools" / f"constraints-nova{release}.txt"
    inputs = [
        requirements,
        constraints,
        *sorted(_PORT_BINDER.glob("*.*")),
        *(_CHECKOUT / name for name in ("setup.cfg", "requirements.txt", "pyproject.toml")),
    ]
    # The project is installed from where it stands: another checkout's is another environment.
    contents = [str(_CHECKOUT).encode(), *(path.read_bytes() for path in inputs)]
    digest = hashlib.sha256(b"".join(contents)).hexdigest()
    mark = venv / "complete"
    if mark.exists() and mark.read_text() == digest:
        return
    if not (venv / "bin" / "pip").exists():
        _say(f"making {venv}")
        _run([sys.executable, "-m", "venv", str(venv)])
    begun = time.monotonic()
    _say("installing OpenStack's services and the project (the longest step)")
    limits = ("--constraint", str(constraints))
    _pip(venv, "--requirement", str(requirements), *limits)
    if profile == _STACK:
        _install_port_binder(venv)
    _pip(venv, *limits, "--editable", str(_CHECKOUT))
    mark.write_text(digest)
    _say(f"installed within {time.monotonic() - begun:.0f} s")


def _install_port_binder(venv: pathlib.Path) -> None:
    """Install the ML2 mechanism driver, built from a copy so that the checkout stays clean."""
    with tempfile.TemporaryDirectory() as directory:
        copy = pathlib.Path(directory) / _PORT_BINDER.name
        shutil.copytree(_PORT_BINDER, copy)
        _pip(venv, "--no-deps", str(copy))


def _pip(venv: pathlib.Path, *arguments: str) -> None:
    log = venv / "pip.log"
    command = [str(venv / "bin" / "pip"), "install", "--disable-pip-version-check", *arguments]
    with log.open("a") as output:
        result = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False)
    if result.returncode:
        raise SystemExit(f"pip failed; read {log}")


def _is_installed(package: str) -> bool:
    query = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False
    return answer.stdout == "installed"


def _run(command: Sequence[str]) -> None:
    result = subprocess.run(command, stdout=sys.stderr, check=False)
    if result.returncode:
        raise SystemExit(f"failed with status {result.returncode}: {' '.join(command)}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
