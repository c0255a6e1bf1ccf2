# SPDX-License-Identifier: Apache-2.0
"""Makes the fingerprints of Nova's and Placement's code, of the releases that are supported.

usage: python -m tools.code_fingerprints WHEEL [WHEEL ...]

Wheels are read, not installed; ``pip download --no-deps nova==31.0.0`` gets one. All of the
supported releases, the minor ones as well, are to be given, for what is printed is all that there
is to know: it takes the place of the tables in ``placement_adapter/known_functions.py``,
``nova_adapter/compute_nodes/serving/replaced_code.py`` and
``nova_adapter/reads/prepared_requests.py``. A name that is printed with another number of
fingerprints than before has changed in some release: read what, before you accept it.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import pprint
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from nova_nodb_scheduler import code_fingerprints
from nova_nodb_scheduler.nova_adapter.compute_nodes.serving import replaced_code
from nova_nodb_scheduler.nova_adapter.reads import prepared_requests
from nova_nodb_scheduler.placement_adapter import known_functions

Fingerprint = str | None


class Release:
    """The sources of one release.

    :param wheel: its file, by path or open
    """

    def __init__(self, wheel: pathlib.Path | IO[bytes]) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self._files = frozenset(self._archive.namelist())

    def has(self, package: str) -> bool:
        return f"{package}/__init__.py" in self._files

    def fingerprints(self, names: Iterable[str]) -> dict[str, Fingerprint]:
        """Return those of modules, and of what some define; None where they do not.

        :param names: dotted, from the package on
        :raises LookupError: there is no such module
        """
        by_file: dict[str, dict[str, str]] = collections.defaultdict(dict)
        for name in names:
            file, within = self._place(name)
            by_file[file][within] = name
        made: dict[str, Fingerprint] = {}
        for file, wanted in by_file.items():
            source = self._archive.read(file).decode()
            found = code_fingerprints.of_definitions(source, wanted.keys() - {""})
            made |= {wanted[within]: each for within, each in found.items()}
            if "" in wanted:
                made[wanted[""]] = code_fingerprints.of_source(source)
        return made

    def _place(self, name: str) -> tuple[str, str]:
        """Return the file of a module, and the name in it; an empty one of the module itself."""
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            file = f"{'/'.join(parts[:count])}.py"
            if file in self._files:
                return file, ".".join(parts[count:])
        raise LookupError(name)


def found(releases: Sequence[Release], names: Iterable[str]) -> dict[str, list[Fingerprint]]:
    """Return the fingerprints of each name in all releases, each once, None first."""
    wanted = sorted(names)
    each_of = [each.fingerprints(wanted) for each in releases]
    return {
        name: sorted({each[name] for each in each_of}, key=lambda one: one or "") for name in wanted
    }


def tables(releases: Sequence[Release]) -> dict[str, Mapping[str, object]]:
    """Return what stands in each table, by the table's name, for the packages that were given."""
    made: dict[str, Mapping[str, object]] = {}
    novas = [each for each in releases if each.has("nova")]
    if novas:
        made["replaced_code.KNOWN"] = found(novas, replaced_code.KNOWN)
        made["prepared_requests.KNOWN"] = found(novas, prepared_requests.KNOWN)
    placements = [each for each in releases if each.has("placement")]
    if placements:
        made["known_functions.KNOWN"] = {
            module: {
                name.removeprefix(f"{module}."): fingerprints
                for name, fingerprints in found(
                    placements, [f"{module}.{name}" for name in definitions]
                ).items()
            }
            for module, definitions in known_functions.KNOWN.items()
        }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheels", nargs="+", type=pathlib.Path, metavar="WHEEL")
    for name, table in tables([Release(each) for each in parser.parse_args().wheels]).items():
        print(f"{name} =", pprint.pformat(table, width=99))


if __name__ == "__main__":
    main()
