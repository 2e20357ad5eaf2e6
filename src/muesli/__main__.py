"""``python -m muesli``: the command ``muesli``."""

import sys

from muesli.cli.main import main

sys.exit(main())
