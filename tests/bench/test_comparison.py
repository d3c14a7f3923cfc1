from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bench import comparison, peers
from bench.comparison import ENVOY, NO_OP, Extent, Measured
from bench.measure import Latency


def measured(p50: float, busy: float, processor: float = 0.0) -> Measured:
    latency = [Latency(p50, 2 * p50, 3 * p50, 0.0)]
    return Measured(latency, [busy], [1000.0], [busy], [processor], [0.010], 100.0)


def test_report_compares_with_envoy_alone_and_the_no_op_of_the_same_rounds() -> None:
    results = {
        "no gateway": Measured([Latency(0.0002, 0.001, 0.001, 0.0)], [0.0], [50_000.0], [0.0], [0.0], [0.0]),
        ENVOY: measured(0.0005, 0.0001),
        NO_OP: measured(0.0015, 0.0004, 0.0002),
        "Tidegate": measured(0.0020, 0.0008, 0.0005),
    }  # fmt: skip
    text = comparison.report(results, {"x 1.0": "no wheel"}, Extent(1, 100.0, 32, 3.0))
    assert "| Tidegate | 2.00 | +1.50 | 4.00 | 800 | 10.0 | 100 |" in text
    assert "| Tidegate | 1,000 | 800 | 8.00 × | 2.00 × | 500 |" in text
    assert "| no gateway | 0.20 | -0.30 | 1.00 |  |  |  |" in text
    assert text.endswith("Not measured: x 1.0: no wheel")


def test_peers_stay_on_this_machine_and_reach_the_engine(tmp_path: Path) -> None:
    for peer in peers.PEERS:
        run = peer.run(Path("/opt/bin"), tmp_path, 8000)
        assert str(run.port) in run.command
        assert "127.0.0.1" in run.command
        if peer.name == "litellm":
            [model] = yaml.safe_load((tmp_path / "litellm.yaml").read_text())["model_list"]
            assert model["litellm_params"]["api_base"] == "http://127.0.0.1:8000/v1"
            assert run.headers[0][1].startswith("Bearer sk-")
        else:
            assert "http://127.0.0.1:8000" in run.command


def test_who_cannot_be_installed_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.peers.sys.executable", "/bin/false")
    with pytest.raises(peers.NotInstalledError):
        peers.PEERS[0].installed(tmp_path)
    (tmp_path / "vllm-router-0.1.17").mkdir()
    assert peers.PEERS[0].installed(tmp_path) == tmp_path / "vllm-router-0.1.17" / "bin"
