# SPDX-License-Identifier: Apache-2.0
"""What was acknowledged of a cell's compute nodes: plain rows, by what was asked and answered."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any

#: A row, column by column. Times are what they may be: ``updated_at`` any of some,
#: ``deleted_at`` a span.
Row = dict[str, Any]
Span = tuple[str, str]

#: What a creation need not name, and its row has.
_UNNAMED: Mapping[str, Any] = {
    "mapped": 0,
    "deleted": 0,
    "deleted_at": None,
    "updated_at": (None,),
}


class Ledger:
    """The rows of a cell, told by one thread.

    :param keeps_fractions: whether its database keeps fractions of seconds
    :ivar nodes: by id, live and deleted
    :ivar archived: uuids by id, since they were purged last
    :ivar highest: id that was ever answered
    :ivar services: ids by host
    :ivar devices: whether they are deleted, by id of the node and address
    """

    def __init__(self, keeps_fractions: bool) -> None:
        self._keeps_fractions = keeps_fractions
        self.nodes: dict[int, Row] = {}
        self.archived: dict[int, str] = {}
        self.highest = self._floor = 0
        self.services: dict[str, int] = {}
        self.devices: dict[tuple[int, str], bool] = {}

    def live(self) -> list[Row]:
        return [row for row in self.nodes.values() if not row["deleted"]]

    def deleted(self) -> list[Row]:
        return [row for row in self.nodes.values() if row["deleted"]]

    def begin_round(self) -> None:
        """Have what is created from now on get ids above all before."""
        self._floor = self.highest

    # -- what was answered ------------------------------------------------------------

    def created(self, values: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        """Note a creation, also of a uuid that there is: that row keeps its id."""
        number, uuid = told["id"], values["uuid"]
        assert told["uuid"] == uuid, (values, told)
        known = [row for row in self.nodes.values() if row["uuid"] == uuid]
        stored = {name: _stored(name, value) for name, value in values.items()}
        if known and known[0]["id"] == number:
            assert known[0]["created_at"] == self._time(told["created_at"]), (known, told)
            known[0].update(stored, deleted=0, deleted_at=None)
            known[0]["updated_at"] = (self._time(told["updated_at"]),)
            return
        assert number > self._floor, f"id {number} is not above {self._floor}"
        assert number not in self.nodes, f"id {number} was given twice"
        self.highest = max(self.highest, number)
        created_at = self._time(told["created_at"])
        self.nodes[number] = {**_UNNAMED, **stored, "id": number, "created_at": created_at}

    def saved(
        self, number: int, values: Mapping[str, Any], *told: Mapping[str, Any], **more: Any
    ) -> None:
        """Note a save, or two at a time of other columns."""
        row = self.nodes[number]
        assert {(number, row["uuid"])} == {(each["id"], each["uuid"]) for each in told}
        row.update({name: _stored(name, value) for name, value in values.items()}, **more)
        row["updated_at"] = tuple(self._time(each["updated_at"]) for each in told)

    def destroyed(self, number: int, span: Span, **more: Any) -> None:
        self.nodes[number].update(deleted=number, deleted_at=span, **more)

    def archivable(self) -> dict[int, str]:
        """Return which rows go to the archive: no device names them by then."""
        named = {node for (node, _address), is_deleted in self.devices.items() if not is_deleted}
        return {row["id"]: row["uuid"] for row in self.deleted() if row["id"] not in named}

    def archive(self, gone: Mapping[int, str]) -> None:
        for key in [key for key, is_deleted in self.devices.items() if is_deleted]:
            del self.devices[key]
        self.archived.update(gone)
        for number in gone:
            del self.nodes[number]

    # -- compared ---------------------------------------------------------------------

    def differences(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Name what is not as it was acknowledged."""
        there = {row["id"]: row for row in rows}
        found = [f"{number} is missing" for number in self.nodes.keys() - there.keys()]
        found += [f"{number} is not known" for number in there.keys() - self.nodes.keys()]
        for number in self.nodes.keys() & there.keys():
            wanted = self.nodes[number]
            for name, value in there[number].items():
                if not self._is_met(name, wanted.get(name), value):
                    found.append(f"{number}: {name} is {value!r}, not {wanted.get(name)!r}")
        return sorted(found)

    def take_over(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Note rows that are there already, as they are."""
        for row in rows:
            made = {name: _read(name, value) for name, value in row.items()}
            made["created_at"] = self._time(row["created_at"])
            made["updated_at"] = (self._time(row["updated_at"]),)
            if row["deleted_at"] is not None:
                made["deleted_at"] = (row["deleted_at"], row["deleted_at"])
            self.nodes[row["id"]] = made
            self.highest = max(self.highest, row["id"])

    def _is_met(self, name: str, wanted: Any, value: Any) -> bool:
        if name == "deleted_at" and wanted is not None and value is not None:
            first, last = (self._time(each) for each in wanted)
            return bool(first <= self._time(value) <= last)
        if name == "updated_at":
            return self._time(value) in wanted
        if name == "created_at":
            return bool(wanted == self._time(value))
        return bool(wanted == _read(name, value))

    def _time(self, text: str | None) -> Any:
        if text is None or self._keeps_fractions:
            return text
        return datetime.datetime.fromisoformat(text).replace(microsecond=0).isoformat()


def _stored(name: str, value: Any) -> Any:
    return {**value} if name == "stats" else value


def _read(name: str, value: Any) -> Any:
    if name == "stats" and value is not None:
        return json.loads(value)
    if name == "host_ip" and value is not None:
        return str(value).removesuffix("/32")
    return value
