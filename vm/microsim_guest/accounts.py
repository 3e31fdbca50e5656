"""Users of the guest: whom a command runs as."""

import os
import pwd
from typing import Dict, List, NamedTuple


class Account(NamedTuple):
    """One user: who it is to the kernel, and what its processes see in their environment."""

    uid: int
    gid: int
    groups: List[int]
    env: Dict[str, str]

    def become(self) -> None:
        """Turn the calling process into one of this user's, for good."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)


def find(user: str) -> Account:
    """Return the account of a user, given by name or by number.

    Raises:
        ValueError: The guest has no such user.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        raise ValueError("the guest has no user {!r}".format(user)) from None
    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    env = {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}
    return Account(entry.pw_uid, entry.pw_gid, groups, env)
