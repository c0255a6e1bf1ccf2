# SPDX-License-Identifier: Apache-2.0
"""Digests come back as they were, or not at all."""

import json
import math
import tracemalloc

import attrs
import numpy as np
import orjson
import testtools
from testtools import matchers

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.scheduling.namespaces import (
    digest_forms,
    known_namespaces,
    node_facts,
    provider_facts,
    service_facts,
)
from nova_nodb_scheduler.store import stored_pages
from tests.unit.scheduling import hosts


def _texts(facts):
    """Return what each field shows, sets in an order."""
    shown = {field.name: getattr(facts, field.name) for field in attrs.fields(type(facts))}
    return {k: sorted(v) if isinstance(v, frozenset) else str(v) for k, v in shown.items()}


class FormsTest(testtools.TestCase):
    def back(self, form, digests):
        self.assertTrue(all(map(form.has, digests)))
        return form.load(form.dump(digests), len(digests))

    def refused(self, form, dumped, count):
        self.assertRaises(stored_pages.UNFIT, form.load, dumped, count)

    def test_rows_of_nodes_come_back_with_the_codes_of_the_process_that_loads_them(self):
        texts = [json.dumps([["x86_64", f"kvm{n}", "hvm"]]) for n in range(3)]
        rows = [
            node_facts.digest(f"n{n}", hosts.node(f"n{n}", supported_instances=texts[n % 3]))
            for n in range(7)
        ]
        rows.append(node_facts.digest("n8", hosts.node("n8", free_disk_gb=None, stats="{}")))
        form = digest_forms.NodeRows()
        self.assertEqual(rows, self.back(form, rows))
        dumped = form.dump(rows)
        # Another process gave other codes out before.
        known = node_facts._codes.copy(), node_facts._texts.copy()
        self.addCleanup(self.put_back, *known)
        self.put_back({"other": 0}, ["other"])
        loaded = form.load(dumped, len(rows))
        self.assertEqual(texts, [node_facts.instances_of(row) for row in loaded[:3]])
        self.assertIsNone(node_facts.instances_of(loaded[-1]))

    @staticmethod
    def put_back(codes, texts):
        node_facts._codes.clear()
        node_facts._codes.update(codes)
        node_facts._texts[:] = texts

    def test_a_text_beyond_those_with_codes_is_asked_of_the_record(self):
        row = node_facts.digest("n", hosts.node("n", supported_instances="[]"))
        dumped = digest_forms.NodeRows().dump([row])
        known = node_facts._codes.copy(), node_facts._texts.copy()
        self.addCleanup(self.put_back, *known)
        self.put_back({}, ["x"] * 4096)
        [loaded] = digest_forms.NodeRows().load(dumped, 1)
        self.assertIsNone(node_facts.instances_of(loaded))
        self.assertEqual([loaded], self.back(digest_forms.NodeRows(), [loaded]))

    def test_rows_that_no_node_can_have_are_refused(self):
        form = digest_forms.NodeRows()
        row = node_facts.digest("n", hosts.node("n"))
        dumped = form.dump([row])
        for changed, count in (
            (b"", 1),
            (dumped[:-1], 1),
            (dumped + b"\0", 1),
            (dumped, 2),
            (b"\xff\xff\xff\xff" + dumped[4:], 1),
            (dumped[:-1] + b"\x02", 1),
            (dumped.replace(b"[", b"{", 1), 1),
        ):
            self.refused(form, changed, count)
        for name, value in (("cpu_allocation_ratio", math.nan), ("ram_allocation_ratio", math.inf)):
            rows = np.frombuffer(row, node_facts.ROW).copy()
            rows[name] = value
            self.refused(form, form.dump([rows.tobytes()]), 1)
        for code in (-1, 7):
            rows = np.frombuffer(row, node_facts.ROW).copy()
            rows["instances"] = code
            self.refused(form, dumped[: -node_facts.ROW.itemsize] + rows.tobytes(), 1)

    def test_services_and_heartbeats_come_back(self):
        services = [
            service_facts.digest("s", hosts.service("s", disabled=disabled, created_at=created))
            for disabled in (True, False)
            for created in ("2026-01-01T00:00:00", None)
        ]
        self.assertEqual(services, self.back(digest_forms.Services(), services))
        times = [service_facts.heartbeat("s", hosts.liveness(seconds)) for seconds in (1, 59)]
        self.assertEqual(times, self.back(digest_forms.Seconds(), times))
        for form in (digest_forms.Services(), digest_forms.Seconds()):
            for dumped in (b"", b"1", bytes(1000)):
                self.refused(form, dumped, 1)
        self.refused(digest_forms.Seconds(), np.array([math.nan]).tobytes(), 1)

    def test_providers_come_back(self):
        provider = hosts.provider
        child = {"parent": "u", "inventories": {"VGPU": hosts.inventory(4)}}
        states = [
            provider(),
            provider(generation=7, traits=["A", "B"], aggregates=["g1"]),
            provider(allocations={}),
            provider(allocations={"c": {"VCPU": 1}, "d": {"VCPU": 2, "CUSTOM_X": 3}}),
            provider(children={"child": child}),
        ]
        facts = [provider_facts.digest("u", state) for state in states]
        self.assertEqual([None] * 5, [each.broken for each in facts])
        for own, found in zip(facts, self.back(digest_forms.Providers(), facts), strict=True):
            self.assertEqual(_texts(own), _texts(found))
            self.assertEqual(dict(own.used), dict(found.used))
            self.assertIs(type(own.used), type(found.used))
            self.assertEqual(own.inventories, found.inventories)
            self.assertIs(own.traits, found.traits)

    def test_providers_that_nobody_could_have_are_refused(self):
        form = digest_forms.Providers()
        facts = provider_facts.digest("u", hosts.provider())
        said = orjson.loads(form.dump([facts]))
        for place, changed in (
            (0, [[["no class", 1, 0, 1, 1, 1, 1.0]]]),
            (0, [[["VCPU", -1, 0, 1, 1, 1, 1.0]]]),
            (0, [[["VCPU", 1, 0, 1, 1, 1]]]),
            (0, []),
            (1, [[1]]),
            (1, "text"),
            (2, [["VCPU"]]),
            (3, said[3][:-1]),
            (3, [*said[3][:1], -1, *said[3][2:]]),
            (3, [2**63, *said[3][1:]]),
            (4, said[4][:-1]),
            (4, [*said[4], 1]),
            (4, ["x"] * len(said[4])),
        ):
            document = list(said)
            document[place] = changed
            self.refused(form, orjson.dumps(document), 1)
        for dumped in (b"", b"[]", b"null", b"[1,2,3,4,5]"):
            self.refused(form, dumped, 1)

    def test_a_text_that_would_take_a_hundred_times_its_size_is_refused_before_it_is_parsed(self):
        many = b"[" + b"[]," * (4 << 20) + b"[]]"
        for form, dumped in (
            (digest_forms.Providers(), many),
            (digest_forms.NodeRows(), np.array([len(many)], "<u4").tobytes() + many),
        ):
            tracemalloc.start()
            try:
                self.assertRaises(ValueError, form.load, dumped, 1)
                _now, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            self.assertThat(peak_bytes, matchers.LessThan(2 * len(many)))

    def test_errors_and_what_has_no_form_have_none(self):
        broken = provider_facts.digest("u", {"broken": "a reason"})
        half = provider_facts.digest("u", hosts.provider(allocations={"c": {"VCPU": 1.5}}))
        error = errors.InvalidRecord("a", "b", "c")
        for namespace in known_namespaces.BUILT_IN:
            if namespace.digest_form is not None:
                for digest in (error, broken, half, None, "text"):
                    self.assertFalse(namespace.digest_form.has(digest), namespace.name)
