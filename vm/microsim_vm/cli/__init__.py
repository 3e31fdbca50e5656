"""The ``microsim`` command.

One module per group of commands. Each declares its arguments with what the standard library has, and imports the rest
of the project when a command of it runs: ``microsim --help`` must not wait for what it does not need.
"""
