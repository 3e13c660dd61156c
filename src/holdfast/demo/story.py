"""The story in three acts: the life of a message, a circuit that trips and heals, and one that freezes.

Every number that is told is read from the run itself or from the config; what the rules promise is checked on the way.
"""

from dataclasses import dataclass

from holdfast.demo.promise import promise
from holdfast.demo.receiver import Mood, Receiver
from holdfast.demo.stage import Stage, moment_of
from holdfast.demo.wording import DAY, HOUR, outcome, span
from holdfast.events import Event

LATE = 5_000
"""Milliseconds that an attempt may begin after it was due: this machine may be busy."""
FIRST_ORDERS, TAKEN, MORE_ORDERS = 150, 30, 110
ORDER_EVERY = 6 * HOUR
NOTES = {
    1: ". Retry 1 is due in",
    2: ". The wait doubles:",
    3: ". It doubles again:",
    4: ", which is never followed. And again:",
}
STEPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Summary:
    """Times in seconds."""

    accepted: int
    delivered: int
    attempts: int
    probes: int
    simulated: float
    took: float


class Story:
    def __init__(self, stage: Stage, shop: Receiver, crm: Receiver) -> None:
        self._stage = stage
        self._shop = shop
        self._crm = crm
        self._key = f"{crm.name}:80"
        self._config = stage.gateway.config
        self._orders: list[str] = []

    async def tell(self) -> Summary:
        teller, gateway = self._stage.teller, self._stage.gateway
        timeout, freeze_after = span(self._config.delivery.timeout), self._config.circuit.freeze_after
        terms = (
            "Only the clock and two names are not real. The rules are the defaults, but for an attempt's deadline of ",
            f"{timeout} instead of 30 s, and {freeze_after} failures instead of 2,000 before a host can freeze. ",
            "After $ stands what an operator would type.",
        )
        teller.begin(f"http://{gateway.status}/", "".join(terms))
        await self._message()
        await self._circuit()
        await self._freeze()
        return await self._sum_up()

    # -- one: a message ------------------------------------------------------------------------------------------------

    async def _message(self) -> None:
        stage, target = self._stage, f"http://{self._shop.name}/orders"
        self._shop.mood = Mood.REFUSING
        stage.teller.heading("The life of a message")
        await stage.say("app", f"sends an order: POST http://{stage.sender.ingest}/{target}")
        due = stage.clock.now()
        id = await stage.sender.send(target)
        await stage.say("queued", f"202: {id} is on disk, fsynced.")
        for mood in (Mood.CRASHING, Mood.HANGING, Mood.REDIRECTING, Mood.FINE):
            failure = await stage.hear("attempt_failed", message=id)
            self._was_due(failure, due)
            due = moment_of(failure, "next_attempt_at")
            await self._say_failure(failure, due - moment_of(failure))
            self._shop.mood = mood
        delivery = await stage.hear("delivered", message=id)
        self._was_due(delivery, due)
        left = self._config.retry.max_retries - delivery["number"] + 1
        text = f"Attempt {delivery['number']}: {outcome(delivery)}, with {left} retries left. The app never noticed."
        await stage.say("delivered", text, moment_of(delivery))
        await stage.show(f"$ holdfast messages show {id}")

    async def _say_failure(self, failure: Event, wait: int) -> None:
        number = failure["number"]
        text = f"Attempt {number}: {outcome(failure)}{NOTES[number]} {span(wait)}."
        await self._stage.say("retrying", text, moment_of(failure))

    # -- two: a circuit ------------------------------------------------------------------------------------------------

    async def _circuit(self) -> None:
        stage, crm = self._stage, self._crm
        stage.teller.heading("A circuit trips, and heals")
        await stage.say("app", f"sends {FIRST_ORDERS} orders to {crm.name}, which takes {TAKEN}, then answers 503.")
        crm.patience = TAKEN
        await self._order(FIRST_ORDERS)
        trip = await self._trips()
        await stage.show(f"$ holdfast circuits {crm.name}")
        await self._while_disabled()
        await self._probes(moment_of(trip))
        crm.mood = Mood.FINE
        crm.watch()
        healed = await stage.hear("circuit_changed", host=self._key, after="enabled")
        probe = await stage.hear("delivered", host=self._key, kind="probe")
        text = f"{crm.name} is repaired. The third probe, order {self._number(probe)}, gets {probe['status']}."
        await stage.say("enabled", text, moment_of(healed))
        await self._drains(probes=1)

    async def _probes(self, last: int) -> None:
        """The first two fail; `last` is the moment that the first one's wait counts from."""
        stage, every, probed = self._stage, self._config.circuit.probe_every, ""
        for text in ("One probe every 10 min, with the oldest that waits", "The next one with the next in line"):
            due = moment_of(await stage.gateway.queries.circuit(self._key), "next_probe_at")
            promise(abs(due - last - every) <= LATE, f"a probe {span(every)} after the last one", f"{due - last} ms")
            probe = await stage.hear("attempt_failed", host=self._key, kind="probe")
            last = self._was_due(probe, due)
            promise(probe["message"] != probed, "another message in the next probe", probe)
            probed = probe["message"]
            await stage.say("probe", f"{text}, order {self._number(probe)}: {probe['status']}.", moment_of(probe))

    async def _trips(self) -> Event:
        rules = self._config.circuit
        trip = await self._stage.hear("circuit_changed", host=self._key, after="disabled")
        attempts, failures = trip["window_attempts"], trip["window_failures"]
        kept = attempts > rules.min_attempts and failures / attempts > rules.failure_rate
        promise(kept and trip["reason"] == "failure_rate", "a trip by the failure rate", trip)
        rule = f"more than {rules.failure_rate:.0%}, of more than {rules.min_attempts}"
        text = f"{failures} of {attempts} attempts in an hour failed: {rule}."
        await self._stage.say("disabled", text, moment_of(trip))
        return trip

    async def _while_disabled(self) -> None:
        stage = self._stage
        await self._order(1)
        waiting = (await stage.gateway.queries.circuit(self._key))["waiting"]
        await stage.say("held", f"{waiting} wait. New ones still get their 202, and no retry is used up.")
        await stage.show(f"$ holdfast why {self._orders[-1]}")
        other = await stage.sender.send(f"http://{self._shop.name}/orders")
        delivery = await stage.hear("delivered", message=other)
        took = f"{delivery['duration'] * 1000:.0f} ms"
        await stage.say("delivered", f"An order to {self._shop.name} in {took}: other hosts go on.")

    async def _drains(self, *, probes: int) -> None:
        """Everything that waits for the circuit is delivered, in slow start; `probes` came before that."""
        stage, crm = self._stage, self._crm
        while missing := [id for id in self._orders if id not in crm.taken]:
            await stage.hear("delivered", message=missing[-1])
        beside = crm.beside[probes:]
        for number, at_once in enumerate(beside, 1):
            successes = number - at_once
            limit = next((step for step in STEPS if successes < 2 * step - 1), STEPS[-1])
            promise(at_once <= limit, f"at most {limit} at once after {successes} successes", at_once)
        seen = ", ".join(str(step) for step in STEPS if step <= max(beside))
        await stage.say("delivered", f"All {len(beside)} that waited, in slow start: {seen} at a time.")

    # -- three: a frozen circuit ---------------------------------------------------------------------------------------

    async def _freeze(self) -> None:
        stage, crm = self._stage, self._crm
        stage.teller.heading("A circuit freezes, and is unfrozen")
        await stage.wait_until(stage.clock.now() + 2 * HOUR)
        crm.mood = Mood.GONE
        await stage.say("app", f"sends {MORE_ORDERS} more. Now {crm.name} is gone: 410 to all, for days.")
        await self._order(MORE_ORDERS)
        trip = await self._trips()
        await self._days_pass(moment_of(trip))
        await self._stays_frozen()
        await self._unfreeze()

    async def _days_pass(self, since: int) -> None:
        """Orders go on coming and probes go on failing, until the circuit is frozen."""
        stage, probes = self._stage, self._stage.attempts["probe"]
        await stage.say("app", "goes on with an order every 6 hours, and a 202 for each.")
        next_order, told_of_dead = since + ORDER_EVERY, False
        while not (frozen := await stage.hear("circuit_changed", by=next_order, host=self._key, after="frozen")):
            dead = stage.gateway.counters.dead["expired"]
            if dead >= MORE_ORDERS and not told_of_dead:
                told_of_dead = True
                await self._say_expired(dead, moment_of(stage.latest["messages_expired"]))
            elif (next_order - since) % DAY == 0:
                failed = stage.attempts["probe"] - probes
                await stage.say("probe", f"{failed} probes have failed; {self._crm.name} gets nothing else.")
            await self._order(1)
            next_order += ORDER_EVERY
        promise(frozen["reason"] == "silence", "a freeze by silence", frozen)
        await self._say_frozen(frozen)

    async def _say_frozen(self, frozen: Event) -> None:
        rules, failures = self._config.circuit, frozen["consecutive_failures"]
        last_success = moment_of(await self._stage.gateway.queries.circuit(self._key), "last_success_at")
        late = moment_of(frozen) - last_success - rules.freeze_silence
        promise(0 < late < rules.probe_every + LATE, "the freeze with the first failure after 72 h", f"{late} ms after")
        hours = rules.freeze_silence // HOUR
        text = f"{failures} failures in a row, more than {rules.freeze_after}; no success for more than {hours} h."
        await self._stage.say("frozen", text, moment_of(frozen))

    async def _say_expired(self, number: int, at: int) -> None:
        age, kept = span(self._config.retry.expire_after), self._config.retention.dead // DAY
        await self._stage.say("dead", f"{number} orders waited {age}: dead letters now, kept for {kept} days.", at)
        await self._stage.show(f"$ holdfast dead list --host {self._crm.name}")

    async def _stays_frozen(self) -> None:
        stage, before = self._stage, self._crm.requests
        await stage.wait_until(stage.clock.now() + DAY)
        promise(self._crm.requests == before, "nothing sent to a frozen host", self._crm.requests - before)
        self._crm.mood = Mood.FINE
        await stage.say("frozen", f"No request for a day, not even a probe. {self._crm.name} is back meanwhile.")

    async def _unfreeze(self) -> None:
        stage = self._stage
        self._crm.watch()
        await stage.show(f"$ holdfast unfreeze {self._crm.name} --replay-dead")
        done = await stage.gateway.actions.unfreeze(self._crm.name, replay_dead=True)
        promise(done["changed"], "the circuit to be enabled", done)
        await stage.say(
            "enabled", f"By the operator. {done['replayed']} dead letters begin a new life, with all retries."
        )
        await self._drains(probes=0)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _sum_up(self) -> Summary:
        stage, counters = self._stage, self._stage.gateway.counters
        await stage.gateway.dispatcher.wait_quiet()
        await stage.hear_out(counters.delivered)
        store = await stage.gateway.store.statistics()
        promise(store.waiting == store.dead == 0, "nothing left waiting or dead", store)
        lost = set(stage.sender.sent) - self._crm.taken - self._shop.taken
        promise(not lost, "every accepted webhook at its receiver", lost)
        attempts, probes = sum(counters.outcomes.values()), stage.attempts["probe"]
        promise(counters.delivered == counters.accepted, f"{counters.accepted} deliveries", counters.delivered)
        return Summary(counters.accepted, counters.delivered, attempts, probes, stage.simulated, stage.took)

    # -- what all acts need --------------------------------------------------------------------------------------------

    async def _order(self, number: int) -> None:
        self._orders += await self._stage.sender.send_many(number, f"http://{self._crm.name}/orders")

    def _number(self, event: Event) -> int:
        """The order that an event is about."""
        return self._stage.sender.sent.index(event["message"]) + 1

    def _was_due(self, attempt: Event, due: int) -> int:
        """An attempt began when it was due; returns that moment."""
        began = moment_of(attempt) - round(float(attempt["duration"]) * 1000)
        promise(0 <= began - due <= LATE, f"attempt {attempt['number']} when it was due", f"{began - due} ms after")
        return began
