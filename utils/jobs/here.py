"""Jobs one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from utils.jobs.job import Finished, Job, Tell, perform, tell_nobody


class Here:
    """An executor that does jobs in this process, whose signals they heed themselves."""

    is_apart = False

    def run(self, jobs: Iterable[Job], tell: Tell = tell_nobody) -> Iterator[Finished]:
        """Do jobs in their order; see `Executor`."""
        for job in jobs:
            tell(job.name, "running")
            yield perform(job)
