# SPDX-License-Identifier: Apache-2.0
"""Reads requests by the schemas of allocations, without checking the schemas with each request.

That check was two fifths of the processor's time of a request for one server, and
its outcome that of the first time: the schemas are constants. What usual requests say is
accepted by functions that are made of the schemas once; of what they do not accept a
validator judges that is made once too. What is refused is refused by Placement's own function, in
its words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from oslo_serialization import jsonutils
from placement import util
from placement.schemas import allocation as schemas

from nova_nodb_scheduler.placement_adapter import schema_acceptors

Extractor = Callable[[bytes, Any], Any]


@attrs.frozen
class _Checked:
    """What stands for a schema that was checked.

    :param accepts: a part of what it allows
    :param validator: all of it
    """

    accepts: schema_acceptors.Acceptor
    validator: Any

    @classmethod
    def of(cls, schema: Any) -> _Checked:
        try:
            accepts = schema_acceptors.acceptor_of(schema)
        except schema_acceptors.UnknownSchemaError:
            accepts = _nothing
        kind = util.jsonschema.validators.validator_for(schema)
        return cls(accepts, kind(schema, format_checker=util._FORMAT_CHECKER))


def _nothing(_data: Any) -> bool:
    return False


def extractor_of(own: Extractor) -> Extractor:
    """Return what stands for ``placement.util.extract_json``, which it calls.

    :raises HTTPBadRequest: of webob, from Placement's own function
    """
    constants = {id(each): each for each in vars(schemas).values() if isinstance(each, dict)}
    #: By the schema's place in memory, which a constant keeps.
    checked: dict[int, _Checked] = {}

    def extract_json(body: bytes, schema: Any) -> Any:
        """Return the parsed body, which is as the schema says."""
        known = checked.get(id(schema))
        if known is not None:
            try:
                data = jsonutils.loads(body)
            except ValueError:
                return own(body, schema)
            if known.accepts(data) or known.validator.is_valid(data):
                return data
        data = own(body, schema)
        if known is None and id(schema) in constants:
            checked[id(schema)] = _Checked.of(schema)
        return data

    return extract_json
