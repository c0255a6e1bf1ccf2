# SPDX-License-Identifier: Apache-2.0
"""What the tree needs of a machine, set against what bindep.txt and the requirements bring.

A program or a library that happens to be on the machine hides that nothing
brings it, until somebody follows the README on a fresh one. So the sources are
read for the programs they start and the modules they import, and whoever owns
these must be among what is asked for: of Debian's packages with what they
depend on (not what they recommend), or of the base system; of Python's
distributions by name, for what another one brings today it may drop.

``python -m tools.needs`` prints what nothing brings; status 1 if there is any.
Programs that are not on this machine are not judged: who needs them fails.
"""

from __future__ import annotations

import ast
import functools
import glob
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[1]

#: Where programs are beside PATH, as the tests look for them.
_PLACES = ("/usr/sbin", "/sbin", "/usr/lib/postgresql/*/bin", "/usr/lib/galera")
#: Python's, and those of the tree itself.
_STARTERS = {"run", "Popen", "call", "check_call", "check_output"} | {
    *("_run", "start", "_start", "Service"),
}
_FINDERS = {"find_program", "which"}
_NAMES = {"program", "programs", "_program", "_programs"}
_COMMANDS = {"command", "arguments", "argv"}
_PROGRAM = re.compile(r"^[a-z][a-z0-9_.+-]+$")

_SHELL_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    alias bg bind break builtin case cd command compgen complete continue coproc declare dirs do
    done echo elif else enable esac eval exec exit export false fg fi for function getopts hash
    help if in jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly
    return select set shift shopt source suspend test then time times trap true type typeset
    ulimit umask unalias unset until wait while
    """,
    )
)
#: Words that begin a command and are followed by one.
_PREFIXES = frozenset({"command", "do", "elif", "else", "exec", "if", "then", "time", "until"})
_PREFIX_PROGRAMS = frozenset({"env", "nice", "nohup", "setsid", "sudo", "timeout", "xargs"})


def profile_of(path: pathlib.PurePath) -> str:
    """Return the profile of bindep.txt by which a file of the tree is run."""
    parts = path.parts
    if parts[0] == "tools":
        stem = parts[1].partition(".")[0]
        return {"bench": "bench", "demo": "stack", "stack": "stack", "tempest": "stack"}.get(
            stem, "test"
        )
    return "test"


# --- programs --------------------------------------------------------------


@functools.cache
def programs_and_imports(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the programs a module starts or looks for, and the top-level modules it imports."""
    nodes = list(ast.walk(ast.parse(source)))
    return _programs(nodes), _imports(nodes)


def _programs(nodes: Iterable[ast.AST]) -> frozenset[str]:
    assigned = list(_assigned(nodes))
    constants = dict(assigned)
    found: set[str] = set()
    for name, value in assigned:
        if name.lower() in _NAMES:
            found |= _texts(value, constants)
        elif name.lower() in _COMMANDS:
            found |= _first(value, constants)
    for node in nodes:
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in _FINDERS:
            found |= _texts(node.args[0], constants)
        elif called in _STARTERS:
            # Ours may take a name before the command.
            for argument in node.args[:2]:
                found |= _first(argument, constants)
    names = {os.path.basename(each) for each in found}
    return frozenset(each for each in names if _PROGRAM.match(each))


def _imports(nodes: Iterable[ast.AST]) -> frozenset[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return frozenset(found)


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is assigned to plain names, wherever."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from (
                (target.id, node.value) for target in node.targets if isinstance(target, ast.Name)
            )
        elif (
            isinstance(node, ast.AnnAssign)
            and node.value is not None
            and isinstance(node.target, ast.Name)
        ):
            yield node.target.id, node.value


def _texts(node: ast.expr, constants: Mapping[str, ast.expr]) -> set[str]:
    if isinstance(node, ast.Name):
        return _texts(constants[node.id], {}) if node.id in constants else set()
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, ast.Tuple | ast.List):
        return set().union(*(_texts(each, constants) for each in node.elts))
    return set()


def _first(node: ast.expr, constants: Mapping[str, ast.expr]) -> set[str]:
    """Return the first word of a command."""
    if isinstance(node, ast.Name) and node.id in constants:
        return _first(constants[node.id], {})
    if isinstance(node, ast.Starred):
        return _first(node.value, constants)
    if isinstance(node, ast.BinOp):
        return _first(node.left, constants)
    if isinstance(node, ast.Tuple | ast.List) and node.elts:
        if isinstance(node.elts[0], ast.Starred):
            return _first(node.elts[0].value, constants)
        return _texts(node.elts[0], constants)
    return set()


def programs_of_shell(source: str) -> set[str]:
    """Return the names of the programs that a script starts, its own functions left out."""
    source = re.sub(
        r"<<-?\s*(['\"]?)(\w+)\1(.*)\n(?s:.*?)\n\s*\2\n", lambda match: match[3] + "\n", source
    )
    source = re.sub(r"(?m)(^|\s)#.*$", r"\1", source).replace("\\\n", " ")
    functions = set(re.findall(r"(?m)^\s*(?:function\s+)?([\w-]+)\s*(?:\(\)\s*)?\{", source))
    # What stands in quotes is no command, but what a $(...) in it says is.
    substituted = re.findall(r"\$\(([^()]+)\)", source)
    bare = re.sub(r"'[^']*'", "''", source)
    bare = re.sub(r'"[^"]*"', '""', bare)
    found: set[str] = set()
    for text in (bare, *(re.sub(r"'[^']*'", "''", each) for each in substituted)):
        for statement in re.split(r"\n|;|\|\|?|&&|&|\$\(|`|\(|\)|\{|\}", text):
            found |= set(_commands(statement.split()))
    return {each for each in found if _PROGRAM.match(each)} - functions - _SHELL_WORDS


def _commands(words: list[str]) -> Iterator[str]:
    expected = True
    for word in words:
        if not expected:
            return
        if word in ("!", "[[", "[") or re.match(r"^\w+\+?=", word):
            if word.startswith("["):
                return
            continue
        yield word
        expected = word in _PREFIXES or word in _PREFIX_PROGRAMS


def programs(root: pathlib.Path = ROOT) -> dict[str, set[str]]:
    """Return by profile the programs that tests and tools start."""
    found: dict[str, set[str]] = {"test": set(), "stack": set(), "bench": set()}
    for path in _sources(root, ("tests", "tools", "nova_nodb_scheduler/testing")):
        text = path.read_text()
        if path.suffix == ".py":
            names: Iterable[str] = programs_and_imports(text)[0]
        elif text.startswith(("#!/bin/bash", "#!/usr/bin/env bash", "#!/bin/sh")):
            names = programs_of_shell(text)
        else:
            continue
        found[profile_of(path.relative_to(root))].update(names)
    return found


def _sources(root: pathlib.Path, directories: Iterable[str]) -> Iterator[pathlib.Path]:
    for directory in directories:
        for path in sorted((root / directory).rglob("*")):
            if path.is_file() and path.suffix in (".py", ".sh"):
                yield path


# --- Debian's packages -----------------------------------------------------


def asked_for(bindep: str, profile: str) -> set[str]:
    """Return the Debian packages of a profile of bindep.txt."""
    found = set()
    for line in bindep.splitlines():
        match = re.match(r"^([a-z0-9][a-z0-9.+-]*)\s+\[([^\]]*)\]", line)
        if match and "platform:dpkg" in match[2] and profile in match[2].split():
            found.add(match[1])
    return found


@functools.cache
def _installed() -> tuple[Mapping[str, set[str]], frozenset[str]]:
    """Return what each installed package depends on, and the base system."""
    form = "${Package}\\t${Essential}\\t${Priority}\\t${Provides}\\t${Depends}, ${Pre-Depends}\\n"
    lines = subprocess.run(
        ["dpkg-query", "-W", f"-f={form}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    depends: dict[str, set[str]] = {}
    providers: dict[str, set[str]] = {}
    base = set()
    for line in lines:
        name, essential, priority, provided, needed = line.split("\t")
        depends[name] = set(re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]*)", needed))
        for virtual in re.findall(r"(?:^|,)\s*([a-z0-9][a-z0-9.+-]*)", provided):
            providers.setdefault(virtual, set()).add(name)
        if essential == "yes" or priority == "required":
            base.add(name)
    resolved = {
        name: {
            real
            for each in needed
            for real in ({each} & depends.keys()) or providers.get(each, set())
        }
        for name, needed in depends.items()
    }
    return resolved, frozenset(base)


def closure(packages: Iterable[str]) -> set[str]:
    """Return packages, those they depend on, and the base system with what it depends on."""
    depends, base = _installed()
    reached: set[str] = set()
    waiting = [*packages, *base]
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += depends.get(name, ())
    return reached


def owners(programs: Iterable[str]) -> dict[str, str | None]:
    """Return the Debian package of each program; None where it is not here, "" if of none."""
    asked = set(programs)
    unknown = sorted(asked - _owners.keys())
    variants = {program: _variants(program) for program in unknown}
    paths = [path for found in variants.values() for path in found]
    told = ""
    if paths:
        # Each call reads the lists of all packages. Its status tells of any that has no owner.
        ask = ["dpkg-query", "-S", *paths]
        told = subprocess.run(ask, capture_output=True, text=True, check=False).stdout
    packages = {}
    for line in told.splitlines():
        owning, _, name = line.partition(": ")
        if not owning.startswith("diversion "):
            packages[name] = owning.partition(":")[0].split(",")[0]
    for program, found in variants.items():
        package = next((packages[each] for each in found if each in packages), "")
        _owners[program] = package if found else None
    return {program: _owners[program] for program in asked}


#: Those of the programs that were asked for, in this process.
_owners: dict[str, str | None] = {}


def _variants(program: str) -> list[str]:
    """Return the paths by which a package may own a program; none where it is not here."""
    path = _path_of(program)
    if path is None:
        return []
    return list(
        dict.fromkeys(
            variant
            for candidate in (path, os.path.realpath(path))
            for variant in (candidate, candidate.removeprefix("/usr"), f"/usr{candidate}")
        )
    )


def _path_of(program: str) -> str | None:
    own = os.path.dirname(sys.executable)
    system = os.pathsep.join(
        each for each in os.environ.get("PATH", os.defpath).split(os.pathsep) if each != own
    )
    for place in (None, *_PLACES):
        if place is None:
            found = shutil.which(program, path=system)
        else:
            found = next(iter(glob.glob(f"{place}/{program}")), None)
        if found is not None:
            return found
    return None


@functools.cache
def _scripts() -> Mapping[str, str]:
    """Return the distribution of each console script of this environment."""
    return {
        point.name: _canonical(point.dist.name)
        for point in importlib.metadata.entry_points(group="console_scripts")
        if point.dist is not None
    }


def unowned_programs(root: pathlib.Path = ROOT) -> list[str]:
    """Return a sentence for each program that bindep.txt and the requirements do not bring."""
    bindep = (root / "bindep.txt").read_text()
    scripts = _scripts()
    findings = []
    for profile, names in programs(root).items():
        brought = closure(asked_for(bindep, profile))
        # The rest is of this environment, and so a matter of the requirements.
        system = {
            name
            for name in names
            if name not in scripts and not re.match(r"^(python|pip)[0-9.]*$", name)
        }
        for name, package in sorted(owners(system).items()):
            if package is not None and package not in brought:
                findings.append(
                    f"{name}: of package {package or 'none'}, which profile {profile} of "
                    "bindep.txt does not bring"
                )
    return findings


# --- Python's distributions ------------------------------------------------

#: Parts of the package that run where Nova is.
_BESIDE_NOVA = ("cmd", "nova_adapter")
#: What it starts is a plugin of flake8, and is required by name.
_OVER_FLAKE8 = pathlib.Path("tools/hacking_rules.py")
#: Modules that tests import from the documents.
_EXAMPLES = ("doc/source/contributor/examples", "doc/source/user/examples")


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _required(*files: pathlib.Path) -> set[str]:
    found = set()
    for path in files:
        for line in path.read_text().splitlines():
            match = re.match(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)", line)
            if match:
                found.add(_canonical(match[1]))
    return found


def _extras(root: pathlib.Path) -> set[str]:
    text = (root / "setup.cfg").read_text().partition("[extras]")[2].partition("\n[")[0]
    names = re.findall(r"(?m)^\s+([A-Za-z0-9][A-Za-z0-9._-]*)", text)
    return {_canonical(name) for name in names}


def _with_its_own(distribution: str) -> set[str]:
    """Return a distribution and those it requires by name."""
    required = importlib.metadata.requires(distribution) or []
    names = (re.match(r"^[A-Za-z0-9._-]+", each) for each in required)
    return {distribution, *(_canonical(name[0]) for name in names if name)}


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return the distributions of each module of this environment."""
    return importlib.metadata.packages_distributions()


def unrequired_modules(root: pathlib.Path = ROOT) -> list[str]:
    """Return a sentence for each module whose distribution no requirements name."""
    distributions = _distributions()
    core = _required(root / "requirements.txt") | _extras(root)
    # What Nova and Placement themselves ask for by name is there where they are.
    beside_nova = core | _with_its_own("nova")
    tests = beside_nova | _required(root / "test-requirements.txt")
    tests |= _with_its_own("openstack-placement")
    findings: dict[str, list[str]] = {}
    for path in _sources(root, ("nova_nodb_scheduler", "tests", "tools")):
        relative = path.relative_to(root)
        required = tests
        if relative.parts[0] == "nova_nodb_scheduler":
            required = beside_nova if relative.parts[1] in _BESIDE_NOVA else core
        if relative.parts[0] == "tools":
            profile = profile_of(relative)
            if profile != "test":
                required = tests | _required(root / f"tools/requirements-{profile}.txt")
        if relative == _OVER_FLAKE8:
            required = tests | {"flake8"}
        for module in programs_and_imports(path.read_text())[1] if path.suffix == ".py" else ():
            places = (root, path.parent, *(root / each for each in _EXAMPLES))
            if module in sys.stdlib_module_names or any(
                (place / module).is_dir() or (place / f"{module}.py").is_file() for place in places
            ):
                continue
            names = {_canonical(name) for name in distributions.get(module, (module,))}
            if not names & required:
                finding = f"{module}: of distribution {' or '.join(sorted(names))}"
                findings.setdefault(finding, []).append(str(relative))
    return [
        f"{finding}, which no requirements of {', '.join(paths[:3])} name"
        for finding, paths in sorted(findings.items())
    ]


def main() -> int:
    """Print what nothing brings."""
    findings = unrequired_modules()
    if shutil.which("dpkg-query"):
        findings = unowned_programs() + findings
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
