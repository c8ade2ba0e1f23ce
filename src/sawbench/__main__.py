"""``python -m sawbench``."""

import sys

from sawbench.cli import main

sys.exit(main())
