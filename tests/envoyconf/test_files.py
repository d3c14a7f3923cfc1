"""The generated files: the same as in ``envoy/``, readable, and accepted by Envoy's schema."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import betterproto2
import pytest
import yaml
from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.bootstrap.v3 import Bootstrap
from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.core.v3 import TypedExtensionConfig
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.service.discovery.v3 import DiscoveryResponse
from typer.testing import CliRunner

from extproc.cli import app
from extproc.config import Config, load
from extproc.envoyconf.binary import find_envoy
from extproc.envoyconf.bootstrap import bootstrap
from extproc.envoyconf.errors import EndpointsFileError, NoPoolError
from extproc.envoyconf.forms import Form, files
from extproc.envoyconf.render import COMMENTS, fields

ENVOY = Path(__file__).parents[2] / "envoy"
Sample = Callable[..., Config]


def documents(form: Form) -> list[dict[str, Any]]:
    text = (ENVOY / f"{form}.yaml").read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text))


def same(message: betterproto2.Message, written: object) -> bool:
    """Whether a message says again all that was written, without loss."""
    return fields(message) == written


def test_the_repository_holds_what_the_command_writes(tmp_path: Path) -> None:
    config = str(ENVOY / "tidegate.yaml")
    result = CliRunner().invoke(app, ["envoy", "--config", config, "--output", str(tmp_path)])
    assert (result.exit_code, result.output) == (0, "")
    written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    kept = {file.name: file.read_bytes() for file in ENVOY.glob("*.yaml")}
    del kept["tidegate.yaml"]
    assert written == kept


@pytest.mark.e2e
@pytest.mark.parametrize("form", [Form.BOOTSTRAP, Form.INCLUDE])
def test_envoy_validates_the_bootstraps(form: Form, tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    text = (ENVOY / f"{form}.yaml").read_text(encoding="utf-8")
    file.write_text(text.replace("/etc/envoy/tidegate", str(ENVOY)), encoding="utf-8")
    command = [str(find_envoy()), "--mode", "validate", "-l", "error", "-c", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("form", [Form.BOOTSTRAP, Form.INCLUDE])
def test_bootstraps_survive_a_round_trip(form: Form) -> None:
    (document,) = documents(form)
    assert same(Bootstrap.from_dict(document), document)


@pytest.mark.parametrize("form", [Form.ECDS, Form.CDS])
def test_includes_survive_a_round_trip(form: Form) -> None:
    (document,) = documents(form)
    assert same(DiscoveryResponse.from_dict(document), document)


def test_istio_patches_hold_valid_envoy_configuration() -> None:
    (document,) = documents(Form.ISTIO)
    assert (document["apiVersion"], document["kind"]) == (
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
    )
    types: dict[str, type[betterproto2.Message]] = {
        "CLUSTER": Cluster,
        "NETWORK_FILTER": TypedExtensionConfig,
        "HTTP_FILTER": HttpFilter,
    }
    patches = document["spec"]["configPatches"]
    names = [patch["patch"]["value"].get("name") for patch in patches]
    assert names == [
        "tidegate",
        "envoy.filters.network.http_connection_manager",
        "tidegate.load_report",
        "tidegate.usage_chunk",
        "tidegate",
        "envoy.filters.http.buffer",
        "envoy.filters.http.header_mutation",
        "envoy.filters.http.set_filter_state",
        "envoy.filters.http.json_to_metadata",
        "envoy.filters.http.sse_to_metadata",
        None,
        None,
    ]
    for patch in patches:
        kind, value = patch["applyTo"], patch["patch"]["value"]
        if kind in types:
            assert same(types[kind].from_dict(value), value), value["name"]


def test_gateway_policies_hold_valid_envoy_configuration() -> None:
    policies = {document["kind"]: document for document in documents(Form.GATEWAY)}
    assert list(policies) == [
        "EnvoyExtensionPolicy",
        "ClientTrafficPolicy",
        "BackendTrafficPolicy",
        "EnvoyPatchPolicy",
    ]
    patches = policies["EnvoyPatchPolicy"]["spec"]["jsonPatches"]
    values = [patch["operation"]["value"] for patch in patches]
    cluster, access_log, (early,), *filters = values
    # Each is put before all others.
    assert [each["name"] for each in filters] == [
        "envoy.filters.http.json_to_metadata",
        "envoy.filters.http.sse_to_metadata",
        "tidegate.usage_chunk",
        "tidegate.load_report",
    ]
    types: tuple[type[betterproto2.Message], ...] = (
        Cluster,
        AccessLog,
        TypedExtensionConfig,
        *([HttpFilter] * 4),
    )
    for value, kind in zip((cluster, access_log, early, *filters), types, strict=True):
        assert same(kind.from_dict(value), value), value["name"]


def test_every_comment_is_said_somewhere_and_once_a_file() -> None:
    texts = [(ENVOY / f"{form}.yaml").read_text(encoding="utf-8") for form in Form if form != "eds"]
    for why in COMMENTS.values():
        first = f"# {why.splitlines()[0]}\n"
        counts = [text.count(first) for text in texts]
        assert max(counts) == 1, why


def test_durations_are_readable(sample: Sample) -> None:
    text = bootstrap(sample("envoy: {message_timeout: 20s, stream_idle_timeout: 10m}"))
    assert "\n              message_timeout: 20s\n" in text
    assert "\n          stream_idle_timeout: 600s\n" in text


@pytest.mark.parametrize(
    ("address", "kind"),
    [("10.0.0.1:80", "STATIC"), ("[::1]:80", "STATIC"), ("vllm.svc:80", "STRICT_DNS")],
)
def test_names_are_resolved(sample: Sample, address: str, kind: str) -> None:
    document = yaml.safe_load(bootstrap(sample(tiny=[address])))
    assert document["static_resources"]["clusters"][1]["type"] == kind


def test_a_processor_on_every_interface_is_reached_over_loopback(sample: Sample) -> None:
    document = yaml.safe_load(bootstrap(sample("listen: {processor: '0.0.0.0:9002'}")))
    (endpoint,) = document["static_resources"]["clusters"][0]["load_assignment"]["endpoints"]
    address = endpoint["lb_endpoints"][0]["endpoint"]["address"]
    assert address == {"socket_address": {"address": "127.0.0.1", "port_value": 9002}}


def test_without_admin_there_is_none(sample: Sample) -> None:
    assert "admin" not in yaml.safe_load(bootstrap(sample("envoy: {admin: null}")))


def test_without_a_pool_nothing_is_written() -> None:
    with pytest.raises(NoPoolError, match="at least one pool"):
        bootstrap(Config())


def test_a_missing_file_of_endpoints_is_told(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text("pools: {tiny: {endpoints: {file: pods.yaml}}}", encoding="utf-8")
    with pytest.raises(EndpointsFileError, match=r"pools\.tiny\.endpoints\.file = .*pods\.yaml"):
        list(files(load(file)))
    for text, said in (("[nonsense]", "write host:port"), ("2001-99-99", "month must be in 1..12")):
        (tmp_path / "pods.yaml").write_text(text, encoding="utf-8")
        result = CliRunner().invoke(app, ["envoy", "--config", str(file), "--form", "eds"])
        assert result.exit_code == 2
        assert said in result.output


def test_the_name_of_a_model_makes_a_safe_file_name(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.yaml"
    file.write_text('pools: {"Qwen/Qwen2": {endpoints: {file: pods.yaml}}}', encoding="utf-8")
    (tmp_path / "pods.yaml").write_text('["10.0.0.1:8000"]', encoding="utf-8")
    ((name, text),) = files(load(file), Form.EDS)
    assert name == "eds-Qwen%2FQwen2.yaml"
    (resource,) = yaml.safe_load(text)["resources"]
    assert resource["cluster_name"] == "tidegate-pool-Qwen/Qwen2"


def test_the_command_prints_the_bootstrap(tmp_path: Path) -> None:
    config = str(ENVOY / "tidegate.yaml")
    result = CliRunner().invoke(app, ["envoy", "--config", config])
    assert (result.exit_code, result.output) == (0, (ENVOY / "bootstrap.yaml").read_text("utf-8"))


@pytest.mark.parametrize("form", Form)
def test_the_command_knows_every_form(form: Form) -> None:
    config = str(ENVOY / "tidegate.yaml")
    result = CliRunner().invoke(app, ["envoy", "--config", config, "--form", form])
    assert result.exit_code == 0, result.output


def test_the_example_configuration_is_fine() -> None:
    result = CliRunner().invoke(app, ["check", str(ENVOY / "tidegate.yaml")])
    assert result.exit_code == 0
