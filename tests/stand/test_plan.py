"""What `tidegate up` would run."""

from pathlib import Path

from extproc.config import load_keys, parse
from extproc.stand.plan import make_plan

DIGEST = "ab" * 32


def test_key_files_are_found_beside_the_configuration_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text(f"{DIGEST}: pay\n", encoding="utf-8")
    config = tmp_path / "tidegate.yaml"
    config.write_text(
        "identity: {sources: [{header: {name: x-tenant-id}}, {api_key: {file: keys.yaml}}]}\n",
        encoding="utf-8",
    )
    stand = tmp_path / "stand"
    plan = make_plan(stand, port=0, engines=("127.0.0.1:1",), config=config)
    served = parse(plan.text, file=stand / "tidegate.yaml")
    assert load_keys(served) == {DIGEST: "pay"}


def test_envoy_asks_the_tidegate_of_the_stand_wherever_the_users_one_is(tmp_path: Path) -> None:
    config = tmp_path / "tidegate.yaml"
    config.write_text("envoy: {processor: 'tidegate:9002', failure_mode: closed}\n")
    plan = make_plan(tmp_path, port=0, engines=("127.0.0.1:1",), config=config)
    assert plan.config.listen.processor == f"unix://{tmp_path}/processor.sock"
    assert plan.config.envoy.processor is None
    assert plan.config.envoy.failure_mode == "closed"


def test_several_workers_get_a_redis_unless_they_have_one(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, port=0, engines=("127.0.0.1:1",), workers=2)
    assert plan.config.listen.workers == 2
    assert plan.redis == tmp_path / "redis.sock"
    assert plan.config.state.redis == f"unix://{tmp_path}/redis.sock"

    config = tmp_path / "tidegate.yaml"
    config.write_text("listen: {workers: 3}\nstate: {redis: 'redis://theirs'}\n")
    plan = make_plan(tmp_path, port=0, engines=("127.0.0.1:1",), config=config)
    assert (plan.config.listen.workers, plan.config.state.redis) == (3, "redis://theirs")
    assert plan.redis is None
