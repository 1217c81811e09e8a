from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from sparkinfer.host.journal import DIGEST, Journal, JournalRecord, read_journal
from sparkinfer.host.restart import Deaths, Trial


def digest(number: int) -> bytes:
    return number.to_bytes(DIGEST, "big")


class Executor:
    """Plays clients, an engine that runs whole batches, and its deaths: the real bookkeeping without processes."""

    def __init__(self, num_rows: int, poison: set[int], *, batch: int) -> None:
        self.waiting = [digest(number) for number in range(num_rows)]
        self.poison = {digest(number) for number in poison}
        self.batch = batch
        self.deaths = Deaths()
        self.finished: list[bytes] = []

    def live(self) -> JournalRecord | None:
        """One life of the engine; how it died, or None when all is done."""
        trial, finished_before = Trial(self.deaths.suspects), len(self.finished)
        condemned = {bytes.fromhex(d) for d in self.deaths.poisoned}
        self.waiting = [d for d in self.waiting if d not in condemned]
        while self.waiting:
            allowed = trial.admit(self.waiting, is_idle=True)
            inside = [d for d in self.waiting if allowed is None or d in allowed]
            while inside:
                batch, inside = inside[: self.batch], inside[self.batch :]
                if self.poison & set(batch):
                    return JournalRecord(tuple(batch), trial.is_on, len(self.finished) - finished_before)
                for one in batch:
                    self.finished.append(one)
                    self.waiting.remove(one)
                    trial.settle(one)
        return None


@pytest.mark.parametrize("seed", range(20))
def test_poison_rows_are_found_and_all_others_finish(seed: int) -> None:
    chance = random.Random(seed)
    num_rows = chance.randint(1, 400)
    poison = set(chance.sample(range(num_rows), min(num_rows, chance.randint(1, 3))))
    executor = Executor(num_rows, poison, batch=chance.choice([1, 8, 256]))
    while (death := executor.live()) is not None:
        executor.deaths.record(death)
        assert not executor.deaths.is_hopeless(3)
    assert {bytes.fromhex(d) for d in executor.deaths.poisoned} == executor.poison
    assert len(executor.finished) == num_rows - len(poison)
    assert executor.deaths.total <= len(poison) * (math.log2(256) + 3)


def test_one_death_with_one_row_running_does_not_make_it_poison() -> None:
    deaths = Deaths()
    deaths.record(JournalRecord((digest(1),), False, 0))
    assert not deaths.poisoned
    assert Trial(deaths.suspects).admit([digest(1), digest(2)], is_idle=True) == {digest(1)}


def test_deaths_without_progress_are_counted_and_progress_begins_the_count_anew() -> None:
    deaths = Deaths()
    for _ in range(2):
        deaths.record(JournalRecord((digest(1), digest(2)), False, 0))
    assert deaths.barren == 2
    deaths.record(JournalRecord((digest(1),), True, 0))
    assert deaths.poisoned == [digest(1).hex()]
    assert deaths.barren == 0
    for number in range(3):
        deaths.record(JournalRecord((digest(10 + number), digest(20)), False, 0))
    assert deaths.is_hopeless(3)


def test_an_engine_that_dies_of_every_row_blames_the_engine_in_the_end() -> None:
    executor = Executor(64, set(range(64)), batch=8)
    while not executor.deaths.is_hopeless(3):
        death = executor.live()
        assert death is not None
        executor.deaths.record(death)
    assert len(executor.deaths.poisoned) <= 4


def test_other_rows_wait_until_the_suspects_are_settled() -> None:
    trial = Trial([digest(n).hex() for n in range(4)])
    waiting = [digest(n) for n in range(10)]
    assert trial.admit(waiting, is_idle=False) == set()
    first = trial.admit(waiting, is_idle=True)
    assert first == {digest(0), digest(1)}
    assert trial.admit(waiting[2:], is_idle=True) == set()
    trial.settle(digest(0))
    trial.settle(digest(1))
    assert trial.admit(waiting[2:], is_idle=True) == {digest(2)}
    trial.settle(digest(2))
    assert trial.admit(waiting[3:], is_idle=True) == {digest(3)}
    trial.settle(digest(3))
    assert trial.admit(waiting[4:], is_idle=True) is None


def test_suspects_that_nobody_asks_for_hold_nobody_up() -> None:
    assert Trial([digest(99).hex()]).admit([digest(1)], is_idle=False) is None


def test_the_record_survives_the_process(tmp_path: Path) -> None:
    deaths = Deaths(suspects=["aa"], poisoned=["bb"], total=2, barren=1)
    deaths.save(tmp_path / "deaths.json")
    assert Deaths.load(tmp_path / "deaths.json") == deaths
    (tmp_path / "deaths.json").write_text("{ half")
    assert Deaths.load(tmp_path / "deaths.json") == Deaths()


def test_the_journal_is_there_without_being_closed(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write([digest(1), digest(2)], on_trial=True, finished=5)
    assert read_journal(tmp_path / "journal") == JournalRecord((digest(1), digest(2)), True, 5)
    journal.write([digest(3)], on_trial=False, finished=7)
    assert read_journal(tmp_path / "journal") == JournalRecord((digest(3),), False, 7)
    assert read_journal(tmp_path / "none") is None
    journal.close()
