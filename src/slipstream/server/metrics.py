"""`/metrics` for Prometheus: counters of speculative decoding by the names that vLLM and llama-server gave them."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from slipstream.core.stats import RoundRecord
from slipstream.engine.worker import Job, Worker

PREFIX = "slipstream"
POSITIONS = 16
"""Draft positions with a counter of their own; deeper ones share the last."""
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1)


class Metrics:
    """Counts what the worker's rounds did and how long clients waited."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.rounds = self._counter("rounds", "Rounds, counted once for each text in them.")
        self.drafts = self._counter("spec_decode_num_drafts", "Drafts that were verified.")
        self.drafted = self._counter("spec_decode_num_draft_tokens", "Draft tokens that were verified.")
        self.accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens that were accepted.")
        self.accepted_at = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens by position.", ("position",)
        )
        self.generated = self._counter("tokens_predicted", "Generated tokens.")
        self.read = self._counter("prompt_tokens", "Prompt tokens that were read.")
        self.cached = self._counter("prompt_tokens_cached", "Prompt tokens that were in the KV cache already.")
        self.seconds = self._counter("round_seconds", "Seconds of rounds by phase.", ("phase",))
        self.plain = self._counter("plain_seconds", "Seconds that plain decoding would have taken for the same tokens.")
        self.requests = self._counter("requests", "Requests by endpoint and status.", ("path", "status"))
        self.first = self._histogram("time_to_first_token_seconds", "From request to first token.", _SECONDS)
        self.each = self._histogram("time_per_output_token_seconds", "Between tokens, mean of a text.", _TOKEN_SECONDS)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(f"{PREFIX}:{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{PREFIX}:{name}", text, buckets=buckets, registry=self.registry)

    def watch(self, worker: Worker) -> None:
        """Gauges that are read when somebody asks."""
        for name, text, read in (
            ("requests_processing", "Texts that are being decoded.", lambda: worker.load.active),
            ("requests_deferred", "Requests that wait.", lambda: worker.load.waiting),
            ("kv_cache_usage_ratio", "Tokens in the KV cache over what it holds.", lambda: worker.kv_usage),
            ("drafters_failed", "Drafters that texts go on without.", lambda: len(worker.engine.failed_drafters)),
            ("tokens_per_second", "As the policy sees it now.", lambda: worker.policy.get("tokens_per_second") or 0.0),
            ("lambda", "Tokens that a second is worth to the policy.", lambda: worker.policy.get("rate") or 0.0),
            ("speed_up", "Estimated, against plain decoding.", lambda: worker.policy.get("estimated_gain") or 1.0),
        ):
            gauge = Gauge(f"{PREFIX}:{name}", text, registry=self.registry)
            gauge.set_function(read)

    def on_round(self, records: Sequence[RoundRecord]) -> None:
        """A round is over; called on the worker's thread."""
        for one in records:
            self.rounds.inc()
            self.generated.inc(one.committed)
            for phase, seconds in one.seconds.items():
                self.seconds.labels(phase).inc(seconds)
            if one.plain is not None:
                self.plain.inc(one.plain)
            if one.drafted:
                self.drafts.inc()
                self.drafted.inc(one.drafted)
                self.accepted.inc(one.accepted)
                for position in range(one.accepted):
                    self.accepted_at.labels(min(position, POSITIONS - 1)).inc()

    def on_first(self, job: Job) -> None:
        """A prompt was read, and the first token of its text is there; called on the worker's thread."""
        timings = job.completion.timings
        self.read.inc(timings.prompt_n)
        self.cached.inc(timings.cache_n)
        if job.waited is not None:
            self.first.observe(job.waited)

    def on_end(self, job: Job) -> None:
        """A text is over, however it ended; called on the worker's thread."""
        completion = job.completion
        if completion.tokens:
            self.each.observe(completion.timings.predicted_seconds / len(completion.tokens))

    def figures(self) -> Iterator[tuple[str, float]]:
        """Every value by name, for tests and people."""
        for family in self.registry.collect():
            for sample in family.samples:
                yield sample.name, sample.value

    async def answer(self, request: Request) -> Response:
        """One request."""
        return Response(generate_latest(self.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
