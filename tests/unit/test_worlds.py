"""The shipped worlds and the example controllers, run on the host without a microVM."""

import ast
import importlib
import importlib.util
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
CONTROLLERS = ROOT / "example_tests" / "controllers"


def load_world(template):
    """Import a template's `world` as the guest does, leaving sys.path and sys.modules as they were."""
    folder = TEMPLATES / template
    names = [path.stem for path in folder.glob("*.py")]
    hidden = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module("world")
    finally:
        sys.path.remove(str(folder))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def load_controller(name):
    spec = importlib.util.spec_from_file_location(f"controller_{name}", CONTROLLERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def play(world, controller, seed, max_steps=500):
    """Run one episode; return its metrics and its list of states."""
    module = load_controller(controller)
    act = module.Controller().act if hasattr(module, "Controller") else module.act
    observation, _ = world.reset(seed=seed)
    states = [list(world.state())]
    for _ in range(max_steps):
        observation, _, terminated, truncated, _ = world.step(act(observation))
        states.append(list(world.state()))
        if terminated or truncated:
            break
    return world.metrics(), states


@pytest.fixture(scope="module")
def warehouse():
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    return load_world("warehouse").make()


@pytest.fixture
def cartpole():
    return load_world("cartpole").make()


class TestLoading:
    def test_two_templates_do_not_meet_in_sys_modules(self, warehouse):
        load_world("cartpole")
        assert {"world", "layout", "meshes", "sensors"}.isdisjoint(sys.modules)
        assert str(TEMPLATES / "cartpole") not in sys.path

    @pytest.mark.parametrize("path", sorted(CONTROLLERS.glob("*.py")), ids=lambda path: path.stem)
    def test_a_controller_offers_act(self, path):
        module = load_controller(path.stem)
        assert hasattr(module, "act") or hasattr(module.Controller, "act")


class TestWarehouse:
    SEEDS = (0, 1, 7, 20, 51, 63)

    def test_the_same_seed_gives_the_same_episode_bit_for_bit(self, warehouse):
        first_metrics, first = play(warehouse, "dock", 5, max_steps=60)
        play(warehouse, "bad", 6, max_steps=30)
        again_metrics, again = play(warehouse, "dock", 5, max_steps=60)
        assert first == again
        assert first_metrics == again_metrics

    def test_a_second_world_gives_the_same_episode_bit_for_bit(self):
        pytest.importorskip("mujoco")
        pytest.importorskip("gymnasium")
        # Of coarser meshes, which are made in less time.
        first, again = (play(load_world("warehouse").make(voxel=0.1), "dock", 11, max_steps=40)[1] for _ in "12")
        assert first == again

    def test_seeds_differ_in_start_pallets_friction_and_trajectory(self, warehouse):
        starts, pallets, frictions, ends = set(), set(), set(), set()
        for seed in range(32):
            warehouse.reset(seed=seed)
            starts.add(tuple(warehouse.data.qpos))
            pallets.add(tuple(warehouse.data.mocap_pos.ravel()))
            frictions.add(float(warehouse.model.geom("left").friction[0]))
            for _ in range(3):
                warehouse.step((0.5, 0.2))
            ends.add(tuple(warehouse.state()))
        assert [len(found) for found in (starts, pallets, frictions, ends)] == [32] * 4

    def test_without_a_seed_the_generator_goes_on(self, warehouse):
        warehouse.reset(seed=9)
        generator = warehouse.np_random
        second, _ = warehouse.reset()
        assert warehouse.np_random is generator
        third, _ = warehouse.reset()
        assert list(second) != list(third)
        warehouse.reset(seed=9)
        assert list(warehouse.reset()[0]) == list(second)

    def test_the_generator_exists_when_the_world_is_built(self, warehouse):
        # Gymnasium makes it on first use: made by a fork, it would come from the guest's own entropy.
        fresh = load_world("warehouse").make(voxel=0.1, variants=1)
        assert fresh.__dict__["_np_random"] is not None

    def test_observations_and_actions_fit_their_spaces(self, warehouse):
        observation, info = warehouse.reset(seed=2)
        assert info == {}
        assert warehouse.observation_space.contains(observation)
        warehouse.action_space.seed(2)
        for _ in range(30):
            observation, reward, terminated, truncated, info = warehouse.step(warehouse.action_space.sample())
            assert warehouse.observation_space.contains(observation)
            assert isinstance(reward, float)
            assert (type(terminated), type(truncated)) == (bool, bool)
            assert info == {}

    def test_an_observation_is_not_overwritten_by_the_next_one(self, warehouse):
        first, _ = warehouse.reset(seed=2)
        kept = list(first)
        warehouse.step((0.8, 0.0))
        assert list(first) == kept

    def test_the_true_pose_is_not_observed(self, warehouse):
        for seed in range(8):
            observation, _ = warehouse.reset(seed=seed)
            x, y, _ = warehouse.data.body("robot").xpos
            distance = warehouse.metrics()["distance_to_dock"]
            rotation = warehouse.data.body("robot").xmat
            for hidden in (x, y, distance, math.atan2(rotation[3], rotation[0])):
                assert min(abs(float(value) - hidden) for value in observation) > 1e-9

    def test_the_state_continues_bit_exactly(self, warehouse):
        mujoco = pytest.importorskip("mujoco")
        warehouse.reset(seed=4)
        for _ in range(15):
            warehouse.step((0.6, 0.4))
        saved = warehouse.state()
        expected = [warehouse.step((0.7, -0.3)) and list(warehouse.state()) for _ in range(25)]
        # A second simulation of the same model, which has seen nothing but the state.
        data = mujoco.MjData(warehouse.model)
        mujoco.mj_setState(warehouse.model, data, saved, mujoco.mjtState.mjSTATE_INTEGRATION)
        warehouse.data, original = data, warehouse.data
        try:
            continued = [warehouse.step((0.7, -0.3)) and list(warehouse.state()) for _ in range(25)]
        finally:
            warehouse.data = original
        assert continued == expected

    def test_metrics(self, warehouse):
        warehouse.reset(seed=0)
        for _ in range(10):
            warehouse.step((0.0, 0.0))
        metrics = warehouse.metrics()
        assert set(metrics) == {"distance_to_dock", "heading_error", "collisions", "docked", "time_s", "facing_s"}
        assert all(type(value) is float for value in metrics.values())
        assert metrics["time_s"] == pytest.approx(1.0)
        assert metrics["docked"] == 0.0
        assert 8.0 < metrics["distance_to_dock"] < 14.0

    def test_the_moment_it_faces_the_dock_lies_between_steps(self, warehouse):
        times = []
        for rate in (1.0, 0.95):
            warehouse.reset(seed=2)
            for _ in range(80):
                warehouse.step((0.0, rate))
            times.append(warehouse.metrics()["facing_s"])
        assert all(0.1 < time < 8.0 and abs(time * 10 - round(time * 10)) > 1e-6 for time in times)
        assert times[1] / times[0] == pytest.approx(1 / 0.95, rel=0.02)
        warehouse.reset(seed=2)
        warehouse.step((0.0, 0.0))
        assert warehouse.metrics()["facing_s"] == warehouse.metrics()["time_s"]

    def test_driving_into_a_wall_is_one_collision(self, warehouse):
        warehouse.reset(seed=0)
        warehouse.data.qpos[:2] = (5.0, 1.5)
        warehouse.data.qpos[3:7] = (1.0, 0.0, 0.0, 0.0)
        for _ in range(40):
            observation, *_ = warehouse.step((0.8, 0.0))
        assert observation[21] == 1.0
        assert warehouse.metrics()["collisions"] >= 1.0

    @pytest.mark.parametrize("action", [(math.nan, 0.0), (0.0, math.inf), (1.0,), (1.0, 2.0, 3.0)])
    def test_a_bad_action_is_refused(self, warehouse, action):
        warehouse.reset(seed=0)
        with pytest.raises(ValueError):
            warehouse.step(action)

    def test_pallets_always_leave_a_way_to_the_dock(self, warehouse):
        layout = warehouse.reset.__globals__["layout"]
        for seed in range(200):
            warehouse.reset(seed=seed)
            for (x, y, _), quat in zip(warehouse.data.mocap_pos, warehouse.data.mocap_quat, strict=True):
                assert math.hypot(x - layout.DOCK_POINT[0], y) > 2.0
                if abs(y) < 1.6:
                    yaw = 2 * math.atan2(quat[3], quat[0])
                    reach = 0.6 * abs(math.sin(yaw)) + 0.4 * abs(math.cos(yaw))
                    assert layout.AISLE_HALF_WIDTH + abs(y) - reach > 1.1

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_good_controller_docks(self, warehouse, seed):
        metrics, states = play(warehouse, "dock", seed)
        assert metrics["docked"] == 1.0
        assert metrics["distance_to_dock"] < 0.25
        assert metrics["collisions"] == 0.0
        assert len(states) < 400

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_bad_controller_does_not_dock(self, warehouse, seed):
        metrics, _ = play(warehouse, "bad", seed)
        assert metrics["docked"] == 0.0
        assert metrics["distance_to_dock"] > 0.25


class TestCartPole:
    def test_it_needs_the_standard_library_only(self):
        files = list((TEMPLATES / "cartpole").glob("*.py"))
        imported = set()
        for node in [node for file in files for node in ast.walk(ast.parse(file.read_text()))]:
            if isinstance(node, ast.Import):
                imported.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").partition(".")[0])
        assert imported - {file.stem for file in files} <= sys.stdlib_module_names

    def test_the_same_seed_gives_the_same_episode(self, cartpole):
        assert play(cartpole, "balance", 3) == play(cartpole, "balance", 3)

    def test_seeds_differ(self, cartpole):
        episodes = [play(cartpole, "balance", seed, max_steps=5)[1] for seed in range(64)]
        assert len({str(states[0]) for states in episodes}) == 64
        assert len({str(states[-1]) for states in episodes}) == 64

    def test_without_a_seed_the_generator_goes_on(self, cartpole):
        first, _ = cartpole.reset(seed=1)
        assert cartpole.reset()[0] != first

    def test_reseeding_its_declared_generator_decides_the_next_episode(self, cartpole):
        (generator,) = cartpole.generators().values()
        generator.seed(12)
        first, _ = cartpole.reset()
        assert cartpole.reset(seed=12)[0] == first

    @pytest.mark.parametrize("seed", range(8))
    def test_balance_keeps_the_pole_up(self, cartpole, seed):
        metrics, _ = play(cartpole, "balance", seed)
        assert metrics == {"balanced_steps": 500.0, "max_angle": metrics["max_angle"], "fallen": 0.0}
        assert metrics["max_angle"] < 0.1

    @pytest.mark.parametrize("seed", range(8))
    def test_topple_does_not(self, cartpole, seed):
        metrics, _ = play(cartpole, "topple", seed)
        assert metrics["fallen"] == 1.0
        assert metrics["balanced_steps"] < 100

    @pytest.mark.parametrize("action", [2, -1, math.nan])
    def test_a_bad_action_is_refused(self, cartpole, action):
        with pytest.raises(ValueError):
            cartpole.step(action)


def test_the_pendulum_template_names_an_id_that_gymnasium_knows():
    gymnasium = pytest.importorskip("gymnasium")
    assert not list((TEMPLATES / "pendulum").glob("*.py"))
    environment = gymnasium.make("Pendulum-v1")
    observation, _ = environment.reset(seed=1)
    assert environment.observation_space.contains(observation)
    environment.close()
