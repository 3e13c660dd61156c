"""The story in three chapters: the life of a message, a circuit that trips and recovers, and one that freezes.

Every printed number comes from the run or from the config. The promises of the rules are checked on the way.
"""

from dataclasses import dataclass
from http import HTTPStatus

from holdfast.demo.demo_gateway import DemoGateway
from holdfast.demo.endpoints import Behaviour, Receiver, Sender
from holdfast.demo.narrator import Narrator, moment_of, promise
from holdfast.events import Event

SECOND, HOUR, DAY = 1_000, 3_600_000, 86_400_000

MAX_DELAY = 5_000
"""Milliseconds by which an attempt may be late: the machine may be busy."""
FIRST_ORDERS, ACCEPTED_ORDERS, MORE_ORDERS = 150, 30, 110
ORDER_INTERVAL = 6 * HOUR
RETRY_NOTES = {
    1: ". Retry 1 is due in",
    2: ". The wait doubles:",
    3: ". It doubles again:",
    4: ", which is never followed. And again:",
}
SLOW_START_STEPS = (1, 2, 4, 8, 16)


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
    def __init__(self, narrator: Narrator, gateway: DemoGateway, sender: Sender, shop: Receiver, crm: Receiver) -> None:
        self._narrator = narrator
        self._gateway = gateway
        self._sender = sender
        self._shop = shop
        self._crm = crm
        self._key = f"{crm.name}:80"
        self._config = gateway.config
        self._orders: list[str] = []

    async def run(self) -> Summary:
        output, gateway = self._narrator.output, self._gateway
        timeout, freeze_after = span(self._config.delivery.timeout), self._config.circuit.freeze_after
        terms = (
            "Everything is real except the clock and two host names. The rules are the defaults, except that an ",
            f"attempt times out after {timeout}, not 30 s, and a host can freeze after {freeze_after} failures, not ",
            "2,000. Lines with $ show what an operator would type.",
        )
        output.begin(f"http://{gateway.status}/", "".join(terms))
        await self._message()
        await self._circuit()
        await self._freeze()
        return await self._sum_up()

    # -- one: a message ------------------------------------------------------------------------------------------------

    async def _message(self) -> None:
        narrator, target = self._narrator, f"http://{self._shop.name}/orders"
        self._shop.behaviour = Behaviour.REFUSING
        narrator.output.heading("The life of a message")
        await narrator.say("app", f"sends an order: POST http://{self._sender.ingest}/{target}")
        due = narrator.clock.now()
        id = await self._sender.send(target)
        await narrator.say("queued", f"202: {id} is on disk, fsynced.")
        for behaviour in (Behaviour.CRASHING, Behaviour.HANGING, Behaviour.REDIRECTING, Behaviour.HEALTHY):
            failure = await narrator.wait_for("attempt_failed", message=id)
            self._check_due(failure, due)
            due = moment_of(failure, "next_attempt_at")
            await self._say_failure(failure, due - moment_of(failure))
            self._shop.behaviour = behaviour
        delivery = await narrator.wait_for("delivered", message=id)
        self._check_due(delivery, due)
        left = self._config.retry.max_retries - delivery["number"] + 1
        text = f"Attempt {delivery['number']}: {outcome(delivery)}, with {left} retries left. The app never noticed."
        await narrator.say("delivered", text, moment_of(delivery))
        await narrator.show_command(f"$ holdfast messages show {id}")

    async def _say_failure(self, failure: Event, wait: int) -> None:
        number = failure["number"]
        text = f"Attempt {number}: {outcome(failure)}{RETRY_NOTES[number]} {span(wait)}."
        await self._narrator.say("retrying", text, moment_of(failure))

    # -- two: a circuit ------------------------------------------------------------------------------------------------

    async def _circuit(self) -> None:
        narrator, crm = self._narrator, self._crm
        narrator.output.heading("A circuit trips and recovers")
        text = f"sends {FIRST_ORDERS} orders to {crm.name}, which accepts {ACCEPTED_ORDERS}, then answers 503."
        await narrator.say("app", text)
        crm.overloaded_after = ACCEPTED_ORDERS
        await self._order(FIRST_ORDERS)
        trip = await self._trips()
        await narrator.show_command(f"$ holdfast circuits {crm.name}")
        await self._while_disabled()
        await self._failing_probes(moment_of(trip))
        crm.behaviour = Behaviour.HEALTHY
        crm.concurrency.clear()
        healed = await narrator.wait_for("circuit_changed", host=self._key, after="enabled")
        probe = await narrator.wait_for("delivered", host=self._key, kind="probe")
        text = f"{crm.name} is fixed. The third probe (order {self._number(probe)}) gets {probe['status']}."
        await narrator.say("enabled", text, moment_of(healed))
        await self._check_slow_start(probes=1)

    async def _failing_probes(self, last: int) -> None:
        """Waits for two probes that fail. `last` is the moment from which the wait for the first one counts."""
        narrator, every, probed = self._narrator, self._config.circuit.probe_every, ""
        for text in ("Every 10 min one probe, with the oldest waiting order", "The next probe takes the next order"):
            due = moment_of(await self._gateway.queries.circuit(self._key), "next_probe_at")
            promise(
                abs(due - last - every) <= MAX_DELAY, f"a probe {span(every)} after the last one", f"{due - last} ms"
            )
            probe = await narrator.wait_for("attempt_failed", host=self._key, kind="probe")
            last = self._check_due(probe, due)
            promise(probe["message"] != probed, "another message in the next probe", probe)
            probed = probe["message"]
            await narrator.say("probe", f"{text} ({self._number(probe)}): {probe['status']}.", moment_of(probe))

    async def _trips(self) -> Event:
        rules = self._config.circuit
        trip = await self._narrator.wait_for("circuit_changed", host=self._key, after="disabled")
        attempts, failures = trip["window_attempts"], trip["window_failures"]
        kept = attempts > rules.min_attempts and failures / attempts > rules.failure_rate
        promise(kept and trip["reason"] == "failure_rate", "a trip by the failure rate", trip)
        rule = f"more than {rules.failure_rate:.0%}, of more than {rules.min_attempts}"
        text = f"{failures} of {attempts} attempts in an hour failed: {rule}."
        await self._narrator.say("disabled", text, moment_of(trip))
        return trip

    async def _while_disabled(self) -> None:
        narrator = self._narrator
        await self._order(1)
        waiting = (await self._gateway.queries.circuit(self._key))["waiting"]
        await narrator.say("held", f"{waiting} orders wait. New ones still get a 202, and no retry is used up.")
        await narrator.show_command(f"$ holdfast why {self._orders[-1]}")
        other = await self._sender.send(f"http://{self._shop.name}/orders")
        delivery = await narrator.wait_for("delivered", message=other)
        took = f"{delivery['duration'] * 1000:.0f} ms"
        await narrator.say("delivered", f"An order to {self._shop.name} in {took}: other hosts go on.")

    async def _check_slow_start(self, *, probes: int) -> None:
        """Waits until all waiting orders are delivered, and checks the slow start after the first `probes` requests."""
        narrator, crm = self._narrator, self._crm
        while missing := [id for id in self._orders if id not in crm.delivered]:
            await narrator.wait_for("delivered", message=missing[-1])
        concurrency = crm.concurrency[probes:]
        for number, at_once in enumerate(concurrency, 1):
            successes = number - at_once
            limit = next((step for step in SLOW_START_STEPS if successes < 2 * step - 1), SLOW_START_STEPS[-1])
            promise(at_once <= limit, f"at most {limit} at once after {successes} successes", at_once)
        seen = ", ".join(str(step) for step in SLOW_START_STEPS if step <= max(concurrency))
        await narrator.say("delivered", f"All {len(concurrency)} waiting orders, in slow start: {seen} at a time.")

    # -- three: a frozen circuit ---------------------------------------------------------------------------------------

    async def _freeze(self) -> None:
        narrator, crm = self._narrator, self._crm
        narrator.output.heading("A circuit freezes and is unfrozen")
        await narrator.wait_until(narrator.clock.now() + 2 * HOUR)
        crm.behaviour = Behaviour.GONE
        await narrator.say("app", f"sends {MORE_ORDERS} more. Now {crm.name} answers 410 to all, for days.")
        await self._order(MORE_ORDERS)
        trip = await self._trips()
        await self._days_pass(moment_of(trip))
        await self._stays_frozen()
        await self._unfreeze()

    async def _days_pass(self, since: int) -> None:
        """Sends orders while probes fail, until the circuit is frozen."""
        narrator, probes = self._narrator, self._narrator.attempts["probe"]
        await narrator.say("app", "sends an order every 6 hours, and gets a 202 for each.")
        next_order, said_dead = since + ORDER_INTERVAL, False
        while not (frozen := await narrator.wait_for("circuit_changed", by=next_order, host=self._key, after="frozen")):
            dead = self._gateway.counters.dead["expired"]
            if dead >= MORE_ORDERS and not said_dead:
                said_dead = True
                await self._say_expired(dead, moment_of(narrator.latest["messages_expired"]))
            elif (next_order - since) % DAY == 0:
                failed = narrator.attempts["probe"] - probes
                await narrator.say("probe", f"{failed} probes have failed; {self._crm.name} gets nothing else.")
            await self._order(1)
            next_order += ORDER_INTERVAL
        promise(frozen["reason"] == "silence", "a freeze by silence", frozen)
        await self._say_frozen(frozen)

    async def _say_frozen(self, frozen: Event) -> None:
        rules, failures = self._config.circuit, frozen["consecutive_failures"]
        last_success = moment_of(await self._gateway.queries.circuit(self._key), "last_success_at")
        late = moment_of(frozen) - last_success - rules.freeze_silence
        promise(
            0 < late < rules.probe_every + MAX_DELAY, "the freeze with the first failure after 72 h", f"{late} ms after"
        )
        hours = rules.freeze_silence // HOUR
        text = f"{failures} failures in a row, more than {rules.freeze_after}; no success for more than {hours} h."
        await self._narrator.say("frozen", text, moment_of(frozen))

    async def _say_expired(self, number: int, at: int) -> None:
        age, kept = span(self._config.retry.expire_after), self._config.retention.dead // DAY
        await self._narrator.say("dead", f"{number} orders waited {age}: now they are dead, kept for {kept} days.", at)
        await self._narrator.show_command(f"$ holdfast dead list --host {self._crm.name}")

    async def _stays_frozen(self) -> None:
        narrator, before = self._narrator, self._crm.requests
        await narrator.wait_until(narrator.clock.now() + DAY)
        promise(self._crm.requests == before, "nothing sent to a frozen host", self._crm.requests - before)
        self._crm.behaviour = Behaviour.HEALTHY
        await narrator.say("frozen", f"No request for a day, not even a probe. Meanwhile {self._crm.name} is back.")

    async def _unfreeze(self) -> None:
        narrator = self._narrator
        self._crm.concurrency.clear()
        await narrator.show_command(f"$ holdfast unfreeze {self._crm.name} --replay-dead")
        done = await self._gateway.actions.unfreeze(self._crm.name, replay_dead=True)
        promise(done["changed"], "the circuit to be enabled", done)
        await narrator.say(
            "enabled", f"By the operator. {done['replayed']} dead messages are replayed, with all retries."
        )
        await self._check_slow_start(probes=0)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _sum_up(self) -> Summary:
        narrator, counters = self._narrator, self._gateway.counters
        await self._gateway.dispatcher.wait_quiet()
        await narrator.wait_for_deliveries(counters.delivered)
        store = await self._gateway.store.statistics()
        promise(store.waiting == store.dead == 0, "nothing left waiting or dead", store)
        lost = set(self._sender.sent) - self._crm.delivered - self._shop.delivered
        promise(not lost, "every accepted webhook at its receiver", lost)
        attempts, probes = sum(counters.outcomes.values()), narrator.attempts["probe"]
        promise(counters.delivered == counters.accepted, f"{counters.accepted} deliveries", counters.delivered)
        return Summary(counters.accepted, counters.delivered, attempts, probes, narrator.simulated, narrator.took)

    # -- for all chapters ----------------------------------------------------------------------------------------------

    async def _order(self, number: int) -> None:
        self._orders += [await self._sender.send(f"http://{self._crm.name}/orders") for _ in range(number)]

    def _number(self, event: Event) -> int:
        """The number of the event's order."""
        return self._sender.sent.index(event["message"]) + 1

    def _check_due(self, attempt: Event, due: int) -> int:
        """Checks that an attempt began when it was due, and returns that moment."""
        began = moment_of(attempt) - round(float(attempt["duration"]) * 1000)
        promise(
            0 <= began - due <= MAX_DELAY, f"attempt {attempt['number']} when it was due", f"{began - due} ms after"
        )
        return began


def span(ms: int) -> str:
    """A duration in the two largest units: "1 min 25 s", "10 min", "48 h 13 min"."""
    seconds = round(ms / SECOND)
    if seconds < 3_600:
        parts = ((seconds // 60, "min"), (seconds % 60, "s"))
    else:
        parts = ((seconds // 3_600, "h"), (seconds % 3_600 // 60, "min"))
    return " ".join(f"{amount} {unit}" for amount, unit in parts if amount) or "0 s"


def outcome(event: Event) -> str:
    """The result of an attempt: the status and its phrase, or the error."""
    status = event.get("status")
    return str(event["detail"]) if status is None else f"{status} {HTTPStatus(status).phrase}"
