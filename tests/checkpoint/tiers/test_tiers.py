from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.checkpoint import Checkpoints, DeviceCopy, FastTier, Store, Tiers, open_checkpoints
from luthier.durations import Steps
from luthier.errors import CheckpointError


class Counter:
    """A data iterator that counts."""

    def __init__(self, at=0):
        self.at = at

    def get_state(self):
        return {"at": self.at}

    def set_state(self, state):
        self.at = state["at"]


ABSTRACT = {"w": jax.ShapeDtypeStruct((64,), jnp.float32)}


def arrays(value):
    return {"w": jnp.full((64,), value, jnp.float32)}


@pytest.fixture
def opened(tmp_path):
    """Open both tiers of one run."""
    made = []

    def open_both(**settings):
        policy = Checkpoints(fast=FastTier(str(tmp_path / "fast"), Steps(5)), **settings)
        made.append(open_checkpoints(tmp_path / "run" / "checkpoints", policy))
        return made[-1]

    yield open_both
    for tiers in made:
        tiers.close()


def save(tiers, step, durable):
    tiers.save(step, arrays(step), Counter(step), {"step": step}, durable=durable)


def restored(tiers, step):
    iterator = Counter()
    return float(tiers.restore(step, ABSTRACT, iterator)["w"][0]), iterator.at


def test_each_tier_keeps_its_own_and_the_nearest_is_restored(opened, tmp_path):
    tiers = opened(keep_latest=3)
    for step, durable in ((5, False), (10, True), (15, False), (20, False)):
        save(tiers, step, durable)
    tiers.wait()
    assert tiers.committed() == [10]  # what only the fast tier holds is lost with the machine
    fast = next((tmp_path / "fast").iterdir())
    assert sorted(p.name for p in fast.iterdir()) == ["20"]  # keeps one
    again = opened()
    assert again.newest_whole() == (20, [])
    assert restored(again, 20) == (20.0, 20)
    assert again.read_extra(20) == {"step": 20}


def test_a_damaged_fast_checkpoint_falls_back_to_the_durable_one(opened, tmp_path):
    tiers = opened()
    save(tiers, 10, True)
    save(tiers, 15, False)
    tiers.wait()
    fast = next((tmp_path / "fast").iterdir()) / "15"
    victim = max((p for p in fast.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    step, damage = opened().newest_whole()
    assert step == 10
    assert "15 is damaged" in str(damage[0])
    assert not fast.exists()


def test_a_fast_tier_that_is_gone_is_no_harm(opened, tmp_path):
    tiers = opened()
    save(tiers, 10, True)
    save(tiers, 15, False)
    tiers.wait()
    for folder in (tmp_path / "fast").iterdir():
        folder.rename(tmp_path / "gone")
    again = opened()
    assert again.newest_whole() == (10, [])
    assert restored(again, 10) == (10.0, 10)


def test_a_run_that_is_begun_again_never_reads_what_was_left(opened, tmp_path):
    tiers = opened()
    save(tiers, 15, False)
    tiers.wait()
    (tmp_path / "run").rename(tmp_path / "deleted")
    assert opened().newest_whole() == (None, [])


def test_cutting_back_reaches_both_tiers(opened):
    tiers = opened(keep_latest=5)
    for step, durable in ((10, True), (20, True), (25, False)):
        save(tiers, step, durable)
    tiers.wait()
    tiers.cut_back(10)
    assert tiers.newest_whole() == (10, [])


def test_the_fast_tier_is_discarded_with_the_run(opened, tmp_path):
    tiers = opened()
    save(tiers, 10, True)
    save(tiers, 15, False)
    tiers.discard_fast()
    assert tiers.newest_whole() == (15, []), "nothing durable holds it"
    save(tiers, 15, True)
    tiers.wait()
    tiers.discard_fast()
    assert list((tmp_path / "fast").iterdir()) == []


def test_steps_go_on_while_copies_on_the_device_are_saved(opened, monkeypatch):
    """The save returns before Orbax begins, and what it saves is what the arrays were then."""
    tiers = opened(copying=DeviceCopy())
    gate, begun, real = threading.Event(), threading.Event(), Store.save

    def late(store, *given, **named):
        begun.set()
        assert gate.wait(60)
        real(store, *given, **named)

    monkeypatch.setattr(Store, "save", late)
    state, iterator = arrays(7), Counter(7)
    tiers.save(7, state, iterator, {"step": 7})
    assert begun.wait(60)
    assert tiers.committed() == []
    step = jax.jit(lambda state: {"w": state["w"] + 1}, donate_argnums=0)
    for _ in range(3):
        state, iterator.at = step(state), iterator.at + 1
    assert float(state["w"][0]) == 10.0  # three steps were taken meanwhile
    gate.set()
    tiers.wait()
    assert tiers.committed() == [7]
    assert restored(tiers, 7) == (7.0, 7)


def test_the_step_waits_for_the_host_copy_only_where_it_is_asked_to(opened):
    state = arrays(3)
    step = jax.jit(lambda state: {"w": state["w"] * 2}, donate_argnums=0)
    tiers = opened()
    tiers.save(3, state, Counter(3), {})
    state = step(state)
    np.testing.assert_array_equal(state["w"], 6.0)
    tiers.wait()
    assert restored(tiers, 3) == (3.0, 3)


def test_one_tier_is_a_store(tmp_path):
    with open_checkpoints(tmp_path, Checkpoints()) as store:
        assert isinstance(store, Store)
    tiers = open_checkpoints(tmp_path, Checkpoints(copying=DeviceCopy()))
    assert isinstance(tiers, Tiers)
    tiers.close()


def test_a_failed_background_save_is_raised_at_the_next_call(opened, monkeypatch):
    tiers = opened(copying=DeviceCopy())

    def fail(*given, **named):
        raise CheckpointError("the disk is full")

    monkeypatch.setattr(Store, "save", fail)
    tiers.save(7, arrays(7))
    with pytest.raises(CheckpointError, match="the disk is full"):
        tiers.wait()
