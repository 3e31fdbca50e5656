"""What is known of a sandbox without asking it."""

from __future__ import annotations

from typing import Self

from microsim_vm.sandbox.store import Mount, Record, Store


class Facts:
    """What a sandbox is, from its record; all but ``status`` as of its making, or of the last :meth:`refresh`."""

    def __init__(self, store: Store, record: Record) -> None:
        self._store = store
        self._record = record

    @property
    def id(self) -> str:
        """Its name."""
        return self._record.id

    @property
    def template(self) -> str:
        """The name of the template that it came from."""
        return self._record.origin.template

    @property
    def status(self) -> str:
        """ "running", "paused", "hibernated", "crashed", "starting", "waking", or "dead"."""
        return self.refresh()._record.status if self._store.exists(self.id) else "dead"

    @property
    def metadata(self) -> dict[str, str]:
        """The words given to :meth:`create`."""
        return dict(self._record.metadata)

    @property
    def created_at(self) -> float:
        """When it was made, seconds since 1970."""
        return self._record.created_at

    @property
    def boot_ms(self) -> float:
        """How long it took to fork, boot or wake it the last time, milliseconds."""
        return self._record.boot_ms

    @property
    def boot_mode(self) -> str:
        """ "fork" from a snapshot, or "cold"."""
        return self._record.boot_mode

    @property
    def from_snapshot(self) -> str | None:
        """The saved snapshot, or the sandbox, that it was forked from."""
        return self._record.from_snapshot

    @property
    def persistent(self) -> bool:
        """It outlives its maker."""
        return self._record.persistent

    @property
    def detached(self) -> bool:
        """It lives in a process of its own."""
        return self._record.detached

    @property
    def seed(self) -> int:
        """What its generators were reseeded with."""
        return self._record.seed

    @property
    def ttl_seconds(self) -> float | None:
        """Idle seconds after which it is killed."""
        return self._record.ttl_seconds

    @property
    def vcpus(self) -> int:
        """Its processors."""
        return self._record.origin.machine.vcpus

    @property
    def memory_mib(self) -> int:
        """Its memory, MiB."""
        return self._record.origin.machine.memory_mib

    @property
    def volumes(self) -> tuple[Mount, ...]:
        """Its volumes, and where they are mounted."""
        return self._record.volumes

    def refresh(self) -> Self:
        """Read again what is known of it, and return it; asking for ``status`` does so too."""
        self._record = self._store.read(self.id) or self._record
        return self
