"""Engines: one file each behind the Protocol in :mod:`microsim_vm.engines.base`."""
