"""The heap that clean-ups leave out, and how a census sees it all the same."""

from __future__ import annotations

import gc
import weakref

from tests.memory.thing import Thing
from utils.memory.clean_up import frozen_heap, thawed_heap


def test_what_is_frozen_is_collected_and_seen_only_when_thawed() -> None:
    kept, garbage = Thing(None), Thing(None)
    garbage.held = garbage
    gone = weakref.ref(garbage)
    with frozen_heap():
        del garbage
        gc.collect()
        assert gone() is not None
        assert not any(item is kept for item in gc.get_objects())
        with thawed_heap():
            assert gone() is None and any(item is kept for item in gc.get_objects())
        assert not any(item is kept for item in gc.get_objects())
    assert any(item is kept for item in gc.get_objects())
