"""Settings: budgets by rows, and what a plan makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dmliv.errors import InputError
from dmliv.nets.device import on_device, resolve_device, single_thread
from dmliv.nets.settings import ByRows, NetworkSettings
from dmliv.nets.stacked import StackedMLP

PAPER_DROPOUT = ByRows(factor=1000, shift=5000)
PAPER_EPOCHS = ByRows(factor=500_000, offset=400)


class TestByRows:
    @pytest.mark.parametrize("n_rows", [1000, 2000, 5000, 10_000])
    def test_dropout_of_the_paper(self, n_rows: int) -> None:
        assert PAPER_DROPOUT.at(n_rows) == 1000 / (5000 + n_rows)

    @pytest.mark.parametrize(("n_rows", "epochs"), [(1000, 900), (2000, 650), (5000, 500), (10_000, 450)])
    def test_epochs_of_the_paper(self, n_rows: int, epochs: int) -> None:
        assert PAPER_EPOCHS.at(n_rows) == epochs
        assert NetworkSettings(epochs=PAPER_EPOCHS).plan(n_rows).epochs == epochs

    def test_power_and_bounds(self) -> None:
        setting = ByRows(factor=800, power=0.5, low=5, high=60)
        assert setting.at(400) == 40
        assert setting.at(1) == 60
        assert setting.at(10**9) == 5


class TestNetworkSettings:
    def test_plan_carries_the_settings(self) -> None:
        settings = NetworkSettings(
            epochs=3,
            batch_size=ByRows(factor=1e4),
            learning_rate=ByRows(factor=1.0),
            weight_decay=0.5,
            schedule="constant",
            warmup=0.3,
            clip_norm=2.0,
            patience=4,
        )
        plan = settings.plan(500)
        assert (plan.epochs, plan.batch_size, plan.learning_rate) == (3, 20, 0.002)
        assert (plan.weight_decay, plan.schedule, plan.warmup) == (0.5, "constant", 0.3)
        assert (plan.clip_norm, plan.patience) == (2.0, 4)

    def test_budgets_never_fall_to_zero(self) -> None:
        plan = NetworkSettings(epochs=ByRows(factor=1.0), batch_size=ByRows(factor=1.0)).plan(1000)
        assert (plan.epochs, plan.batch_size) == (1, 1)

    @pytest.mark.parametrize(
        ("layers", "rates"), [(None, (0.1, 0.1, 0.1)), (2, (0.1, 0.1, 0.0)), (0, (0.0, 0.0, 0.0))]
    )
    def test_dropout_after_the_first_layers(self, layers: int | None, rates: tuple[float, ...]) -> None:
        settings = NetworkSettings(dropout=PAPER_DROPOUT, dropout_layers=layers)
        assert settings.dropout_rates(5000) == rates

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"hidden": ()}, "at least one hidden layer"),
            ({"hidden": (8, 0)}, "positive width"),
            ({"encodings": ()}, "at least one encoding"),
            ({"validation_fraction": 0.0}, "validation fraction between 0 and 1, got 0.0"),
            ({"validation_fraction": 1.0}, "validation fraction between 0 and 1, got 1.0"),
            ({"rate_factors": ()}, "positive learning-rate factors"),
            ({"rate_factors": (1.0, 0.0)}, "positive learning-rate factors"),
            ({"dropout": -0.1}, r"dropout probability in \[0, 1\), got -0.1"),
            ({"dropout": 1.0}, r"dropout probability in \[0, 1\), got 1.0"),
            ({"dropout": 1}, r"dropout probability in \[0, 1\), got 1"),
        ],
    )
    def test_settings_that_cannot_work(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            NetworkSettings(**change)

    def test_dropout_by_rows_stays_a_probability(self) -> None:
        """Few rows send the formula past one; that is the user's number to correct, not a crash later on."""
        settings = NetworkSettings(dropout=ByRows(factor=1000))
        assert settings.dropout_rates(5000) == (0.2, 0.2, 0.2)
        with pytest.raises(InputError, match="dropout"):
            settings.dropout_rates(500)

    def test_every_accepted_dropout_can_be_used(self) -> None:
        """Probabilities are rounded to 1/256; the largest ones must not round to dropping everything."""
        settings = NetworkSettings(hidden=(4,), dropout=0.999)
        net = StackedMLP(
            1,
            (2, 4, 1),
            dropout=settings.dropout_rates(100),
            generator=np.random.default_rng(0),
            device=torch.device("cpu"),
        ).train()
        assert torch.isfinite(net(torch.ones(1, 5, 2))).all()


class TestDevice:
    def test_names(self) -> None:
        assert resolve_device("cpu").type == "cpu"
        assert resolve_device("auto").type in {"cpu", "cuda", "mps"}

    @pytest.mark.parametrize("name", ["tpu-of-the-future", "cuda:99", ""])
    def test_unknown_devices(self, name: str) -> None:
        with pytest.raises(InputError, match=f"Expected a device torch can use.*got '{name}'"):
            resolve_device(name)

    def test_arrays_are_shared_with_the_cpu(self) -> None:
        values = np.arange(4, dtype=np.float32)
        tensor = on_device(values, torch.device("cpu"))
        values[0] = 7.0
        assert tensor.tolist() == [7.0, 1.0, 2.0, 3.0]

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_arrays_arrive_on_an_accelerator(self) -> None:
        values = np.arange(1_000_000, dtype=np.float32)
        tensor = on_device(values, resolve_device("cuda"))
        assert tensor.device.type == "cuda"
        np.testing.assert_array_equal(tensor.cpu().numpy(), values)

    def test_threads_are_restored(self) -> None:
        before = torch.get_num_threads()

        def fail() -> None:
            with single_thread():
                assert torch.get_num_threads() == 1
                raise RuntimeError("inside")

        with pytest.raises(RuntimeError, match="inside"):
            fail()
        assert torch.get_num_threads() == before
