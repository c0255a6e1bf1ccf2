# SPDX-License-Identifier: Apache-2.0
"""Driver ``etcd``: records in an etcd 3.4 or later, through its JSON gateway.

A revision of the whole store orders the writes, transactions compare revisions, a watch tells what
changed. What is left: a watch that cannot fall silent (:mod:`.following`), batches of writes
(:mod:`.writing`), and noticing that the store is another one (:mod:`.epochs`).
"""

from __future__ import annotations

from nova_nodb_scheduler.synchronizer.drivers.etcd.driver import EtcdSynchronizer
from nova_nodb_scheduler.synchronizer.drivers.etcd.options import OPTS, EtcdOptions
from nova_nodb_scheduler.synchronizer.drivers.etcd.steps import Step

__all__ = ["OPTS", "EtcdOptions", "EtcdSynchronizer", "Step"]
