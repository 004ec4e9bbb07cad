"""The scenario blackout as a SimPy model: what Relent's simulator is measured beside.

Usage: blackout.py [SECONDS]

The model of the built-in scenario `blackout` with the policy `patient`: Poisson arrivals, one server with a
queue of 500 ms that refuses beyond it, refusals that cost a tenth of a service, 503 for a minute, an
attempt timeout of 1 s, full jitter from 1 s doubling to 32 s, ten retries, a deadline of 300 s.
Requests come for SECONDS (600, as in the scenario). Prints, separated by tabs: requests, successes,
attempts, SimPy's events, and the seconds on a processor.
"""

import random
import sys
import time
from collections import deque

import simpy

RATE, CAPACITY, QUEUE, REJECT_COST = 800.0, 1000.0, 500, 0.1
ONE_WAY, TIMEOUT, DEADLINE = 0.0005, 1.0, 300.0
BEGINS, ENDS = 60.0, 120.0
RETRIES, INITIAL, CEILING = 10, 1.0, 32.0


class Service:
    """First in, first out; a refusal is paid for by the next service."""

    def __init__(self, env, rng):
        self.env, self.rng = env, rng
        self.waiting, self.wakeup, self.busy, self.debt = deque(), env.event(), False, 0.0
        self.attempts = 0
        env.process(self.serve())

    def serve(self):
        while True:
            while not self.waiting:
                self.busy = False
                self.wakeup = self.env.event()
                yield self.wakeup
            self.busy = True
            answered = self.waiting.popleft()
            debt, self.debt = self.debt, 0.0
            yield self.env.timeout(self.rng.expovariate(CAPACITY) + debt)
            answered.succeed(True)

    def enter(self, answered):
        self.attempts += 1
        if BEGINS <= self.env.now < ENDS:
            answered.succeed(False)
        elif len(self.waiting) >= QUEUE:
            self.debt += REJECT_COST / CAPACITY
            answered.succeed(False)
        else:
            self.waiting.append(answered)
            if not self.busy and not self.wakeup.triggered:
                self.wakeup.succeed()


def attempt(env, service, ended):
    """The way there, the service, the way back."""
    yield env.timeout(ONE_WAY)
    answered = env.event()
    service.enter(answered)
    succeeded = yield answered
    yield env.timeout(ONE_WAY)
    ended.succeed(succeeded)


def request(env, service, rng, totals):
    made = env.now
    totals["requests"] += 1
    for retry in range(RETRIES + 1):
        ended = env.event()
        env.process(attempt(env, service, ended))
        left = made + DEADLINE - env.now
        yield ended | env.timeout(min(TIMEOUT, left))
        if ended.triggered and ended.value:
            totals["successes"] += 1
            return
        wait = rng.random() * min(CEILING, INITIAL * 2**retry)
        if retry == RETRIES or env.now + wait >= made + DEADLINE:
            return
        yield env.timeout(wait)


def crowd(env, service, rng, totals, lasts):
    while True:
        yield env.timeout(rng.expovariate(RATE))
        if env.now >= lasts:
            return
        env.process(request(env, service, rng, totals))


def main():
    lasts = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    env, totals = simpy.Environment(), {"requests": 0, "successes": 0}
    service = Service(env, random.Random(1))
    env.process(crowd(env, service, random.Random(2), totals, lasts))
    started, events = time.process_time(), 0
    while env.peek() < float("inf"):
        env.step()
        events += 1
    took = time.process_time() - started
    print(totals["requests"], totals["successes"], service.attempts, events, took, sep="\t")


if __name__ == "__main__":
    main()
