"""Islands: a private network for each rollout, which nothing outside it can hear and nothing inside it can leave.

An island is an unnamed network namespace with a gateway in it, and one link per machine. It has no link to the host or
to another island, so that there is nothing to filter. The kernel takes it down with the last process that holds it.
"""
