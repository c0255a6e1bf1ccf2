# SPDX-License-Identifier: Apache-2.0
"""Looks at the plugin's options before anything depends on them.

oslo.config reads a value when it is asked for: a wrong one would be found in
some thread, hours later, and a misspelt option never. No I/O but the reading of
the configuration files.
"""

from __future__ import annotations

import logging
import pathlib
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from oslo_config import cfg

from nova_nodb_scheduler import errors

LOG = logging.getLogger(__name__)

Groups = Iterable[tuple[str, Collection[cfg.Opt]]]


def check(conf: cfg.ConfigOpts, groups: Groups) -> None:
    """Refuse values that options cannot take; name options that do not exist.

    :param groups: groups that are wholly ours, with their registered options
    :raises ConfigurationError: a value is of the wrong type or out of bounds
    """
    written = _written(conf)
    for group, options in groups:
        theirs = written.get(group, {})
        for option in options:
            try:
                conf[group][option.dest]
            except (cfg.TemplateSubstitutionError, cfg.NoSuchOptError):
                # It refers to another option; who reads it says what to do.
                continue
            except (cfg.Error, ValueError) as error:
                raise errors.ConfigurationError(
                    f"[{group}] {option.name}", theirs.get(option.dest), str(error)
                ) from error
        for name in sorted(theirs.keys() - {option.dest for option in options}):
            warn(
                f"nova_nodb_scheduler: [{group}] {name} is not an option of this release and "
                "has no effect; is it misspelt?"
            )


def _written(conf: cfg.ConfigOpts) -> dict[str, dict[str, str]]:
    """Return what the configuration files say last, as text, by group and option."""
    return {
        group: {option: values[-1] for option, values in options.items()}
        for group, options in written_lines(conf).items()
    }


def written_lines(conf: cfg.ConfigOpts) -> dict[str, dict[str, list[str]]]:
    """Return all that the configuration files say, as text, by group and option."""
    found: dict[str, dict[str, list[str]]] = {}
    for path in _files(conf):
        sections: Mapping[str, Mapping[str, list[str]]] = {}
        try:
            cfg.ConfigParser(str(path), sections).parse()
        except (cfg.Error, OSError):
            # oslo.config itself has read it a moment ago and said what it had to.
            continue
        for group, options in sections.items():
            for name, values in options.items():
                lines = found.setdefault(group, {})
                lines.setdefault(name.replace("-", "_"), []).extend(values)
    return found


def _files(conf: cfg.ConfigOpts) -> list[pathlib.Path]:
    directories = [pathlib.Path(name) for name in conf.config_dir or ()]
    return [
        *map(pathlib.Path, conf.config_file or ()),
        *(path for directory in directories for path in sorted(directory.glob("*.conf"))),
    ]


def warn(text: str) -> None:
    """Say it where it is seen: logging is not set up while a service is configured."""
    LOG.error("%(text)s", {"text": text})
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - see above


def options_of(driver: Any) -> Groups:
    """Return a synchronizer driver's groups and options."""
    return list(driver.list_opts())
