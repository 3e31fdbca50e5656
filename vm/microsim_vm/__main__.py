"""``python -m microsim_vm`` is the command ``microsim``."""

import sys

from microsim_vm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
