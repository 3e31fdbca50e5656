"""Sandboxes: microVMs with a name, found again by any process, hibernated and woken, forked and snapshotted.

``sandbox`` is the user's object, over one of two seats: ``live`` (the microVM belongs to this process) and
``visitor`` (it belongs to another one, which ``door`` serves). ``launch`` starts them, ``keeper`` is the process
of one that outlives its maker, ``store`` keeps their records, ``saved`` the snapshots, ``idle`` ends what nobody
uses.
"""
