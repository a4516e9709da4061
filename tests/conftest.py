"""Settings of the test process."""

from __future__ import annotations

from hypothesis import settings

# A shared machine may be slow at any moment.
settings.register_profile("project", deadline=None)
settings.load_profile("project")
