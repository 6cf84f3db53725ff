"""Property tests see the same examples on every machine, however busy it is.

Processes that tests start know one token, and none of the user's files is made or read.
"""

import os

from hypothesis import settings

settings.register_profile("same everywhere", deadline=None, derandomize=True)
settings.load_profile("same everywhere")

os.environ["PERFMODEL_TOKEN"] = "known to all tests, and to nobody else"
