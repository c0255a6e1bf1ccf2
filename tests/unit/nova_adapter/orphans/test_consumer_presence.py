# SPDX-License-Identifier: Apache-2.0
"""Which of several rows of one server counts, in whatever order cells are read."""

import itertools

import testtools

from nova_nodb_scheduler.nova_adapter.orphans import consumer_presence

CELL0, CELL1, CELL2 = consumer_presence.CELL0, "cell1", "cell2"
BURIED = (CELL0, {"host": None, "node": None, "vm_state": "error", "task_state": None})
BUILT = (CELL1, {"host": None, "node": None, "vm_state": "building", "task_state": None})
SERVED = (CELL1, {"host": "h1", "node": None, "vm_state": "active", "task_state": None})
HIDDEN = (CELL2, {"host": None, "node": None, "vm_state": "resized", "task_state": None})


class PresenceTest(testtools.TestCase):
    def found(self, *rows):
        presence = None
        for cell, row in rows:
            presence = consumer_presence._of_instance(cell, row, presence)
        return presence

    def test_a_row_in_cell0_buries_no_server_that_a_cell_has(self):
        for other, builds in ((BUILT, True), (SERVED, False)):
            for rows in itertools.permutations((BURIED, other)):
                found = self.found(*rows)
                self.assertEqual((CELL1, builds), (found.cell, found.builds), rows)

    def test_of_a_resize_across_cells_the_row_with_a_host_counts(self):
        for rows in itertools.permutations((SERVED, HIDDEN)):
            self.assertEqual((CELL1, "h1"), (self.found(*rows).cell, self.found(*rows).host))
