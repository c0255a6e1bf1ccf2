# SPDX-License-Identifier: Apache-2.0
"""Driver ``etcd``: records in an etcd 3.4 or later, through its JSON gateway.

etcd gives all that a driver owes: a revision of the whole store orders the
writes, a transaction compares revisions, and a watch tells what changed. What
is left is to read the watch so that it cannot fall silent (:mod:`.following`,
:mod:`.following`), to batch writes (:mod:`.writing`), and to notice that the
store behind the address is another one (:mod:`.epochs`).
"""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers.etcd.driver import EtcdSynchronizer
from nova_nodb_scheduler.synchronizer.drivers.etcd.options import OPTS, EtcdOptions
from nova_nodb_scheduler.synchronizer.drivers.etcd.steps import Step

__all__ = ["OPTS", "EtcdOptions", "EtcdSynchronizer", "Step"]
