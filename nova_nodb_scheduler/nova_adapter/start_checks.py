# SPDX-License-Identifier: Apache-2.0
"""Looks at Nova's release and at the plugin's options before anything depends on them.

Which Nova is installed, and whether this plugin was tested with it.

Looks at the plugin's options before anything depends on them.

oslo.config reads a value when it is asked for: a wrong one would be found in
some thread, hours later, and a misspelt option never. No I/O but the reading of
the configuration files.
"""

from __future__ import annotations

import difflib
import functools
import logging
import pathlib
import sys
from collections.abc import Collection, Iterable, Mapping
from importlib import metadata
from typing import Any

import attrs
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer.drivers.support import driver_options

#: Major releases of Nova this plugin is tested with: 2025.1 to 2026.2.
SUPPORTED = range(31, 35)


def supported_text() -> str:
    """Return the supported releases for messages."""
    return f"{SUPPORTED.start} (2025.1) to {SUPPORTED.stop - 1} (2026.2)"


@functools.cache
def nova_version() -> str:
    """Return the version of the installed Nova, ``unknown`` where there is none."""
    try:
        return metadata.version("nova")
    except metadata.PackageNotFoundError:
        return "unknown"


def is_supported(version: str) -> bool:
    """Tell whether a version text names a supported major release."""
    major = version.partition(".")[0]
    return major.isdigit() and int(major) in SUPPORTED


def check_release() -> None:
    """Refuse a Nova this plugin was not tested with.

    :raises UnsupportedRelease: the installed release is older or newer
    """
    found = nova_version()
    if not is_supported(found):
        raise errors.UnsupportedRelease(found, supported_text())


LOG = logging.getLogger(__name__)

Groups = Iterable[tuple[str, Collection[cfg.Opt]]]


#: What this process has told already: options are looked at more than once.
_told: set[str] = set()


@attrs.frozen
class UnknownOption:
    """A name in a group of ours that is none of its options.

    :param nearest: options of the group that are spelt much alike, the nearest first
    """

    group: str
    name: str
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        meant = f"is {' or '.join(self.nearest)} meant" if self.nearest else "is it misspelt"
        return (
            f"[{self.group}] {self.name} is not an option of this release and has no effect; "
            f"{meant}?"
        )


def check_options(conf: cfg.ConfigOpts, groups: Groups) -> None:
    """Refuse values that options cannot take; name options that do not exist.

    :param groups: groups that are wholly ours, with their registered options
    :raises ConfigurationError: a value is of the wrong type or out of bounds, or
        refers to an option that does not exist
    """
    groups = [(group, list(options)) for group, options in groups]
    texts = written(conf)
    for group, options in groups:
        theirs = texts.get(group, {})
        for option in options:
            try:
                conf[group][option.dest]
            except driver_options.REFERENCES as error:
                if option.dest not in theirs:
                    # A default refers to an option of Nova's; who reads it says what to do.
                    continue
                raise driver_options.reference_refusal(group, option.name) from error
            except (cfg.Error, ValueError) as error:
                raise errors.ConfigurationError(
                    f"[{group}] {option.name}",
                    theirs.get(option.dest),
                    driver_options.plain_text(error),
                ) from error
    for each in unknown_options(texts, groups):
        warn_of_options(f"nova_nodb_scheduler: {each}")


def unknown_options(texts: Mapping[str, Mapping[str, str]], groups: Groups) -> list[UnknownOption]:
    """Find what is written in groups of ours and is none of their options.

    :param texts: what the configuration files say, see :func:`written`
    """
    found = []
    for group, options in groups:
        known = {option.dest for option in options}
        for name in sorted(texts.get(group, {}).keys() - known):
            nearest = difflib.get_close_matches(name, sorted(known), n=2, cutoff=0.75)
            found.append(UnknownOption(group, name, tuple(nearest)))
    return found


def told_elsewhere(texts: Mapping[str, Mapping[str, str]], groups: Groups) -> None:
    """Have :func:`check_options` be silent of unknown names: the caller tells them."""
    _told.update(f"nova_nodb_scheduler: {each}" for each in unknown_options(texts, groups))


def written(conf: cfg.ConfigOpts) -> dict[str, dict[str, str]]:
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


def warn_of_options(text: str) -> None:
    """Say it once, where it is seen: logging is not set up while a service is configured."""
    if text in _told:
        return
    _told.add(text)
    if logging.getLogger().handlers:
        LOG.error("%(text)s", {"text": text})
    if not any(_is_standard_error(each) for each in logging.getLogger().handlers):
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - see above


def _is_standard_error(handler: logging.Handler) -> bool:
    """Tell whether what is logged as an error is seen on standard error by this handler."""
    return (
        isinstance(handler, logging.StreamHandler)
        and handler.stream is sys.stderr
        and handler.level <= logging.ERROR
    )


def options_of(driver: Any) -> Groups:
    """Return a synchronizer driver's groups and options."""
    return list(driver.list_opts())
