# SPDX-License-Identifier: Apache-2.0
"""What one request sees: one snapshot, one proof, from its beginning to its end.

Where it would be refused, and something of what it saw was over, it begins again: with
a view of the present.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from nova import context as nova_context
from nova import objects

from nova_nodb_scheduler.nova_adapter import decision_log, deferred_candidates
from nova_nodb_scheduler.nova_adapter import proof as proof_module
from nova_nodb_scheduler.nova_adapter import reads as reads_module
from nova_nodb_scheduler.nova_adapter import scopes as scopes_module
from nova_nodb_scheduler.store import host_state_store

LOG = logging.getLogger(__name__)

FellBack = Callable[[str, proof_module.Reason], None]

#: Takes a snapshot and judges it.
Look = Callable[[], tuple[reads_module.Reads, proof_module.Proof]]


class RequestView:
    """A request's view of the cloud, and where it had to leave memory.

    :param reads: None only with ``stock``
    :param cells: uuids of all cells but cell0, enabled or not
    :param stock: True to take Nova's own path for every cell
    :param look: see :meth:`renew`; None where it is what it was made with for good
    """

    def __init__(
        self,
        reads: reads_module.Reads | None,
        proof: proof_module.Proof,
        cells: tuple[str, ...],
        fell_back: FellBack,
        *,
        stock: bool = False,
        look: Look | None = None,
    ) -> None:
        self._reads = reads
        self._look = look
        self.proof = proof
        self.cells = cells
        self._judged = frozenset(_judged(cells))
        self._fell_back = fell_back
        self._stock = stock
        #: Cell of each host among the candidates, once they are known.
        self.cell_of_host: Mapping[str, str] = {}
        #: The host manager's CellMappings by uuid, once hosts are made states of.
        self.cell_mappings: Mapping[str, Any] = {}
        #: Of cells that are not served: instance uuids by host, once read.
        self.instances_read: dict[str, Mapping[str, Any]] = {}
        #: By (cell, host): one mapping for all nodes of a host, as Nova tracks them,
        #: so that a server placed on one is seen on the others.
        self.instances_of: dict[tuple[str, str], Any] = {}
        #: The providers of Placement's answer, where Nova's own code chooses among them.
        self.offered: tuple[str, ...] = ()
        #: True once Placement offered a host that the store does not know.
        self.unknown_candidates = False
        #: The questions to Placement, kept back; None where Placement is asked.
        self.deferred: deferred_candidates.DeferredCandidates | None = None
        #: True where the choice itself is made over columns.
        self.decides = False
        #: Why it was not, in the end; None if it was.
        self.asked_placement: str | None = None
        #: What the decision came to, for those who ask later.
        self.trace = decision_log.Trace()
        #: Scopes that were answered from memory.
        self.served: set[str] = set()
        #: Scopes that were not, and why.
        self.missed: dict[str, proof_module.Reason] = {}

    def renew(self) -> bool:
        """See the present from here on; False if what was served is not proved now.

        Host states made before are of the former view: who decides again makes others.
        """
        if self._look is None:
            return True
        reads, proof = self._look()
        if reads.generation != self.reads.generation or self.served & proof.missing.keys():
            return False
        self._reads, self.proof = reads, proof
        self.instances_of.clear()
        self.instances_read.clear()
        return True

    @property
    def reads(self) -> reads_module.Reads:
        """The reads; for scopes that are served."""
        assert self._reads is not None  # a stock view serves nothing
        return self._reads

    @property
    def stock(self) -> bool:
        """True where every scope takes Nova's own path."""
        return self._stock

    def serves(self, scope: str) -> bool:
        """Tell whether a scope is answered from memory; note it either way."""
        if self._stock or scope in self.missed:
            return False
        lacking = self.lacks(scope)
        if lacking is not None:
            self.miss(scope, lacking)
            return False
        self.served.add(scope)
        return True

    def lacks(self, scope: str) -> proof_module.Reason | None:
        """Return why a scope is not proved; None if it is."""
        if scope not in self._judged:
            # A cell that was made after this scheduler last read the cells.
            return proof_module.Reason.COLD
        return self.proof.missing.get(scope)

    def serves_all(self, scopes: Collection[str]) -> bool:
        """Tell whether all of some scopes are answered from memory; note it for each."""
        served = [self.serves(scope) for scope in scopes]
        return all(served)

    def miss(self, scope: str, reason: proof_module.Reason) -> None:
        """Send a scope to Nova's own path for the rest of this request."""
        self.served.discard(scope)
        if scope not in self.missed:
            self.missed[scope] = reason
            self._fell_back(scope, reason)


class Views:
    """Opens views over a store; keeps the current request's per thread.

    :param cells: uuids of the cells the scheduler knows
    :param generation: grows when the store begins to be built anew
    :param fell_back: told of each scope and request that left memory
    """

    def __init__(
        self,
        store: host_state_store.HostStateStore,
        judge: proof_module.Judge,
        built: reads_module.BuiltObjects,
        cells: Callable[[], list[str]],
        generation: Callable[[], int],
        fell_back: FellBack,
    ) -> None:
        self._store = store
        self._judge = judge
        self._built = built
        self._cells = cells
        self._generation = generation
        self._fell_back = fell_back

    def open(self) -> RequestView:
        """Take a snapshot and judge it; a fault of ours is Nova's own path, loudly."""
        try:
            return self._open()
        except Exception:
            LOG.exception("The states in memory cannot be used for this request.")
            view = self.stock()
            for scope in self._cells():
                view.miss(scope, proof_module.Reason.FAULT)
            return view

    def stock(self) -> RequestView:
        """Return a view that takes Nova's own path for everything."""
        proof = proof_module.Proof({})
        return RequestView(None, proof, tuple(self._cells()), self._fell_back, stock=True)

    def _open(self) -> RequestView:
        cells = tuple(self._cells())
        look = functools.partial(self._looked, cells)
        return RequestView(*look(), cells, self._fell_back, look=look)

    def _looked(self, cells: tuple[str, ...]) -> tuple[reads_module.Reads, proof_module.Proof]:
        generation = self._generation()
        snapshot = self._store.snapshot()
        scopes = _judged(cells)
        context: Any = nova_context.get_admin_context()
        proof = self._judge.judge(snapshot, scopes)
        if generation != self._generation():
            # The snapshot may have been taken from a store half built, and
            # the feed proved only after it was whole again.
            proof = proof_module.Proof(dict.fromkeys(scopes, proof_module.Reason.FEED))
        return reads_module.Reads(snapshot, generation, self._built, context), proof

    def proof(self) -> proof_module.Proof:
        """Judge the store of now, for nobody's request: nothing is counted."""
        return self._open().proof

    def still_proved(self, view: RequestView) -> bool:
        """Tell whether what a view answered from memory would be proved now, too."""
        if not view.served:
            return True
        now = self._judge.judge(self._store.snapshot(), sorted(view.served))
        return not now.missing


def _judged(cells: Collection[str]) -> list[str]:
    """Return the scopes that every view is judged by."""
    return [*cells, objects.CellMapping.CELL0_UUID, scopes_module.API]


_current = threading.local()


def current() -> RequestView | None:
    """Return the view of the request this thread works on, if any."""
    return getattr(_current, "view", None)


@contextlib.contextmanager
def working_on(view: RequestView) -> Iterator[RequestView]:
    """Make a view the current one of this thread."""
    before = current()
    _current.view = view
    try:
        yield view
    finally:
        _current.view = before
