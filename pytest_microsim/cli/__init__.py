"""Commands that the plugin adds to ``microsim``, through the entry-point group ``microsim.commands``.

One module per command, as in :mod:`microsim_vm.cli`: it declares arguments with what the standard library has, and
imports the rest when the command runs.
"""
