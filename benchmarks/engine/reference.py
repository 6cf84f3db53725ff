"""The tasks in hand-written plain Python: the minimum work of any general simulator.

Each program handles only its own task, so it needs no graph, no paths and no fair sharing.
"""

from __future__ import annotations

import heapq
from math import inf
from typing import Any

from benchmarks.engine.tasks import BACKWARD, BYTES_PER_S, FORWARD, LAYERS, compute_s, delay_s


class Shared:
    """A link that all its transfers share equally; it counts the bytes that each has received."""

    def __init__(self) -> None:
        self.got = self.since = 0.0
        self.heap: list[tuple[float, int, Any]] = []
        self.added = 0

    def _advance(self, now: float) -> None:
        if self.heap:
            self.got += (now - self.since) * BYTES_PER_S / len(self.heap)
        self.since = now

    def add(self, now: float, size: int, who: Any) -> None:
        self._advance(now)
        self.added += 1
        heapq.heappush(self.heap, (self.got + size, self.added, who))

    def next_s(self) -> float:
        if not self.heap:
            return inf
        left = max(self.heap[0][0] - self.got, 0.0)
        return self.since + left * len(self.heap) / BYTES_PER_S

    def pop(self, now: float) -> Any:
        self._advance(now)
        self.got = self.heap[0][0]
        return heapq.heappop(self.heap)[2]


class ParameterServer:
    """The tasks with a parameter server.

    Every transfer shares the server's link with all others in its direction.
    """

    def __init__(self, task: str, n: int, layers: int = LAYERS) -> None:
        self.now, self.events = 0.0, []
        self.layers = layers
        self.forward = [FORWARD[layer % LAYERS] for layer in range(layers)]
        self.backward = self.forward[::-1]
        self.up, self.down = Shared(), Shared()
        self.iterates, self.burst = task == "ps_iter", task == "ps_burst"
        self.ready = [0 if self.iterates else layers] * n
        self.sent, self.received, self.step = [0] * n, [0] * n, [0] * n
        self.compute = compute_s(n, layers).tolist() if self.iterates else []
        for worker in range(n):
            if self.iterates:
                self.events.append((self.compute[worker][0], worker))
            else:
                for size in self.backward if self.burst else self.backward[:1]:
                    self.up.add(0.0, size, worker)
        heapq.heapify(self.events)

    def run(self) -> float:
        events, up, down = self.events, self.up, self.down
        while True:
            computed = events[0][0] if events else inf
            pushed, pulled = up.next_s(), down.next_s()
            now = min(computed, pushed, pulled)
            if now == inf:
                return self.now
            self.now = now
            if computed == now:
                self._computed(heapq.heappop(events)[1])
            elif pushed == now:
                self._pushed(up.pop(now))
            else:
                self._pulled(down.pop(now))

    def _computed(self, worker: int) -> None:
        step = self.step[worker] = self.step[worker] + 1
        if step < 2 * self.layers:
            heapq.heappush(self.events, (self.now + self.compute[worker][step], worker))
        if step > self.layers:
            self.ready[worker] += 1
            if self.ready[worker] == self.sent[worker] + 1:
                self.up.add(self.now, self.backward[self.sent[worker]], worker)

    def _pushed(self, worker: int) -> None:
        sent = self.sent[worker] = self.sent[worker] + 1
        if sent == self.layers:
            if self.iterates:
                self.down.add(self.now, self.forward[0], worker)
        elif sent < self.ready[worker] and not self.burst:
            self.up.add(self.now, self.backward[sent], worker)

    def _pulled(self, worker: int) -> None:
        received = self.received[worker] = self.received[worker] + 1
        if received < self.layers:
            self.down.add(self.now, self.forward[received], worker)


class Ring:
    """A ring: a rank sends as soon as its link is free and it has the data to pass on."""

    def __init__(self, n: int) -> None:
        self.now = 0.0
        self.steps = 2 * (n - 1)
        self.send_s = [size / n / BYTES_PER_S for size in BACKWARD for _ in range(self.steps)]
        self.delay_s = delay_s(n).tolist()
        self.sent, self.received, self.sends = [0] * n, [0] * n, [False] * n
        self.events: list[tuple[float, int]] = []
        for rank in range(n):
            self._send(rank)

    def run(self) -> float:
        events, sent, received, sends = self.events, self.sent, self.received, self.sends
        n, last = len(sent), len(self.send_s)
        while events:
            self.now, rank = heapq.heappop(events)
            right = (rank + 1) % n
            sends[rank] = False
            sent[rank] += 1
            received[right] += 1
            for one in (rank, right):
                if not sends[one] and sent[one] <= received[one] and sent[one] < last:
                    self._send(one)
        return self.now

    def _send(self, rank: int) -> None:
        step = self.sent[rank]
        seconds = self.send_s[step]
        if step % self.steps == 0:
            seconds += self.delay_s[step // self.steps][rank]
        self.sends[rank] = True
        heapq.heappush(self.events, (self.now + seconds, rank))
