"""Courses of events that several actors make together, and that single steps would rarely form."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.support.engine import InterruptedSearch, payload
from tests.support.machine.base import PROCESSORS, RULES, SETTINGS, conversations, pick, processors, skews
from tests.support.machine.operator import Operators
from tests.support.machine.processor import Processors
from tests.support.machine.watchdog import Watchdog


class Courses(Processors, Watchdog, Operators):
    @rule(which=pick, processor=processors, then=st.sampled_from(("dies", "completes", "fails")))
    def conversation_processor_stalls(self, which: int, processor: str, then: str) -> None:
        """Let a slow run's batch be given to another run; then the slow one goes on."""
        self._take_all(processor)
        if not self.runs:
            return
        run = self.runs[which % len(self.runs)]
        self.engine.clock.advance(SETTINGS.token_ms + 1)
        self.watchdog(0, False)
        self._take_all(processor)
        if then == "completes":
            self._emit(run)
            self._complete(run, 0, False)
        elif then == "fails":
            self._fail(run, 100, 0, False)
        else:
            self.runs.remove(run)

    @rule(processor=processors, limit=st.sampled_from((1, 100)), invoked=st.booleans(), skew=skews)
    def processor_dies_with_its_claims(self, processor: str, limit: int, invoked: bool, skew: int) -> None:
        """Kill a processor after its claim, and let the other succeed it. If `invoked`, its invocations come late."""
        self.works(processor, limit, 0, 0, False, crash=not invoked)
        self.engine.clock.advance(SETTINGS.lease_ms)
        self.works(next(each for each in PROCESSORS if each != processor), 100, 0, skew, False, False)

    def _take_all(self, processor: str, skew: int = 0) -> None:
        self.works(processor, 100, 0, skew, False, False)
        while self.invocations:
            self.take(0, False, False, skew, False)

    @rule(
        processor=processors, failures=st.integers(0, 2), delay=st.integers(0, 5000),
        slow_ms=st.sampled_from((0, 20_000)), skew=skews,
    )  # fmt: skip
    def batches_go_out(self, processor: str, failures: int, delay: int, slow_ms: int, skew: int) -> None:
        """Claim and take what is due; after some failures, emit and complete it.

        If that is slow, authors go on writing meanwhile and the processor dies.
        """
        for attempt in range(failures + 1):
            self._take_all(processor, skew)
            if slow_ms:
                for name in sorted({run.conversation for run in self.runs}):
                    self.burst(name, RULES[0], 1, skew, False)
                self.engine.clock.advance(slow_ms)
            for run in list(self.runs):
                if attempt < failures:
                    self._fail(run, delay, skew, False)
                else:
                    self._emit(run)
                    self._complete(run, skew, False)

    @rule(name=conversations, processor=processors, deletes=st.booleans())
    def a_message_changes_long_after_its_batch(self, name: str, processor: str, deletes: bool) -> None:
        begin = len(self.accepted[self.life(name)])
        for _ in range(SETTINGS.max_emitted + 1):
            self.burst(name, RULES[4], 1, 0, False)
            self.batches_go_out(processor, 0, 0, 0, 0)
        if len(self.accepted[self.life(name)]) > begin:
            self.edit_or_delete(name, begin, "its own", deletes, False)

    @precondition(lambda self: self.sent)
    @rule(
        name=conversations, which=pick, among=st.sampled_from(("here", "here", "its own")), deletes=st.booleans(),
        looks=st.integers(1, 5), then=st.sampled_from(("taken", "out", "written", "deleted", "cancelled")),
        processor=processors,
    )  # fmt: skip
    def a_conversation_moves_while_a_message_is_looked_for(
        self, name: str, which: int, among: str, deletes: bool, looks: int, then: str, processor: str
    ) -> None:
        """Search for a message from the newest to the oldest, one in each call, and do `then` after some calls."""
        message_id = self._chosen(name, which, among)

        def happens() -> None:
            if then == "taken":
                self._take_all(processor)
            elif then == "out":
                self.batches_go_out(processor, 0, 0, 0, 0)
            elif then == "written":
                self.burst(name, RULES[0], 2, 0, False)
            elif then == "deleted":
                self.edit_or_delete(name, which + 1, "here", True, False)
            else:
                self.cancel(name, 0, False, True)

        store = self.engine.another_store(
            self.store.settings._replace(search_bytes=1),
            connection=InterruptedSearch(self.engine.client, {looks: happens}, is_misled=True),
        )
        if deletes:
            outcome: object = store.delete_message(name, message_id)
        else:
            outcome = store.edit_message(name, message_id, payload=payload(message_id, "edited"))
        self._changed(name, message_id, deletes, outcome)
