from slipstream.core.protocols import Segment
from slipstream.policy import CostTable
from slipstream.policy.profile import MISFIT, READ_ROWS, fits, profile
from tests.fakes import FakeModel, FakeRows

TRUE = CostTable({1: 0.030, 4: 0.036, 8: 0.045, 16: 0.080, 32: 0.150})


class TimedModel(FakeModel):
    """A forward takes what a table says, on a clock of its own."""

    def __init__(self, truth: CostTable = TRUE, **options: object) -> None:
        super().__init__(**{"max_rows": 512, "context_length": 1024, **options})  # type: ignore[arg-type]
        self.now, self.truth = 0.0, truth
        self.sizes: list[int] = []

    def timer(self) -> float:
        return self.now

    def forward(self, batch: list[Segment], **options: object) -> list[FakeRows]:  # type: ignore[override]
        rows = sum(len(segment.tokens) for segment in batch)
        self.now += self.truth.seconds(rows)
        self.sizes.append(rows)
        return super().forward(batch, **options)  # type: ignore[arg-type]


def test_a_profile_is_the_model_s_curve_and_leaves_nothing_behind() -> None:
    model = TimedModel()
    table = profile(model, 5.0, model.timer)
    for rows in (1, 2, 4, 5, 8, 16, 32):
        assert abs(table.seconds(rows) / TRUE.seconds(rows) - 1) < 0.01
    assert model.open_sessions == 0


def test_it_takes_about_the_time_it_is_given() -> None:
    model = TimedModel()
    profile(model, 2.0, model.timer)
    assert model.now < 2.5


def test_a_slow_model_is_measured_at_the_sizes_that_matter_most() -> None:
    model = TimedModel(CostTable({1: 1.0, 32: 8.0}))
    table = profile(model, 2.0, model.timer)
    assert sorted(table.points) == [1, 2, 4, 8]
    assert model.now < 20


def test_a_draft_model_is_also_asked_how_fast_it_reads() -> None:
    model = TimedModel()
    assert READ_ROWS in profile(model, 9.0, model.timer, drafts=True).points
    assert READ_ROWS not in profile(TimedModel(), 9.0, TimedModel().timer).points


def test_small_contexts_and_batches_are_respected() -> None:
    for model in (TimedModel(context_length=40), TimedModel(max_rows=4), TimedModel(context_length=8, max_rows=4)):
        profile(model, 1.0, model.timer, drafts=True)
        assert max(model.sizes) <= min(model.max_rows, model.context_length)
        fits(model, CostTable({1: 0.03}), model.timer)


def test_a_remembered_table_fits_as_long_as_its_shape_does() -> None:
    slower = CostTable({rows: 2 * TRUE.seconds(rows) for rows in (1, 4, 8, 32)})
    assert not fits(TimedModel(), slower, TimedModel().timer), "a clock that stands still tells nothing"
    model = TimedModel()
    assert fits(model, slower, model.timer)
    assert abs(slower.seconds(4) / TRUE.seconds(4) - 1) < 0.15, "its speed is brought up to date"
    steep = CostTable({1: 0.030, 4: 0.036 * (1 + 2 * MISFIT), 32: 0.5})
    model = TimedModel()
    assert not fits(model, steep, model.timer)


def test_a_table_from_a_disturbed_moment_does_not_fit() -> None:
    disturbed = CostTable({1: 0.030, 4: 0.036, 8: 0.090, 16: 0.100})
    model = TimedModel()
    assert not fits(model, disturbed, model.timer)
