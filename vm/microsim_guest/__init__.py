"""What runs inside the guest: init, agent, world host, controller host.

Standard library only and Python 3.8 syntax, because the guest's Python is the template's choice. The host
imports :mod:`microsim_guest.wire` and :mod:`microsim_guest.codec` too: the protocol is defined once.
"""
