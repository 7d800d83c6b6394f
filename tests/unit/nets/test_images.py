"""Images in table columns: finding them, describing them, and training convolutions on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from dmliv import DMLIV, InputError
from dmliv.data import TableSchema
from dmliv.learners import ImageColumns, Learners, neural, paper_neural
from dmliv.nets.encoding import TableEncoder
from dmliv.nets.images import GradientFeatures, ImageEncoder, ImageFront, _edge_histograms
from dmliv.nets.settings import NetworkSettings
from dmliv.nets.stacked import StackedMLP
from dmliv.second_stage.network import NeuralStructural

SIZE = 20


def stripes(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Noisy images (n, SIZE * SIZE) with horizontal (kind 0) or vertical (kind 1) stripes."""
    generator = np.random.default_rng(seed)
    kind = generator.integers(0, 2, n)
    wave = np.sin(np.arange(SIZE) + generator.uniform(0, 6, n)[:, None])
    images = np.where(kind[:, None, None] == 1, wave[:, None, :], wave[:, :, None])
    noisy = np.broadcast_to(images, (n, SIZE, SIZE)) + 0.1 * generator.normal(size=(n, SIZE, SIZE))
    return noisy.reshape(n, -1), kind


class TestColumns:
    def test_pixels_keep_the_users_order(self) -> None:
        # Sorted by name, pixel 10 would come before pixel 2.
        names = [f"pixel{index}" for index in range(12)]
        frame = pd.DataFrame(np.arange(24.0).reshape(2, 12), columns=names).assign(time=[5.0, 6.0])
        schema = TableSchema.learn(frame, "context")
        table = schema.read(frame)
        positions = ImageColumns(3, 4, prefix="pixel").positions(schema)
        np.testing.assert_array_equal(table.numeric[:, positions], frame[names].to_numpy())
        np.testing.assert_array_equal(ImageColumns(3, 4, first=0).positions(schema), positions)

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (ImageColumns(3, 5, prefix="pixel"), "Expected 15 context columns"),
            (ImageColumns(3, 4, first=2), "Expected 12 context columns from position 2"),
            (ImageColumns(3, 4, prefix="p\u00edxel"), "got 0"),
        ],
    )
    def test_wrong_columns(self, image: ImageColumns, message: str) -> None:
        frame = pd.DataFrame(np.zeros((2, 12)), columns=[f"pixel{index}" for index in range(12)])
        with pytest.raises(InputError, match=message):
            image.positions(TableSchema.learn(frame.assign(time=1.0), "context"))

    def test_categories_are_no_pixels(self) -> None:
        frame = pd.DataFrame({"p0": [1.0, 2.0], "p1": ["a", "b"]})
        with pytest.raises(InputError, match="numbers in all pixel columns"):
            ImageColumns(1, 2, prefix="p").positions(TableSchema.learn(frame, "context"))

    @pytest.mark.parametrize(
        "arguments",
        [
            {"height": 0, "width": 3, "first": 0},
            {"height": 3, "width": 3},
            {"height": 3, "width": 3, "first": 0, "prefix": "p"},
            {"height": 3, "width": 3, "first": 0, "features": "wavelets"},
        ],
    )
    def test_bad_descriptions(self, arguments: dict[str, Any]) -> None:
        with pytest.raises(InputError, match="Expected"):
            ImageColumns(**arguments)

    def test_small_images_have_no_convolutions(self) -> None:
        with pytest.raises(InputError, match="gradients"):
            ImageFront(12, 12)

    def test_paper_preset_wants_pixels(self) -> None:
        with pytest.raises(InputError, match="image="):
            paper_neural("image")
        learners = paper_neural("image", ImageColumns(28, 28, first=1))
        assert learners.outcome.settings.front(1000) == ImageFront(28, 28, dropout=0.3)  # type: ignore[attr-defined]


class TestGradientFeatures:
    def test_brightness_does_not_matter(self) -> None:
        images, _ = stripes(5)
        one = _edge_histograms(images, SIZE, SIZE)
        np.testing.assert_allclose(_edge_histograms(3.0 * images + 7.0, SIZE, SIZE), one, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1.0)

    def test_they_tell_stripes_apart(self) -> None:
        images, kind = stripes(60)
        histograms = _edge_histograms(images, SIZE, SIZE)
        features = GradientFeatures.learn(histograms, SIZE, SIZE, n_components=5).transform(histograms)
        assert features.shape == (60, 5)
        assert abs(np.corrcoef(features[:, 0], kind)[0, 1]) > 0.95
        assert features[:, 0].std() == pytest.approx(1.0)

    def test_an_empty_image_is_fine(self) -> None:
        assert np.isfinite(_edge_histograms(np.zeros((2, SIZE * SIZE)), SIZE, SIZE)).all()

    def test_encodings_leave_pixels_out(self) -> None:
        images, _ = stripes(30)
        values = np.column_stack([np.linspace(0, 1, 30), images])
        schema = TableSchema.learn(values, "context")
        table = schema.read(values)
        image = ImageColumns(SIZE, SIZE, first=1)
        encoder = TableEncoder.learn(table, (), 8, image, schema)
        # Thirty images around their mean vary in 29 directions.
        assert encoder.standardised(table).shape == (30, 1 + 29)
        assert encoder.piecewise_linear(table).shape == (30, 8 + 29)
        assert encoder.pixels(table) is None
        trained = TableEncoder.learn(
            table, (), 8, ImageColumns(SIZE, SIZE, first=1, features="convolution"), schema
        )
        assert trained.standardised(table).shape == (30, 1)
        pixels = trained.pixels(table)
        assert pixels is not None
        np.testing.assert_array_equal(pixels, images.astype(np.float32))

    def test_new_rows_are_described_by_the_training_components(self) -> None:
        images, _ = stripes(40)
        schema = TableSchema.learn(images, "context")
        table = schema.read(images)
        encoder = ImageEncoder.learn(table, ImageColumns(SIZE, SIZE, first=0), schema)
        whole, part = encoder.features(table), encoder.features(table.take(np.array([3, 5])))
        assert whole is not None
        assert part is not None
        np.testing.assert_allclose(part, whole[[3, 5]], atol=1e-12)


class TestConvolutions:
    @staticmethod
    def net(n_members: int = 3, n_dense: int = 2) -> StackedMLP:
        return StackedMLP(
            n_members,
            (n_dense + 8, 6, 1),
            dropout=(0.0,),
            generator=np.random.default_rng(0),
            device=torch.device("cpu"),
            front=ImageFront(SIZE, SIZE, channels=(4, 5, 6), n_features=8),
        )

    @staticmethod
    def plain(net: StackedMLP, member: int) -> nn.Module:
        """Return one member as an ordinary torch network with the same weights."""
        front = nn.Sequential(
            *(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(5, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6, 8), nn.ReLU()),
        )
        body = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1))
        layers = [layer for layer in (*front, *body) if isinstance(layer, nn.Conv2d | nn.Linear)]
        with torch.no_grad():
            for layer, (weight, bias) in zip(layers, net.layers(), strict=True):
                layer.weight.copy_(weight[member].T.reshape(layer.weight.shape))
                layer.bias.copy_(bias[member, 0])

        class Both(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.front, self.body = front, body

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                images = inputs[:, 2:].reshape(-1, 1, SIZE, SIZE)
                return self.body(torch.cat([inputs[:, :2], self.front(images)], dim=1))  # type: ignore[no-any-return]

        return Both()

    def test_every_member_is_an_ordinary_network(self) -> None:
        net = self.net().eval()
        inputs = torch.randn(3, 7, 2 + SIZE * SIZE, generator=torch.Generator().manual_seed(0))
        outputs = net(inputs)
        for member in range(3):
            torch.testing.assert_close(outputs[member], self.plain(net, member)(inputs[member]))

    def test_gradients_are_those_of_ordinary_networks(self) -> None:
        net = self.net().train()
        inputs = torch.randn(3, 7, 2 + SIZE * SIZE, generator=torch.Generator().manual_seed(1))
        net(inputs).square().sum().backward()
        assert net.flat.grad is not None
        gradients = net.layers(net.flat.grad)
        for member in range(3):
            single = self.plain(net, member)
            single(inputs[member]).square().sum().backward()
            layers = [layer for layer in single.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
            for layer, (weight, bias) in zip(layers, gradients, strict=True):
                assert layer.weight.grad is not None
                assert layer.bias is not None
                expected = layer.weight.grad.flatten(1).T
                torch.testing.assert_close(weight[member], expected, rtol=1e-3, atol=1e-4)
                torch.testing.assert_close(bias[member, 0], layer.bias.grad, rtol=1e-3, atol=1e-4)

    def test_dropout_follows_the_networks_own_seed(self) -> None:
        def outputs() -> torch.Tensor:
            net = StackedMLP(
                2,
                (8, 4, 1),
                dropout=(0.0,),
                generator=np.random.default_rng(3),
                device=torch.device("cpu"),
                front=ImageFront(SIZE, SIZE, channels=(4, 5, 6), n_features=8, dropout=0.5),
            ).train()
            inputs = torch.ones(2, 3, SIZE * SIZE)
            return torch.stack([net(inputs), net(inputs)])

        torch.manual_seed(0)
        first = outputs()
        torch.manual_seed(1)
        torch.testing.assert_close(outputs(), first, rtol=0, atol=0)
        assert not torch.equal(first[0], first[1])

    def test_a_subset_computes_the_same(self) -> None:
        net = self.net().eval()
        inputs = torch.randn(1, 4, 2 + SIZE * SIZE)
        torch.testing.assert_close(net.subset([2, 0])(inputs), net(inputs)[[2, 0]])


def image_problem(n: int, seed: int) -> dict[str, Any]:
    """Slope of the action is +2 for vertical and -2 for horizontal stripes; a confounder adds +2."""
    generator = np.random.default_rng(seed)
    images, kind = stripes(n, seed)
    instrument, hidden, time = generator.normal(size=(3, n))
    action = instrument + hidden + 0.2 * generator.normal(size=n)
    outcome = (4.0 * kind - 2.0) * action + 2.0 * hidden + 0.1 * generator.normal(size=n)
    names = [f"pixel{index}" for index in range(SIZE * SIZE)]
    frame = pd.DataFrame(images, columns=names).assign(time=time)
    return {"Y": outcome, "T": action, "Z": instrument, "X": frame, "kind": kind}


@pytest.mark.parametrize("features", ["gradients", "convolution"])
def test_an_estimator_learns_from_images(features: Any) -> None:
    data = image_problem(600, seed=0)
    image = ImageColumns(SIZE, SIZE, prefix="pixel", features=features)
    if features == "gradients":
        learners = neural(image=image)
    else:
        settings = NetworkSettings(
            hidden=(16,), epochs=12, batch_size=25, learning_rate=2e-3, dropout=0.0, image=image
        )
        preset = neural()
        learners = Learners(
            type(preset.outcome)(settings),  # type: ignore[call-arg]
            type(preset.action)(settings, n_components=2),  # type: ignore[call-arg]
            NeuralStructural(settings, n_members=2),
        )
    estimator = DMLIV(learners, n_folds=2, random_state=0)
    estimator.fit(data["Y"], data["T"], Z=data["Z"], X=data["X"])
    fresh = image_problem(200, seed=1)
    effect = estimator.effect(fresh["X"], T0=-0.5, T1=0.5)
    right_sign = np.sign(effect) == np.sign(4.0 * fresh["kind"] - 2.0)
    assert right_sign.mean() > 0.9
    # Columns are found by name, in whatever order they come, and a grid is the same as row by row.
    shuffled = fresh["X"][np.random.default_rng(0).permutation(fresh["X"].columns)]
    np.testing.assert_array_equal(estimator.predict(0.5, shuffled), estimator.predict(0.5, fresh["X"]))
    policy = estimator.policy([-1.0, 1.0])
    values = np.stack([estimator.predict(action, fresh["X"]) for action in (-1.0, 1.0)])
    np.testing.assert_array_equal(policy.predict(fresh["X"]), np.where(values[1] > values[0], 1.0, -1.0))
