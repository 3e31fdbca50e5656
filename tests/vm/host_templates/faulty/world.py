"""Factories that go wrong, each in its own way."""

import time


def raises():
    """Fail as a world does whose data is broken."""
    return _load("shelves.obj")


def _load(name):
    raise ValueError("the mesh in " + name + " has no faces")


def not_a_world():
    """Return something without reset and step."""
    return {"reset": "missing"}


def imports_what_is_missing():
    """Need a package that the template does not ask for."""
    import a_package_nobody_installed

    return a_package_nobody_installed.make()


def sleeps():
    """Never be ready."""
    print("world: waiting for a licence server", flush=True)
    time.sleep(3600)
